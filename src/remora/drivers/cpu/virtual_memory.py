"""Virtual memory of the cpu: a reservation is addresses of this process without access, physical memory is a piece of a memfd.

Mapping puts pages of the memfd over the reserved addresses, unmapping puts inaccessible ones there again, so nothing else ever gets
an address of the range while it lives.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ctypes import c_ubyte
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, MAP_SHARED, PROT_READ, PROT_WRITE
from typing import TYPE_CHECKING, Any, cast

from remora.drivers.cpu._ffi import map_memory, protect_memory, unmap_memory
from remora.drivers.cpu.memory import Block
from remora.errors import OutOfMemoryError
from remora.hal.address_range import BackedMemory, RangeReservation
from remora.hal.buffer import Access

if TYPE_CHECKING:
    from remora.drivers.cpu.buffer import CpuBuffer
    from remora.hal.page_table import PageTable
    from remora.hal.virtual_memory import Placement

__all__ = ["CpuPhysicalMemory", "CpuReservation", "Range"]

#: Linux constants that `mmap` does not name.
PROT_NONE, MAP_FIXED, MAP_NORESERVE = 0, 0x10, 0x4000
_EMPTY = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE
_PROTECTION = {Access(0): PROT_NONE, Access.READ: PROT_READ, Access.READ_WRITE: PROT_READ | PROT_WRITE}


class Range:
    """Addresses of this process, given back when the last reference is dropped: operations in flight and views hold one.

    `pages` holds the physical memory that is mapped here.
    """

    __slots__ = ("_origin", "address", "pages", "size")

    def __init__(self, size: int, origin: str) -> None:
        self.size = size
        self._origin = origin
        self.pages: PageTable | None = None
        self.address = 0
        try:
            self.address = map_memory(0, size, PROT_NONE, _EMPTY, -1, 0)
        except OSError as error:
            raise OutOfMemoryError(
                f"no range of {size:,} addresses: {error.strerror}. Close reservations, or raise the limit (ulimit -v)",
                origin=origin,
            ) from error

    def map(self, placement: Placement) -> None:
        """See `AddressRange`: a piece of a memfd."""
        assert isinstance(placement.physical, CpuPhysicalMemory)
        block = placement.physical.backing
        where = self.address + placement.offset, placement.length
        with refusing("map", self._origin):
            flags, start = MAP_SHARED | MAP_FIXED, block.offset + placement.physical_offset
            map_memory(*where, PROT_READ | PROT_WRITE, flags, block.segment.fd, start)

    def unmap(self, offset: int, length: int) -> None:
        """See `AddressRange`."""
        with refusing("unmap", self._origin):
            map_memory(self.address + offset, length, PROT_NONE, _EMPTY | MAP_FIXED, -1, 0)

    def protect(self, offset: int, length: int, access: Access) -> None:
        """See `AddressRange`."""
        with refusing("protect", self._origin):
            protect_memory(self.address + offset, length, _PROTECTION[access])

    def __del__(self) -> None:
        if self.address:
            with suppress(OSError):  # the process is at its limit of mappings, and ends soon
                unmap_memory(self.address, self.size)


class RangeBlock(Block):
    """What the queue sees of a reservation: an address and a view. It is in no segment and goes back to no allocator."""

    __slots__ = ("range",)

    def __init__(self, held: Range) -> None:
        self.range = held
        self.address = held.address
        self.offset = 0
        self.size = self.reserved = held.size
        memory: Any = (c_ubyte * held.size).from_address(held.address)
        memory.range = held  # a view keeps the addresses, whatever else is dropped
        self.view = memoryview(memory).cast("B")

    def retire(self) -> None:
        """Addresses are not counted."""

    def __del__(self) -> None:
        """The range gives itself back."""


class CpuPhysicalMemory(BackedMemory[Block]):
    """A block of the device's memory."""


class CpuReservation(RangeReservation):
    """Addresses of this process."""

    __slots__ = ()

    @property
    def _range(self) -> Range:
        block = cast("CpuBuffer", self.buffer).memory
        assert isinstance(block, RangeBlock)
        return block.range


@contextmanager
def refusing(what: str, origin: str) -> Iterator[None]:
    """What the system refuses inside is an OutOfMemoryError that says what to do."""
    try:
        yield
    except OSError as error:
        raise OutOfMemoryError(
            f"the system refused to {what} pages: {error.strerror or os.strerror(error.errno or 0)}. Map fewer, larger ranges, "
            "or raise vm.max_map_count",
            origin=origin,
        ) from error
