"""Memory of the peer in this process: a mapping of its file."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from contextlib import suppress
from ctypes import c_void_p

from remora.errors import PeerError
from remora.hal.copying import address_of

__all__ = ["SharedSegment"]

#: madvise(address, bytes, advice); MADV_POPULATE_WRITE makes pages writable, all in one call (Linux 5.14).
_advise: Callable[[int, int, int], int] = ctypes.CFUNCTYPE(ctypes.c_int, c_void_p, ctypes.c_size_t, ctypes.c_int)(
    ctypes.cast(ctypes.CDLL(None).madvise, c_void_p).value or 0
)
POPULATE_WRITE = 23
HUGE_PAGE = 2 << 20
#: What `warm` remembers, in bytes.
GRAIN = 64 << 10


class SharedSegment:
    """A mapped memory file. It stays mapped as long as any view of it, whatever becomes of the one who made it."""

    __slots__ = ("_view", "_warm", "size")

    def __init__(self, fd: int, size: int) -> None:
        """The descriptor stays the caller's. Raises OSError when the system has no room for a mapping."""
        mapped = mmap.mmap(fd, size)
        if size > HUGE_PAGE:
            with suppress(OSError):  # a kernel without huge pages
                mapped.madvise(mmap.MADV_HUGEPAGE)
        self._view = memoryview(mapped)
        self._warm = bytearray(-(-size // GRAIN))
        self.size = size

    def part(self, offset: int, size: int) -> memoryview:
        """These bytes, writable. Raises PeerError when the peer named what is not inside."""
        if offset + size > self.size:
            raise PeerError(f"{size} bytes at {offset} are not inside a segment of {self.size} bytes")
        return self._view[offset : offset + size]

    def warm(self, offset: int, size: int) -> None:
        """Get ready to write these bytes for the first time: one call costs half of what a fault for each page does."""
        first, last = offset // GRAIN, -(-(offset + size) // GRAIN)
        if 0 not in self._warm[first:last]:
            return
        self._warm[first:last] = b"\1" * (last - first)
        begin, end = offset // mmap.PAGESIZE * mmap.PAGESIZE, min(-(-(offset + size) // mmap.PAGESIZE) * mmap.PAGESIZE, self.size)
        part = self._view[begin:end]
        _advise(address_of(part), end - begin, POPULATE_WRITE)  # where it is refused, the faults come one by one
