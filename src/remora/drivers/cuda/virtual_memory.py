"""Virtual memory of a GPU: reserved addresses, and physical memory in pieces of one page, each with a handle of its own.

CUDA maps an allocation only as a whole, from its first byte on (H200, driver 580: any other offset is CUDA_ERROR_NOT_SUPPORTED).
With a handle for every page, any page can be mapped, unmapped and protected by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from remora.drivers.cuda._ffi import attribute, call, driver
from remora.errors import OutOfMemoryError
from remora.hal.address_range import BackedMemory, RangeReservation
from remora.hal.buffer import Access
from remora.hal.memory import LateMemory

if TYPE_CHECKING:
    from remora.drivers.cuda.buffer import CudaBuffer
    from remora.drivers.cuda.device import CudaDevice
    from remora.hal.page_table import PageTable
    from remora.hal.virtual_memory import Placement

__all__ = ["CudaPhysicalMemory", "CudaReservation", "Pages", "Range", "page_size"]

_FLAGS = driver.CUmemAccess_flags
_PROTECTION = {
    Access(0): _FLAGS.CU_MEM_ACCESS_FLAGS_PROT_NONE,
    Access.READ: _FLAGS.CU_MEM_ACCESS_FLAGS_PROT_READ,
    Access.READ_WRITE: _FLAGS.CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
}


def properties(ordinal: int) -> Any:
    """What physical memory is: pinned, on this GPU."""
    wanted = driver.CUmemAllocationProp()
    wanted.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    wanted.location = location(ordinal)
    return wanted


def location(ordinal: int) -> Any:
    """This GPU, as a place of memory."""
    place = driver.CUmemLocation()
    place.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    place.id = ordinal
    return place


def page_size(device: Any) -> int:
    """What a GPU maps memory in, in bytes; 0 where it has no virtual memory management."""
    if not attribute(device, "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"):
        return 0
    least = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    return int(call(driver.cuMemGetAllocationGranularity, properties(int(device)), least))


class Pages(LateMemory):
    """The pages of one piece of physical memory; they go when this does, and nothing maps them."""

    __slots__ = ("_device", "_memory", "handles")

    def __init__(self, device: CudaDevice, size: int) -> None:
        super().__init__(size)
        self._device = device
        self._memory = device.memory
        self.handles: tuple[Any, ...] = ()

    def _allocate(self) -> None:
        device = self._device
        self.handles = self._memory.take_pages(self.size, device.info.page_size, properties(device.ordinal))
        self._counted = True

    def _count_out(self) -> None:
        self._memory.drop(self.size)

    def __del__(self) -> None:
        self.retire()
        for handle in self.handles:
            driver.cuMemRelease(handle)


class Range:
    """Addresses of the GPU, given back when the last reference is dropped: operations in flight hold one.

    `pages` holds the physical memory that is mapped here. For one thread at a time; the page table sees to that.
    """

    __slots__ = ("__weakref__", "_access", "_mapped", "_page", "address", "pages", "size")

    def __init__(self, device: CudaDevice, size: int) -> None:
        self.size = size
        self.pages: PageTable | None = None
        self.address = 0
        self._page = device.info.page_size
        self._mapped: set[int] = set()
        self._access = driver.CUmemAccessDesc()
        self._access.location = location(device.ordinal)
        code, address = driver.cuMemAddressReserve(size, 0, driver.CUdeviceptr(0), 0)
        if code:
            raise OutOfMemoryError(f"the GPU has no range of {size:,} addresses: close reservations", origin=device.uri)
        self.address = int(address)

    def retire(self) -> None:
        """Addresses are not counted."""

    def map(self, placement: Placement) -> None:
        """See `AddressRange`."""
        offset, physical, physical_offset, length = placement
        assert isinstance(physical, CudaPhysicalMemory)
        place, page = self.address + offset, self._page
        try:
            for number, handle in enumerate(physical.handles(physical_offset, length)):
                call(driver.cuMemMap, place + number * page, page, 0, handle, 0)
                self._mapped.add(offset // page + number)
            self.protect(offset, length, Access.READ_WRITE)
        except BaseException:
            self.unmap(offset, length)
            raise

    def unmap(self, offset: int, length: int) -> None:
        """See `AddressRange`."""
        page = self._page
        self._drop([number for number in range(offset // page, (offset + length) // page) if number in self._mapped])

    def protect(self, offset: int, length: int, access: Access) -> None:
        """See `AddressRange`."""
        self._access.flags = _PROTECTION[access]
        call(driver.cuMemSetAccess, self.address + offset, length, [self._access], 1)

    def _drop(self, pages: Iterable[int]) -> None:
        for first, count in runs(pages):
            call(driver.cuMemUnmap, self.address + first * self._page, count * self._page)
            self._mapped.difference_update(range(first, first + count))

    def __del__(self) -> None:
        if self.address:
            for first, count in runs(sorted(self._mapped)):
                driver.cuMemUnmap(self.address + first * self._page, count * self._page)
            driver.cuMemAddressFree(self.address, self.size)


def runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    """(first, count) of rising numbers that follow each other without a gap."""
    first = last = -1
    for number in chain(numbers, [-1]):
        if number != last + 1 or last < 0:
            if last >= 0:
                yield first, last + 1 - first
            first = number
        last = number


class CudaPhysicalMemory(BackedMemory[Pages]):
    """Pages of the GPU's memory."""

    def handles(self, offset: int, length: int) -> Sequence[Any]:
        """Of these pages. Raises ClosedError when another thread closed it just now."""
        page = self.device.info.page_size
        return self.backing.handles[offset // page : (offset + length) // page]


class CudaReservation(RangeReservation):
    """Addresses of the GPU."""

    __slots__ = ()

    @property
    def _range(self) -> Range:
        held = cast("CudaBuffer", self.buffer).memory
        assert isinstance(held, Range)
        return held
