"""Virtual memory of the cpu: a reservation is addresses of this process without access, physical memory is a piece of a memfd.

Mapping puts pages of the memfd over the reserved addresses, unmapping puts inaccessible ones there again, so nothing else ever gets
an address of the range while it lives.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from ctypes import c_ubyte
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, MAP_SHARED, PROT_READ, PROT_WRITE
from typing import TYPE_CHECKING, Any, cast

from remora.drivers.cpu._ffi import map_memory, protect_memory, unmap_memory
from remora.drivers.cpu.buffer import CpuBuffer
from remora.drivers.cpu.memory import Block
from remora.errors import ClosedError, OutOfMemoryError
from remora.hal.buffer import Access
from remora.hal.page_table import Span
from remora.hal.virtual_memory import PhysicalMemory, Placement, Reservation

if TYPE_CHECKING:
    from remora.drivers.cpu.device import CpuDevice
    from remora.hal.page_table import PageTable

__all__ = ["CpuPhysicalMemory", "CpuReservation", "Range"]

#: Linux constants that `mmap` does not name.
PROT_NONE, MAP_FIXED, MAP_NORESERVE = 0, 0x10, 0x4000
_EMPTY = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE
_PROTECTION = {Access(0): PROT_NONE, Access.READ: PROT_READ, Access.READ_WRITE: PROT_READ | PROT_WRITE}


class Range:
    """Addresses of this process, given back when the last reference is dropped: operations in flight and views hold one.

    `pages` holds the physical memory that is mapped here.
    """

    __slots__ = ("address", "pages", "size")

    def __init__(self, size: int, origin: str) -> None:
        self.size = size
        self.pages: PageTable | None = None
        self.address = 0
        try:
            self.address = map_memory(0, size, PROT_NONE, _EMPTY, -1, 0)
        except OSError as error:
            raise OutOfMemoryError(
                f"no range of {size:,} addresses: {error.strerror}. Close reservations, or raise the limit (ulimit -v)",
                origin=origin,
            ) from error

    def map(self, offset: int, block: Block, block_offset: int, length: int) -> None:
        """Put a piece of a memfd there."""
        where = block.offset + block_offset
        map_memory(self.address + offset, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, block.segment.fd, where)

    def unmap(self, offset: int, length: int) -> None:
        """Put nothing there."""
        map_memory(self.address + offset, length, PROT_NONE, _EMPTY | MAP_FIXED, -1, 0)

    def protect(self, offset: int, length: int, access: Access) -> None:
        """Allow this much."""
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


class CpuPhysicalMemory(PhysicalMemory):
    """A block of the device's memory, counted like a buffer."""

    def __init__(self, device: CpuDevice, block: Block) -> None:
        super().__init__(device, block.size)
        self._block: Block | None = block

    @property
    def block(self) -> Block:
        """The memory. Raises ClosedError when another thread closed it just now."""
        block = self._block
        if block is None:
            raise ClosedError(f"{self!r} was closed; allocate new physical memory")
        return block

    def _release(self) -> None:
        block, self._block = self._block, None
        if block is not None:
            block.retire()

    def _abandon(self) -> None:
        """The page tables that map it hold this object, and with it the block."""
        if self._block is not None:
            self._block.retire()


class CpuReservation(Reservation):
    """Addresses of this process."""

    __slots__ = ()

    def __init__(self, device: CpuDevice, size: int) -> None:
        super().__init__(CpuBuffer(device, RangeBlock(Range(size, device.uri))))
        self._range.pages = self._table

    @property
    def _range(self) -> Range:
        block = cast("CpuBuffer", self.buffer).memory
        assert isinstance(block, RangeBlock)
        return block.range

    def _map(self, placements: Sequence[Placement]) -> None:
        held, done = self._range, []
        try:
            for placement in placements:
                offset, physical, physical_offset, length = placement
                assert isinstance(physical, CpuPhysicalMemory)
                held.map(offset, physical.block, physical_offset, length)
                done.append(placement)
        except BaseException as error:
            for placement in done:
                held.unmap(placement.offset, placement.length)
            if isinstance(error, OSError):
                raise self._refused("map", error) from error
            raise

    def _unmap(self, offset: int, length: int) -> None:
        try:
            self._range.unmap(offset, length)
        except OSError as error:
            raise self._refused("unmap", error) from error

    def _protect(self, spans: Sequence[Span], access: Access) -> None:
        held, done = self._range, []
        try:
            for span in spans:
                held.protect(span.offset, span.length, access)
                done.append(span)
        except OSError as error:
            for span in done:
                with suppress(OSError):
                    held.protect(span.offset, span.length, span.access)
            raise self._refused("protect", error) from error

    def _refused(self, what: str, error: OSError) -> OutOfMemoryError:
        return OutOfMemoryError(
            f"the system refused to {what} pages: {error.strerror or os.strerror(error.errno or 0)}. Map fewer, larger ranges, "
            "or raise vm.max_map_count",
            origin=self.device.uri,
        )
