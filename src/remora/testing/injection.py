"""Failures on purpose, at every place where remora waits, does I/O, or asks the system for something that it may refuse.

    with Injector() as injector, injected(injector):
        injector.record()
        job()
        for point in injector.points():
            for failure in point.failures:
                injector.arm(point, failure)
                job()  # right, or one Error; injector.fired says whether the run came by there

A point is a call of such a primitive, told apart by the lines of remora that led to it, so a list of points names every await of
a link or a server. `injected` (injected.py) puts the primitives under control. The state lies in a file: a process that was given
its path, and the processes that it forks, follow what is armed here.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import random
import struct
import sys
import tempfile
import threading
from collections import Counter
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import NamedTuple, Self

from remora.errors import UsageError

__all__ = ["END", "FAILURES", "Injector", "Mode", "Point", "exception"]

#: A receive that finds the end of the stream.
END = "end"
#: Primitive -> how it may fail: an errno by name, an exception by name, or END.
FAILURES: dict[str, tuple[str, ...]] = {
    "socket": ("EMFILE",),
    "socketpair": ("EMFILE",),
    "connect": ("ECONNREFUSED",),
    "accept": ("EMFILE", "ECONNABORTED"),
    "setsockopt": ("ENOBUFS",),
    "send": ("EPIPE",),
    "sendmsg": ("EPIPE",),
    "recv": ("ECONNRESET", END),
    "recv_into": ("ECONNRESET", END),
    "recvmsg": ("ECONNRESET", END),
    "shutdown": ("ENOTCONN",),
    "poll": ("ENOMEM",),
    "eventfd": ("EMFILE",),
    "pipe2": ("EMFILE",),
    "fork": ("EAGAIN",),
    "pidfd_open": ("EMFILE",),
    "dup": ("EMFILE",),
    "memfd_create": ("EMFILE",),
    "mmap": ("ENOMEM",),
    "thread": ("RuntimeError",),
    "bytearray": ("MemoryError",),
}
#: Primitives that move bytes over a socket: a storm interrupts them, a cut counts their bytes.
STREAM = frozenset({"send", "sendmsg", "recv", "recv_into"})
#: mode, which pass, passes seen, passes failed, bytes left before a cut, the point's digest, the failure's name.
STATE = struct.Struct("<IIIIq8s32s")
PACKAGE = str(Path(__file__).parents[1]) + os.sep
#: Rooms that are no part of what is tested.
OUTSIDE = ("testing" + os.sep, "cli" + os.sep, "bench" + os.sep)


class Mode(IntEnum):
    """What an injector does."""

    OFF = 0
    RECORD = 1
    """Note every point that is passed."""
    ARMED = 2
    """Fail one pass of one point."""
    STORM = 3
    """Every second transfer of a carrier finds no room or no data, and the others move few bytes: nothing of it is an error."""
    CUT = 4
    """After so many bytes, over all sockets, every socket call fails, as on a line that was cut."""


class Point(NamedTuple):
    """Where something can fail: `name` says which primitive is called and by which lines; `passes` how often one job comes by."""

    name: str
    passes: int

    @property
    def primitive(self) -> str:
        """The primitive that is called there, a key of FAILURES."""
        return self.name.split()[0]

    @property
    def failures(self) -> tuple[str, ...]:
        """How it may fail."""
        return FAILURES[self.primitive]


class Injector:
    """Decides which call fails. Owns a state file and a log of points; without `path` both are removed at `close`."""

    def __init__(self, path: str | None = None) -> None:
        self._own = path is None
        if path is None:
            fd, self.path = tempfile.mkstemp(prefix="remora-injector-")
            os.ftruncate(fd, mmap.PAGESIZE)
        else:
            self.path = path
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._state = mmap.mmap(fd, mmap.PAGESIZE)
        os.close(fd)
        self._lock = threading.Lock()
        self._dice = random.Random(1)
        self._log = Path(self.path + ".log")
        self._closed = False

    # -- what the test says ---------------------------------------------------------------------------------------------------

    def off(self) -> None:
        """Let everything pass."""
        self._set(Mode.OFF)

    def record(self) -> None:
        """Note the points from here on, and forget those noted before."""
        self._log.write_bytes(b"")
        self._set(Mode.RECORD)

    def points(self) -> list[Point]:
        """What was noted, in the order of first passes."""
        return [Point(name, count) for name, count in Counter(self._log.read_text().splitlines()).items()]

    def arm(self, point: Point, failure: str, nth: int = 1) -> None:
        """Fail the `nth` pass of the point from here on, once. Raises UsageError for a failure that is not possible there."""
        if failure not in point.failures:
            raise UsageError(f"{point.primitive} can fail with {', '.join(point.failures)}, not {failure}")
        self._set(Mode.ARMED, nth=nth, digest=_digest(point.name), failure=failure)

    def storm(self, seed: int) -> None:
        """Interrupt transfers of bytes and make them short, at random but repeatably on one thread."""
        self._dice.seed(seed)
        self._set(Mode.STORM)

    def cut(self, after_bytes: int) -> None:
        """Fail every socket call once so many bytes have moved."""
        self._set(Mode.CUT, budget=after_bytes)

    @property
    def fired(self) -> int:
        """How many calls have failed since it was armed."""
        return int(STATE.unpack_from(self._state)[3])

    @property
    def cut_off(self) -> bool:
        """Whether the line was cut."""
        mode, *_, budget, _, _ = STATE.unpack_from(self._state)
        return bool(mode == Mode.CUT and budget <= 0)

    def close(self) -> None:
        """Let everything pass, and remove the files if they are this injector's. Safe to repeat."""
        if not self._closed:
            self._closed = True
            self.off()
            self._state.close()
            if self._own:
                Path(self.path).unlink(missing_ok=True)
                self._log.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def _set(self, mode: Mode, nth: int = 0, budget: int = 0, digest: bytes = b"", failure: str = "") -> None:
        STATE.pack_into(self._state, 0, Mode.OFF, nth, 0, 0, budget, digest, failure.encode())
        self._state[0] = mode

    # -- what the primitives ask ----------------------------------------------------------------------------------------------

    def strike(self, primitive: str) -> str | None:
        """How this call fails, or None when it passes."""
        mode = self._state[0]
        if mode == Mode.OFF or (mode > Mode.ARMED and primitive not in STREAM) or (place := _place()) is None:
            return None
        if mode == Mode.RECORD:
            self._note(f"{primitive} {place}\n")
            return None
        if mode == Mode.CUT:
            return "ECONNRESET" if self.cut_off else None
        if mode == Mode.STORM:
            return "EAGAIN" if place.startswith("carriers") and self._dice.random() < 0.5 else None
        return self._armed(f"{primitive} {place}")

    def _note(self, line: str) -> None:
        """Append a line; opened anew each time, because a session process closes every descriptor that it inherits."""
        fd = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        os.write(fd, line.encode())
        os.close(fd)

    def _armed(self, name: str) -> str | None:
        with self._lock:
            mode, nth, seen, fired, budget, digest, failure = STATE.unpack_from(self._state)
            if mode != Mode.ARMED or digest != _digest(name):
                return None
            hit = seen + 1 == nth
            STATE.pack_into(self._state, 0, mode, nth, seen + 1, fired + hit, budget, digest, failure)
        return str(failure.rstrip(b"\0").decode()) if hit else None

    def most(self, size: int) -> int:
        """How many of `size` bytes this call may move."""
        mode = self._state[0]
        if mode == Mode.STORM:
            return min(size, self._dice.randrange(1, 8192))
        return min(size, max(1, self._budget())) if mode == Mode.CUT else size

    def moved(self, count: int) -> None:
        """So many bytes have moved."""
        if self._state[0] == Mode.CUT:
            with self._lock:
                mode, nth, seen, fired, budget, digest, failure = STATE.unpack_from(self._state)
                STATE.pack_into(self._state, 0, mode, nth, seen, fired, budget - count, digest, failure)

    def _budget(self) -> int:
        return int(STATE.unpack_from(self._state)[4])


def exception(failure: str) -> BaseException:
    """The exception that a failure stands for."""
    plain = {"MemoryError": MemoryError, "RuntimeError": RuntimeError}.get(failure)
    if plain is not None:
        return plain("injected")
    number = getattr(errno, failure)
    return OSError(number, os.strerror(number))


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()[:8]


def _place() -> str | None:
    """The lines of remora that called a primitive: the innermost, and the first two outside of carriers. None for others."""
    lines: list[str] = []
    outer = 0
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and outer < 2:
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE):
            name = code.co_filename.removeprefix(PACKAGE)
            if not name.startswith(OUTSIDE):
                outer += not name.startswith("carriers")
                if not lines or outer:
                    lines.append(f"{name}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return " < ".join(lines) or None
