"""Device memory and pinned host memory.

Blocks come from the driver's own pool, which keeps what is given back for the next allocation. They are allocated and freed on a
stream that does nothing else, so an allocation waits for no work; a block is freed when the last operation that uses it is done.
Pages of virtual memory are taken one by one.
"""

from __future__ import annotations

import ctypes
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from remora.drivers.cuda._ffi import OUT_OF_MEMORY, call, driver, failure
from remora.errors import DeviceLostError, Error
from remora.hal.device_memory import DeviceMemory

if TYPE_CHECKING:
    from remora.drivers.cuda._ffi import Context

__all__ = ["Memory", "PinnedPool", "Slot"]

#: Bytes of a piece of pinned memory, and how many pieces are allocated at once and kept at most.
SLOT_BYTES: Final = 64 << 10
SLAB_SLOTS: Final = 16
MOST_SLOTS: Final = 256
KEEP_ALL: Final = (1 << 64) - 1


class Memory(DeviceMemory):
    """A GPU's: blocks by address, pages by handle."""

    def __init__(self, context: Context, device: Any, total: int, origin: str) -> None:
        super().__init__(origin)
        self._context = context
        self._total = total
        self._pool = call(driver.cuDeviceGetDefaultMemPool, device)
        threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        call(driver.cuMemPoolSetAttribute, self._pool, threshold, driver.cuuint64_t(KEEP_ALL))
        self._stream = call(driver.cuStreamCreate, int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))

    def take(self, size: int) -> int:
        """See `DeviceMemory.take`."""
        self._context.enter()
        return super().take(size)

    def take_pages(self, size: int, page: int, properties: Any) -> tuple[Any, ...]:
        """Handles of `size` bytes of physical memory, in pages of `page` bytes. Raises OutOfMemoryError as `take`."""
        if size > self._total:
            raise self._refused(OUT_OF_MEMORY, size)
        pages: list[Any] = []
        try:
            while len(pages) * page < size:
                pages.append(self._page(size, page, properties))
        except BaseException:
            for handle in pages:
                driver.cuMemRelease(handle)
            raise
        with self._lock:
            self._book()
            self._count(size)
        return tuple(pages)

    def shrink(self) -> None:
        """Give what the pool keeps for the next allocation back to the GPU."""
        self._context.enter()
        with self._lock:
            self._settle()
            driver.cuStreamSynchronize(self._stream)
            driver.cuMemPoolTrimTo(self._pool, 0)

    def close(self) -> None:
        """Free everything, and the pool's reserve."""
        self.end_all()
        with suppress(DeviceLostError):
            self.shrink()
        driver.cuStreamDestroy(self._stream)

    def _page(self, size: int, page: int, properties: Any) -> Any:
        code, handle = driver.cuMemCreate(page, properties, 0)
        if code == OUT_OF_MEMORY:  # the pool keeps what buffers gave back
            self.shrink()
            code, handle = driver.cuMemCreate(page, properties, 0)
        if code:
            raise self._refused(code, size)
        return handle

    def _take(self, size: int) -> int:
        code, address = driver.cuMemAllocFromPoolAsync(size, self._pool, self._stream)
        if not code:
            (code,) = driver.cuStreamSynchronize(self._stream)
        if code:
            raise self._refused(code, size)
        return int(address)

    def _free(self, address: int) -> None:
        driver.cuMemFreeAsync(address, self._stream)

    def _refused(self, code: Any, size: int) -> Error:
        if code != OUT_OF_MEMORY:
            return failure(code, "allocating memory")
        self._context.enter()
        return self.missing(size, *map(int, call(driver.cuMemGetInfo)))


class Slot:
    """A piece of pinned host memory."""

    __slots__ = ("address", "view")

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.view = memoryview((ctypes.c_char * size).from_address(address)).cast("B")


class PinnedPool:
    """Pinned pieces of SLOT_BYTES each, for what a stream reads while the host goes on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slots: list[Slot] = []
        self._slabs: list[Any] = []

    def take(self) -> Slot | None:
        """A free piece, or None when all that may be had are in use."""
        with self._lock:
            if not self._slots and len(self._slabs) * SLAB_SLOTS < MOST_SLOTS:
                slab = int(call(driver.cuMemHostAlloc, SLOT_BYTES * SLAB_SLOTS, 0))
                self._slabs.append(slab)
                self._slots = [Slot(slab + SLOT_BYTES * index, SLOT_BYTES) for index in range(SLAB_SLOTS)]
            return self._slots.pop() if self._slots else None

    def give_back(self, slot: Slot) -> None:
        """It is free again."""
        self._slots.append(slot)

    def close(self) -> None:
        """Free all of it."""
        with self._lock:
            self._slots.clear()
            for slab in self._slabs:
                driver.cuMemFreeHost(slab)
            self._slabs.clear()
