"""Device memory and pinned host memory.

Blocks come from the driver's own pool, which keeps what is given back for the next allocation. They are allocated and freed on a
stream that does nothing else, so an allocation waits for no work; a block is freed when the last operation that uses it is done.
Pages of virtual memory are taken one by one.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

from remora.drivers.cuda._ffi import OUT_OF_MEMORY, call, driver, failure
from remora.errors import ClosedError, DeviceLostError, Error, OutOfMemoryError
from remora.hal.memory import LateMemory

if TYPE_CHECKING:
    from remora.drivers.cuda._ffi import Context

__all__ = ["Block", "Memory", "PinnedPool", "Slot"]

#: Bytes of a piece of pinned memory, and how many pieces are allocated at once and kept at most.
SLOT_BYTES: Final = 64 << 10
SLAB_SLOTS: Final = 16
MOST_SLOTS: Final = 256
KEEP_ALL: Final = (1 << 64) - 1


class Block(LateMemory):
    """The memory of one buffer. The buffer and every operation hold it; it goes with the last of them."""

    __slots__ = ("_address", "_memory")

    def __init__(self, memory: Memory, size: int) -> None:
        super().__init__(size)
        self._memory = memory
        self._address = 0

    def _allocate(self) -> None:
        self._address = self._memory.take(self.size)
        self._counted = True
        self._memory.live.add(self)

    def _count_out(self) -> None:
        self._memory.drop(self.size)

    @property
    def address(self) -> int:
        """Where it is. Raises NotMadeError before it is there, and why when it never will be."""
        if not self._address:
            raise self._missing()
        return self._address

    def end(self) -> None:
        """The last reference was dropped, or the device was closed: the memory goes. Safe to repeat."""
        address, self._address = self._address, 0
        if address:
            self._failure = ClosedError("the device of this buffer was closed; open it again")
            self._memory.give_back(address)

    def __del__(self) -> None:
        self.retire()
        self.end()


class Memory:
    """What a device has allocated. Any thread may call any method; `drop` and `give_back` are called by the collector too."""

    def __init__(self, context: Context, device: Any, total: int, origin: str) -> None:
        self._context = context
        self._total = total
        self._origin = origin
        self._lock = threading.Lock()
        self.live: WeakSet[Block] = WeakSet()
        self._buffers = self._bytes = self._bytes_peak = 0
        self._dropped: deque[int] = deque()
        self._free: deque[int] = deque()
        self._stream = call(driver.cuStreamCreate, int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self._pool = call(driver.cuDeviceGetDefaultMemPool, device)
        threshold = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        call(driver.cuMemPoolSetAttribute, self._pool, threshold, driver.cuuint64_t(KEEP_ALL))

    def take(self, size: int) -> int:
        """The address of `size` fresh bytes. Raises OutOfMemoryError that says how much there is."""
        self._context.enter()
        with self._lock:
            self._settle()
            code, address = driver.cuMemAllocFromPoolAsync(max(size, 1), self._pool, self._stream)
            if not code:
                (code,) = driver.cuStreamSynchronize(self._stream)
            if code:
                raise self._error(code, size)
            self._count(size)
            return int(address)

    def take_pages(self, size: int, page: int, properties: Any) -> tuple[Any, ...]:
        """Handles of `size` bytes of physical memory, in pages of `page` bytes. Raises OutOfMemoryError as `take`."""
        if size > self._total:
            raise self._error(OUT_OF_MEMORY, size)
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

    def _page(self, size: int, page: int, properties: Any) -> Any:
        code, handle = driver.cuMemCreate(page, properties, 0)
        if code == OUT_OF_MEMORY:  # the pool keeps what buffers gave back
            self.shrink()
            code, handle = driver.cuMemCreate(page, properties, 0)
        if code:
            raise self._error(code, size)
        return handle

    def shrink(self) -> None:
        """Give what the pool keeps for the next allocation back to the GPU."""
        self._context.enter()
        with self._lock:
            self._settle()
            driver.cuStreamSynchronize(self._stream)
            driver.cuMemPoolTrimTo(self._pool, 0)

    def _count(self, size: int) -> None:
        self._buffers += 1
        self._bytes += size
        self._bytes_peak = max(self._bytes_peak, self._bytes)

    def _error(self, code: Any, size: int) -> Error:
        if code != OUT_OF_MEMORY:
            return failure(code, "allocating memory")
        self._context.enter()
        free, total = call(driver.cuMemGetInfo)
        return OutOfMemoryError(
            f"asked for {size:,} bytes, {free:,} of {total:,} are free on the GPU: close a buffer, or end what else uses it",
            origin=self._origin,
        )

    def drop(self, size: int) -> None:
        """Book a buffer out."""
        self._dropped.append(size)

    def give_back(self, address: int) -> None:
        """Nothing uses it any more. It goes with the next allocation, or with `close`."""
        self._free.append(address)

    def statistics(self) -> tuple[int, int, int]:
        """(buffers, bytes, most bytes)."""
        with self._lock:
            self._book()
            return self._buffers, self._bytes, self._bytes_peak

    def close(self) -> None:
        """Free everything, and the pool's reserve."""
        for block in tuple(self.live):
            block.end()
        with suppress(DeviceLostError):
            self.shrink()
        driver.cuStreamDestroy(self._stream)

    def _settle(self) -> None:
        self._book()
        while self._free:
            driver.cuMemFreeAsync(self._free.popleft(), self._stream)

    def _book(self) -> None:
        while self._dropped:
            self._buffers -= 1
            self._bytes -= self._dropped.popleft()


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
