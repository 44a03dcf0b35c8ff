"""A file in the Chrome trace format, which ui.perfetto.dev shows: one JSON object, whole after every write.

What was written last is overwritten from its closing brackets on, in one call, so a program that is killed leaves valid JSON too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from remora.errors import Error, UsageError

__all__ = ["Event", "TraceFile"]

Event: TypeAlias = dict[str, Any]
HEAD: Final = b'{"displayTimeUnit":"ns","traceEvents":['


class TraceFile:
    """Made, or emptied. Not thread-safe. Raises UsageError for what is no regular file, Error when a write fails."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.events = 0
        """Events in the file."""
        self.size = 0
        """Of the file, in bytes."""
        try:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
            os.pwrite(self._fd, HEAD, 0)
        except OSError as error:
            raise UsageError(f"cannot write a trace to {self.path}: {error.strerror}; name a regular file") from None
        self._end = len(HEAD)  # where the next event goes
        self._process = os.getpid()
        self.write((), {})

    def write(self, events: Sequence[Event], facts: Mapping[str, Any]) -> None:
        """Append events; `facts` are in the file's `otherData` from now on. A forked child writes nothing."""
        if self._fd < 0 or os.getpid() != self._process:
            return
        text = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
        data = (f",\n{text}" if self.events and text else text).encode()
        tail = f'],"otherData":{json.dumps(facts, separators=(",", ":"))}}}\n'.encode()
        try:
            self._put(data + tail)
        except OSError as error:
            raise Error(f"cannot write the trace {self.path}: {error.strerror}") from error
        self._end += len(data)
        self.events += len(events)

    def close(self) -> None:
        """Safe to repeat."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _put(self, data: bytes) -> None:
        at, view = self._end, memoryview(data)
        while view:
            done = os.pwrite(self._fd, view, at)
            at, view = at + done, view[done:]
        if at < self.size:
            os.ftruncate(self._fd, at)
        self.size = at
