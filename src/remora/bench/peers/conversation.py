"""A program of the comparison in processes of its own: starting it, asking it with a deadline, and leaving nothing of it.

Its home and its place for temporary files are a folder that goes with it. Whatever a program starts inherits a mark in its
environment: `close()` ends the process group, then every process with the mark.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from types import TracebackType
from typing import Any

from remora.errors import BrokenError, DeadlineError, PeerError, UnsupportedError

__all__ = ["Conversation", "marked"]

MARK = "REMORA_BENCH_MARK"
#: Seconds that a program has to end by itself when its input ends.
PATIENCE = 5.0
#: Looks, a millisecond apart, at a process that shows no environment: it may be in the middle of an exec.
EXEC_LOOKS = 10
#: Bytes of what it said on standard error in which an error looks for the last line.
TAIL = 2000
#: Bytes of one answer; the longest is a list of samples.
MAX_LINE = 1 << 22


class Conversation:
    """One program, from its start to `close()`, which `with` calls. Not for several threads.

    Raises BrokenError when the program cannot be started.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._folder = TemporaryDirectory(prefix="remora-bench-", ignore_cleanup_errors=True)
        self._mark = secrets.token_hex(16)
        self._errors = Path(self._folder.name) / "errors"
        self._buffer = bytearray()
        self._closed = False
        places = dict.fromkeys(("HOME", "TMPDIR"), self._folder.name)
        environment = {**os.environ, **places, **environment, MARK: self._mark}
        try:
            with self._errors.open("wb") as errors:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env=environment,
                    cwd=self._folder.name,
                    start_new_session=True,
                )
        except OSError as error:
            self._folder.cleanup()
            raise BrokenError(f"cannot start {command[0]}: {error.strerror}; install it again") from error
        self._poll = select.poll()
        self._poll.register(self._output, select.POLLIN)

    @property
    def _output(self) -> int:
        assert self._process.stdout is not None  # a pipe was asked for
        return self._process.stdout.fileno()

    def ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request and take its answer; the errors of `line`."""
        assert self._process.stdin is not None  # a pipe was asked for
        try:
            os.write(self._process.stdin.fileno(), json.dumps(request).encode() + b"\n")
        except BrokenPipeError:
            raise self._ended() from None
        return self.line(timeout_s)

    def line(self, timeout_s: float) -> dict[str, Any]:
        """The next line that it says.

        Raises DeadlineError when none comes in time, BrokenError when it ended, PeerError for what is no JSON object, and
        UnsupportedError when it says an error: the program goes on.
        """
        deadline = monotonic() + timeout_s
        while b"\n" not in self._buffer:
            if not self._poll.poll(max(0.0, deadline - monotonic()) * 1e3):
                raise DeadlineError(f"no answer within {timeout_s:g} s")
            piece = os.read(self._output, 1 << 16)
            self._buffer += piece
            if not piece:
                raise self._ended()
            if len(self._buffer) > MAX_LINE:
                raise PeerError(f"it said more than {MAX_LINE} bytes without an end of line")
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer[:] = rest
        return _object(line)

    def _ended(self) -> BrokenError:
        self._wait()
        self._kill()
        lines = self._errors.read_bytes()[-TAIL:].decode(errors="replace").strip().splitlines()
        return BrokenError(f"it ended with exit code {self._process.returncode}" + (f": {lines[-1].strip()}" if lines else ""))

    def _wait(self) -> None:
        """For the first process to end by itself, for a moment."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE)

    # -- the end ----------------------------------------------------------------------------------------------------------------

    def abort(self) -> None:
        """Kill it and all that it started. `close` comes after it."""
        self._kill()

    def close(self) -> None:
        """Let it end, then kill what is left. Safe to repeat."""
        if self._closed:
            return
        self._closed = True
        assert self._process.stdin is not None  # a pipe was asked for
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._wait()
        finally:
            self._kill()
            self._process.stdout.close()
            self._folder.cleanup()

    def _kill(self) -> None:
        """The group of the first process, and every process with the mark, until there is none."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        deadline = monotonic() + PATIENCE
        while (left := marked(self._mark)) and monotonic() < deadline:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            sleep(0.01)  # the kernel takes a moment; there is nothing to wait on for somebody else's child

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self.abort()
        self.close()


def _object(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise PeerError(f"it said {line[:100]!r}, which is no JSON object")
    if "error" in answer:
        raise UnsupportedError(str(answer["error"]))
    return answer


def marked(mark: str) -> list[int]:
    """The processes that carry the mark."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if wanted in _environment(folder):
                    found.append(int(folder.name))
            except OSError:  # it has ended, or is somebody else's, or is the kernel's own
                continue
    return found


def _environment(folder: Path) -> bytes:
    """What a process inherited. Linux shows nothing in the middle of an exec, so nothing is looked at again."""
    for _ in range(EXEC_LOOKS):
        if environment := (folder / "environ").read_bytes():
            return environment
        (folder / "exe").readlink()
        sleep(0.001)
    return b""
