"""Device memory and pinned host memory.

Freeing waits for everything that runs on the GPU, so a block that nothing uses any more is freed with the next allocation.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_size_t, c_void_p
from typing import TYPE_CHECKING, Final

from remora.drivers.hip._ffi import OUT_OF_MEMORY
from remora.hal.device_memory import DeviceMemory

if TYPE_CHECKING:
    from remora.drivers.hip._ffi import Runtime

__all__ = ["COHERENT", "SLOT_BYTES", "Memory", "PinnedPool", "Slot"]

#: hipHostMallocCoherent: what the GPU writes is seen by the host while the GPU works.
COHERENT: Final = 0x40000000
#: Bytes of a piece of pinned memory, and how many pieces are allocated at once and kept at most.
SLOT_BYTES: Final = 64 << 10
SLAB_SLOTS: Final = 16
MOST_SLOTS: Final = 64


class Memory(DeviceMemory):
    """A GPU's blocks."""

    def __init__(self, runtime: Runtime, origin: str) -> None:
        super().__init__(origin)
        self._runtime = runtime

    def take(self, size: int) -> int:
        """See `DeviceMemory.take`."""
        self._runtime.enter()
        return super().take(size)

    def _take(self, size: int) -> int:
        place = c_void_p()
        code = self._runtime.raw["hipMalloc"](byref(place), size)
        if code and code != OUT_OF_MEMORY:
            raise self._runtime.failure(code, "hipMalloc")
        if not place.value:
            raise self.missing(size, *free_and_total(self._runtime))
        return place.value

    def _free(self, address: int) -> None:
        self._runtime.raw["hipFree"](address)


def free_and_total(runtime: Runtime) -> tuple[int, int]:
    """Bytes of the GPU's memory."""
    free, total = c_size_t(), c_size_t()
    runtime.call("hipMemGetInfo", byref(free), byref(total))
    return free.value, total.value


class Slot:
    """A piece of pinned host memory."""

    __slots__ = ("address", "view")

    def __init__(self, address: int) -> None:
        self.address = address
        self.view = memoryview((ctypes.c_char * SLOT_BYTES).from_address(address)).cast("B")


class PinnedPool:
    """Pinned pieces of SLOT_BYTES each for one queue, through which all bytes go between host memory and the GPU.

    The runtime copies asynchronously only where memory is pinned, and when other memory may be used again differs between its
    versions. One thread takes, any gives back.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._slots: list[Slot] = []
        self._slabs: list[int] = []

    def take(self) -> Slot | None:
        """A free piece, or None when all that may be had are in use."""
        if not self._slots and len(self._slabs) * SLAB_SLOTS < MOST_SLOTS:
            slab = self._runtime.made("hipHostMalloc", SLOT_BYTES * SLAB_SLOTS, COHERENT)
            self._slabs.append(slab)
            self._slots.extend(Slot(slab + SLOT_BYTES * index) for index in range(SLAB_SLOTS))
        return self._slots.pop() if self._slots else None

    def give_back(self, slot: Slot) -> None:
        """It is free again."""
        self._slots.append(slot)

    def close(self) -> None:
        """Free all of it."""
        self._slots.clear()
        while self._slabs:
            self._runtime.raw["hipHostFree"](self._slabs.pop())
