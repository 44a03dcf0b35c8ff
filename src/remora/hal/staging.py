"""Host memory through which bytes reach memory that the host cannot address.

It lies in files, so that a client on this machine writes its bytes there itself, and it is kept for the next transfer: the first
touch of fresh memory costs ten times a warm copy. A driver may have it pinned, so that its hardware copies at full speed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from remora.hal.memory_file import MemoryPlace
from remora.hal.memory_segment import Segment

__all__ = ["LEAST", "Staging", "StagingPool"]

#: Bytes of the smallest transfer that is staged, and of everything that is staged or kept at once.
LEAST = 256 << 10
MOST = 2 << 30


class Staging:
    """Memory for one transfer, until `give_back`. `view` has its bytes; what they are at first is undefined."""

    __slots__ = ("_pool", "_segment", "view")

    def __init__(self, pool: StagingPool, segment: Segment, size: int) -> None:
        self._pool = pool
        self._segment: Segment | None = segment
        self.view = segment.view[:size]

    def place(self) -> MemoryPlace:
        """Where others find it."""
        assert self._segment is not None  # it was not given back
        return MemoryPlace(self._segment, 0)

    def give_back(self) -> None:
        """Nothing uses it any more. Safe to repeat."""
        segment, self._segment = self._segment, None
        if segment is not None:
            self._pool._take_back(segment)


class StagingPool:
    """The staging memory of one device. Any thread may call.

    `pin` is called with each file's memory when it is made, `unpin` before it goes; what `pin` raises does no harm.
    """

    def __init__(self, pin: Callable[[Segment], None] | None = None, unpin: Callable[[Segment], None] | None = None) -> None:
        self._pin = pin
        self._unpin = unpin
        self._lock = threading.Lock()
        self._free: list[Segment] = []
        self._bytes = 0
        self._closed = False

    def take(self, size: int) -> Staging | None:
        """Memory of `size` bytes, or None when it is too little to stage, or more than there is room for now."""
        if size < LEAST:
            return None
        with self._lock:
            if self._closed:
                return None
            segment = self._fitting(size) or self._fresh(size)
        return None if segment is None else Staging(self, segment, size)

    def close(self) -> None:
        """Give free memory back; the rest goes when it is given back. Safe to repeat."""
        with self._lock:
            self._closed = True
            self._drop_free()

    def _take_back(self, segment: Segment) -> None:
        with self._lock:
            self._free.append(segment)
            if self._closed:
                self._drop_free()

    def _fitting(self, size: int) -> Segment | None:
        """The smallest free file with room, unless most of it would lie idle."""
        free = [segment for segment in self._free if size <= segment.size <= 4 * size]
        found = min(free, key=lambda segment: segment.size, default=None)
        if found is not None:
            self._free.remove(found)
        return found

    def _fresh(self, size: int) -> Segment | None:
        room = rounded(size)
        if self._bytes + room > MOST:
            self._drop_free()
        if self._bytes + room > MOST:
            return None
        try:
            segment = Segment(room)
            if self._pin is not None:
                self._pin(segment)
        except (OSError, MemoryError):
            return None
        self._bytes += room
        return segment

    def _drop_free(self) -> None:
        while self._free:
            segment = self._free.pop()
            self._bytes -= segment.size
            if self._unpin is not None:
                self._unpin(segment)


def rounded(size: int) -> int:
    """Sizes that are alike share a file: up to an eighth more than asked for, whole pages."""
    step = max((1 << (size - 1).bit_length()) // 8, LEAST)
    return -(-size // step) * step
