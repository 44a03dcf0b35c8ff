"""Device memory and pinned host memory.

Freeing waits for everything that runs on the GPU, so a block that nothing uses any more is freed with the next allocation.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from ctypes import byref, c_size_t, c_void_p
from typing import TYPE_CHECKING, Final

from remora.drivers.hip._ffi import OUT_OF_MEMORY
from remora.errors import Error, OutOfMemoryError
from remora.hal.memory import LateMemory

if TYPE_CHECKING:
    from remora.drivers.hip._ffi import Runtime

__all__ = ["COHERENT", "SLOT_BYTES", "Block", "Memory", "PinnedPool", "Slot"]

#: hipHostMallocCoherent: what the GPU writes is seen by the host while the GPU works.
COHERENT: Final = 0x40000000
#: Bytes of a piece of pinned memory, and how many pieces are allocated at once and kept at most.
SLOT_BYTES: Final = 64 << 10
SLAB_SLOTS: Final = 16
MOST_SLOTS: Final = 64


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

    def _count_out(self) -> None:
        self._memory.drop(self.size)

    @property
    def address(self) -> int:
        """Where it is. Raises NotMadeError before it is there, and why when it never will be."""
        if not self._address:
            raise self._missing()
        return self._address

    def __del__(self) -> None:
        self.retire()
        if self._address:
            self._memory.give_back(self._address)


class Memory:
    """What a device has allocated. Any thread may call any method; `drop` and `give_back` are called by the collector too."""

    def __init__(self, runtime: Runtime, origin: str) -> None:
        self._runtime = runtime
        self._origin = origin
        self._lock = threading.Lock()
        self._buffers = self._bytes = self._bytes_peak = 0
        self._dropped: deque[int] = deque()
        self._free: deque[int] = deque()
        self._closed = False

    def take(self, size: int) -> int:
        """The address of `size` fresh bytes. Raises OutOfMemoryError that says how much there is."""
        self._runtime.enter()
        place = c_void_p()
        with self._lock:
            self._settle()
            code = self._runtime.raw["hipMalloc"](byref(place), max(size, 1))
            if code or not place.value:
                raise self._error(code, size)
            self._buffers += 1
            self._bytes += size
            self._bytes_peak = max(self._bytes_peak, self._bytes)
            return place.value

    def _error(self, code: int, size: int) -> Error:
        if code != OUT_OF_MEMORY:
            return self._runtime.failure(code, "hipMalloc")
        free, total = free_and_total(self._runtime)
        return OutOfMemoryError(
            f"asked for {size:,} bytes, {free:,} of {total:,} are free on the GPU: close a buffer, or end what else uses it",
            origin=self._origin,
        )

    def drop(self, size: int) -> None:
        """Book a buffer out."""
        self._dropped.append(size)

    def give_back(self, address: int) -> None:
        """Nothing uses it any more. It goes with the next allocation, or with `close`; after that, at once."""
        self._free.append(address)
        if self._closed:
            self._settle()

    def statistics(self) -> tuple[int, int, int]:
        """(buffers, bytes, most bytes)."""
        with self._lock:
            self._book()
            return self._buffers, self._bytes, self._bytes_peak

    def close(self) -> None:
        """Free what was given back."""
        with self._lock:
            self._closed = True
            self._settle()

    def _settle(self) -> None:
        self._book()
        while self._free:
            self._runtime.raw["hipFree"](self._free.popleft())

    def _book(self) -> None:
        while self._dropped:
            self._buffers -= 1
            self._bytes -= self._dropped.popleft()


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
