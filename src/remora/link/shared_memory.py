"""Memory of the peer in this process: a mapping of its file, and copies that release the interpreter lock."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from contextlib import suppress
from ctypes import c_void_p

from remora.errors import PeerError

__all__ = ["SharedSegment", "copy_memory"]

#: memmove(target, source, bytes) on addresses.
_move: Callable[[int, int, int], int | None] = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_void_p, ctypes.c_size_t)(
    ctypes.cast(ctypes.CDLL(None).memmove, c_void_p).value or 0
)


#: madvise(address, bytes, advice); MADV_POPULATE_WRITE makes pages writable, all in one call (Linux 5.14).
_advise: Callable[[int, int, int], int] = ctypes.CFUNCTYPE(ctypes.c_int, c_void_p, ctypes.c_size_t, ctypes.c_int)(
    ctypes.cast(ctypes.CDLL(None).madvise, c_void_p).value or 0
)
POPULATE_WRITE = 23
HUGE_PAGE = 2 << 20
#: What `warm` remembers, in bytes.
GRAIN = 64 << 10


#: Where the memory of an object is, in one C call: nothing is held that an interruption would leave behind.
_locate: Callable[[object, object, object], int] = ctypes.pythonapi.PyObject_AsReadBuffer


def _address(view: memoryview) -> int:
    """Of its first byte, read-only views too. Good as long as the caller has the view, and nobody else releases it."""
    address, size = c_void_p(), ctypes.c_ssize_t()
    _locate(ctypes.py_object(view), ctypes.byref(address), ctypes.byref(size))
    return address.value or 0


def copy_memory(target: memoryview, source: memoryview) -> None:
    """Copy `len(source)` bytes to the beginning of `target`, which has room for them and does not overlap."""
    assert target.nbytes >= source.nbytes
    assert not target.readonly
    _move(_address(target), _address(source), source.nbytes)


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
        _advise(_address(part), end - begin, POPULATE_WRITE)  # where it is refused, the faults come one by one
