"""A file of memory and its mapping here: a `hal.memory_file.MemoryFile` that devices cut buffers and staging from."""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import suppress
from ctypes import addressof, c_char

__all__ = ["Segment"]

HUGE_PAGE = 2 << 20
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Segment:
    """A memfd and its mapping. The mapping lives as long as any view of it; the descriptor as long as the segment.

    Its size is sealed: a process that has the descriptor cannot make it shorter, which would kill whoever touches the mapping.
    """

    __slots__ = ("__weakref__", "_map", "_pin", "address", "fd", "size", "view")

    def __init__(self, size: int) -> None:
        self.fd = -1
        self.fd = os.memfd_create("remora", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.size = size
        try:
            os.ftruncate(self.fd, size)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)
            self._map = mmap.mmap(self.fd, size)
        except BaseException:
            os.close(self.fd)
            self.fd = -1
            raise
        if size > HUGE_PAGE:
            with suppress(OSError):  # a kernel without huge pages
                self._map.madvise(mmap.MADV_HUGEPAGE)
        self._pin = c_char.from_buffer(self._map)
        self.address = addressof(self._pin)
        self.view = memoryview(self._map)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)

    def discard(self, offset: int, size: int) -> None:
        """Give the pages of a range back to the system; it reads as zeros afterwards."""
        self._map.madvise(mmap.MADV_REMOVE, offset, size)
