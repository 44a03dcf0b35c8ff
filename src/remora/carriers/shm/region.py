"""The shared memory of one connection, made by one side and checked by the other before it is mapped."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from remora.carriers.shm.ring import CONTROL_BYTES, Ring

__all__ = ["DESCRIPTORS", "OFFER", "Region", "make_region", "take_region"]

#: What travels with the descriptors: magic, version, capacity of each ring in bytes.
OFFER: Final = struct.Struct("<8sIIQ")
MAGIC: Final = b"shm ring"
VERSION: Final = 1
#: memfd, then data and room eventfd of the ring towards the maker, then of the one towards the taker.
DESCRIPTORS: Final = 5
CAPACITY: Final = 1 << 20
MAX_CAPACITY: Final = 1 << 26
#: Nobody can cut the memory under the other's mapping, which would be a SIGBUS.
SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
PAGE: Final = mmap.PAGESIZE


class Region:
    """Two rings in a mapped memfd. Owns the mapping and the descriptors until `close`."""

    def __init__(self, fds: Sequence[int], capacity: int) -> None:
        self.fds = tuple(fds)
        self.capacity = capacity
        memory, data_in, room_in, data_out, room_out = fds
        self._map = mmap.mmap(memory, _size(capacity))
        view = memoryview(self._map)
        #: Towards the maker of the region, and towards the taker.
        self.to_maker = Ring(view, memory, PAGE - CONTROL_BYTES, capacity, data_in, room_in)
        self.to_taker = Ring(view, memory, 2 * PAGE - CONTROL_BYTES + capacity, capacity, data_out, room_out)
        view.release()

    @property
    def offer(self) -> bytes:
        """The bytes that travel with `fds`."""
        return OFFER.pack(MAGIC, VERSION, 0, self.capacity)

    def close(self) -> None:
        """Unmap and close, once and when nobody uses the rings."""
        for ring in (self.to_maker, self.to_taker):
            ring.control.release()
            ring.data.release()
        self._map.close()
        for fd in self.fds:
            os.close(fd)


def make_region(capacity: int = CAPACITY) -> Region:
    """New rings, empty."""
    fds = [os.memfd_create("remora ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)]
    try:
        os.ftruncate(fds[0], _size(capacity))
        fcntl.fcntl(fds[0], fcntl.F_ADD_SEALS, SEALS)
        fds += [os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(DESCRIPTORS - 1)]
        return Region(fds, capacity)
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise


def take_region(offer: bytes, fds: Sequence[int]) -> Region:
    """The rings that the other side made; the descriptors belong to the region. Raises OSError for anything that is not sound."""
    try:
        if len(offer) != OFFER.size or len(fds) != DESCRIPTORS:
            raise OSError(errno.EBADMSG, f"an offer of {len(offer)} bytes with {len(fds)} descriptors is no shared memory")
        magic, version, zero, capacity = OFFER.unpack(offer)
        if magic != MAGIC or version != VERSION or zero or not PAGE <= capacity <= MAX_CAPACITY or capacity & capacity - 1:
            raise OSError(errno.EBADMSG, f"an offer of {capacity} bytes of shared memory, version {version}, is none of ours")
        if fcntl.fcntl(fds[0], fcntl.F_GET_SEALS) & SEALS != SEALS or os.fstat(fds[0]).st_size != _size(capacity):
            raise OSError(errno.EBADMSG, "the shared memory that was offered is not sealed, or has another size than it says")
        for fd in fds[1:]:
            if str(Path(f"/proc/self/fd/{fd}").readlink()) != "anon_inode:[eventfd]":
                raise OSError(errno.EBADMSG, "one of the descriptors that came with shared memory is no eventfd")
            os.set_blocking(fd, False)
        return Region(fds, capacity)
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise


def _size(capacity: int) -> int:
    return 2 * (PAGE + capacity)
