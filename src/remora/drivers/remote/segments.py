"""Memory of the server that is mapped here: one mapping for each file of it, made when it is first needed (H20, H32)."""

from __future__ import annotations

import os
import threading

from remora.drivers.remote.calls import CALL_TIMEOUT, Call, Calls
from remora.errors import DeadlineError, Error, NotFoundError
from remora.link.latch import Latch
from remora.link.link import Link
from remora.link.shared_memory import SharedSegment
from remora.session.state import Lane
from remora.wire.sharing_calls import SegmentOpen, SegmentOpened

__all__ = ["Segments"]

#: Descriptors that may lie here before the answers that they came with are read.
MAX_PASSED = 16


class Segments:
    """The mappings of one connection. Any thread may call; `get` may block for a round trip.

    A mapping lives until the server says that nothing is in the file any more, or `drop`; then as long as a view of it.
    """

    def __init__(self, link: Link, calls: Calls) -> None:
        self._link = link
        self._calls = calls
        self._asking = threading.Lock()  # one asks at a time; guards nothing that `forget` needs
        self._lock = threading.Lock()
        self._mapped: dict[int, SharedSegment | None] = {}  # None: it cannot be mapped
        self._gone: set[int] = set()
        self._failure: Error | None = None
        link.carriers[Lane.CONTROL].keep_fds(MAX_PASSED)

    def get(self, number: int) -> SharedSegment | None:
        """A segment, or None when it cannot be mapped here or is gone: its descriptor did not arrive, or there is no room for one.

        Raises why the session ended.
        """
        with self._lock:
            if number in self._mapped:
                return self._mapped[number]
        with self._asking:
            with self._lock:
                if number in self._mapped:
                    return self._mapped[number]
            segment = self._open(number)
            with self._lock:
                if self._failure is None and number not in self._gone:
                    self._mapped[number] = segment
                self._gone.discard(number)
            return segment

    def _open(self, number: int) -> SharedSegment | None:
        """Ask for it. The link's thread takes the descriptor, in the order in which they come.

        The bulk lane runs from here on: it is where the server says that a segment is gone.
        """
        self._link.bulk.start()
        passed: list[int | None] = []
        here = Latch()

        def answered(answer: object) -> None:
            passed.append(self._take(answer))
            here.set()

        call = Call(answered)
        self._calls.post(call, SegmentOpen(number))
        self._link.round_trips += 1
        if not here.wait(CALL_TIMEOUT):
            raise DeadlineError(f"{self._link.session.peer} did not send the descriptor of its memory within {CALL_TIMEOUT:g} s")
        fd = passed[0]
        if isinstance(call.answer, NotFoundError):
            return None
        if isinstance(call.answer, Error):
            raise call.answer.copy()
        return None if fd is None else _map(fd, call.answer)

    def _take(self, answer: object) -> int | None:
        return self._link.carriers[Lane.CONTROL].take_fd() if isinstance(answer, SegmentOpened) else None

    def forget(self, number: int) -> None:
        """The server has nothing in this segment any more."""
        with self._lock:
            if number in self._mapped:
                del self._mapped[number]
            else:
                self._gone.add(number)

    def fail(self, error: Error) -> None:
        """The session ended: map nothing more. What is mapped stays until `drop`, so that whoever waits hears of the end first."""
        with self._lock:
            self._failure = error
            self._gone.clear()

    def drop(self) -> None:
        """After `fail`: unmap all but what a view of it is left of. That takes 0.1 s a GiB, and the interpreter's lock."""
        with self._lock:
            self._mapped.clear()


def _map(fd: int, told: SegmentOpened) -> SharedSegment | None:
    """The mapping of this descriptor, which is closed; None when it is another file's, or the system has no room."""
    try:
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino, found.st_size) != (told.st_dev, told.st_ino, told.size):
            return None
        return SharedSegment(fd, told.size)
    except (OSError, ValueError, MemoryError):
        return None
    finally:
        os.close(fd)
