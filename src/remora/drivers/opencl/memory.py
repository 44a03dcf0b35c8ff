"""Device memory: an OpenCL buffer object, which may come late, and the book of how much of the device is taken.

The object of a buffer is asked for at once, but a runtime may set memory aside only when a kernel first touches it. So the book is
what refuses a request that the device cannot meet, with how much is asked for and how much is there.
"""

from __future__ import annotations

import threading
from collections import deque

import pyopencl as cl

from remora.drivers.opencl.failures import failing
from remora.errors import OutOfMemoryError
from remora.hal.memory import LateMemory

__all__ = ["Book", "Memory"]

FLAGS = cl.mem_flags.READ_WRITE


class Book:
    """What is allocated on one device. Any thread may call any method; the garbage collector may call `drop` at any moment."""

    def __init__(self, context: cl.Context, total: int, origin: str) -> None:
        self.context = context
        self._total = total
        self._origin = origin
        self._lock = threading.Lock()
        self._dropped: deque[tuple[int, int]] = deque()
        self._reserved = 0
        self.buffers = 0
        self.bytes_live = 0
        self.bytes_peak = 0

    def take(self, size: int) -> None:
        """Book a buffer in. Raises OutOfMemoryError."""
        with self._lock:
            self._sort_in()
            free = self._total - self._reserved
            if size > free:
                raise OutOfMemoryError(
                    f"asked for {size:,} bytes, {max(free, 0):,} of {self._total:,} are free: close buffers first",
                    origin=self._origin,
                )
            self._reserved += size
            self.buffers += 1
            self.bytes_live += size
            self.bytes_peak = max(self.bytes_peak, self.bytes_live)

    def refused(self, size: int, reason: cl.Error) -> OutOfMemoryError:
        """The error of a buffer that is booked, and that OpenCL has no memory for: other programs use the device too."""
        free = self._total - self._reserved + size
        return OutOfMemoryError(
            f"asked for {size:,} bytes, {free:,} of {self._total:,} are free by this count, and OpenCL refused ({reason}): "
            "close buffers, or end what else uses the device",
            origin=self._origin,
        )

    def drop(self, live: int, reserved: int) -> None:
        """Book out: bytes of a buffer that was closed, bytes that went back. Only noted, since the lock may be held."""
        self._dropped.append((live, reserved))

    def statistics(self) -> tuple[int, int, int]:
        """(live buffers, live bytes, most bytes that were live)."""
        with self._lock:
            self._sort_in()
            return self.buffers, self.bytes_live, self.bytes_peak

    def _sort_in(self) -> None:
        while self._dropped:
            live, reserved = self._dropped.popleft()
            self._reserved -= reserved
            if live >= 0:
                self.buffers -= 1
                self.bytes_live -= live


class Memory(LateMemory):
    """The memory of one buffer. The buffer and every submitted operation hold it; it goes with the last of them."""

    __slots__ = ("_book", "_booked", "_object", "_owned")

    def __init__(self, book: Book, size: int, *, owned: bool = False) -> None:
        super().__init__(size)
        self._book = book
        self._owned = owned  # a global of an executable, which does not count as one of the device's buffers
        self._booked = False
        self._object: cl.Buffer | None = None

    def _allocate(self) -> None:
        if not self._owned:
            self._book.take(self.size)
            self._booked = self._counted = True
        try:
            self._object = cl.Buffer(self._book.context, FLAGS, max(self.size, 1))
        except cl.Error as refusal:
            raise self._book.refused(self.size, refusal) from None

    def _count_out(self) -> None:
        self._book.drop(self.size, 0)

    @property
    def object(self) -> cl.Buffer:
        """The OpenCL buffer. Raises NotMadeError before it is there, and why when it never will be."""
        if self._object is None:
            raise self._missing()
        return self._object

    def part(self, offset: int, size: int) -> cl.Buffer:
        """The OpenCL buffer of a range that begins at the device's base alignment; all of it for a range without bytes."""
        whole = self.object
        if not size or (not offset and size == self.size):
            return whole
        with failing(f"{size} bytes at {offset} of a buffer"):
            return whole.get_sub_region(offset, size)

    def __del__(self) -> None:
        self.retire()
        if self._booked:
            self._book.drop(-1, self.size)
