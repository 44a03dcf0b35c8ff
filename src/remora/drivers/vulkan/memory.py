"""Device memory: few large pieces of the driver's, cut into size classes, because drivers limit how many pieces there are.

    size class           piece                             when given back
    256 B to 256 KiB     a part of 4 MiB, powers of two    kept for the next of its class
    above                one of its own                    goes at once

A block goes back when its last holder drops it: the buffer, and each submitted operation that uses it.
"""

from __future__ import annotations

import threading
from collections import deque
from ctypes import addressof, byref, c_char, c_uint64, c_void_p
from typing import TYPE_CHECKING
from weakref import WeakSet

from remora.drivers.vulkan import _ffi as ffi
from remora.drivers.vulkan.result import check
from remora.errors import ClosedError, OutOfMemoryError
from remora.hal.memory import LateMemory

if TYPE_CHECKING:
    from remora.drivers.vulkan.logical import Logical
    from remora.drivers.vulkan.physical import MemoryKind

__all__ = ["Block", "Memory", "Pool", "Segment"]

ALIGNMENT = 256
LARGEST_CLASS = 256 << 10
CHUNK = 4 << 20


class Segment:
    """A piece of memory with a VkBuffer over all of it. `host` is where the program sees it, or 0. Goes with its last reference."""

    __slots__ = ("__weakref__", "_logical", "_memory", "address", "buffer", "host", "size")

    def __init__(self, logical: Logical, size: int, kind: MemoryKind) -> None:
        self._logical: Logical | None = None
        self._logical = logical.hold()
        self._memory = self.buffer = self.host = 0
        self.size = size
        self.buffer = logical.new_buffer(size)
        self._memory = self._allocate(logical, kind)
        vk = logical.vk
        check(vk.vkBindBufferMemory(logical.handle, self.buffer, self._memory, 0), "binding memory")
        if kind.mapped:
            place = c_void_p()
            check(vk.vkMapMemory(logical.handle, self._memory, 0, size, 0, byref(place)), f"mapping {size:,} bytes")
            self.host = place.value or 0
        self.address: int = vk.vkGetBufferDeviceAddress(logical.handle, byref(ffi.VkBufferDeviceAddressInfo(buffer=self.buffer)))

    def _allocate(self, logical: Logical, kind: MemoryKind) -> int:
        needs = ffi.VkMemoryRequirements()
        logical.vk.vkGetBufferMemoryRequirements(logical.handle, self.buffer, byref(needs))
        flags = ffi.VkMemoryAllocateFlagsInfo(flags=ffi.VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT)
        info = ffi.VkMemoryAllocateInfo(pNext=addressof(flags), allocationSize=needs.size, memoryTypeIndex=kind.index)
        memory = c_uint64()
        result = logical.vk.vkAllocateMemory(logical.handle, byref(info), None, byref(memory))
        check(result, f"allocating {self.size:,} bytes")
        return memory.value

    def view(self, offset: int, size: int) -> memoryview:
        """The bytes as the program sees them; the view keeps the memory. Only where it is mapped."""
        if not size:
            return memoryview(bytearray())
        array = (c_char * size).from_address(self.host + offset)
        array.segment = self  # type: ignore[attr-defined]  # a view holds the array, and so the memory
        return memoryview(array).cast("B")

    def __del__(self) -> None:
        logical = self._logical
        if logical is None:
            return
        if self.buffer:
            logical.vk.vkDestroyBuffer(logical.handle, self.buffer, None)
        if self._memory:
            logical.vk.vkFreeMemory(logical.handle, self._memory, None)
        logical.let_go()


class Block:
    """A part of a segment. Goes back to its pool with its last reference."""

    __slots__ = ("_free", "_view", "address", "offset", "segment", "size")

    def __init__(self, segment: Segment, offset: int, size: int, free: deque[tuple[Segment, int]] | None) -> None:
        self.segment = segment
        self.offset = offset
        self.size = size
        self.address = segment.address + offset
        self._free = free
        self._view = segment.view(offset, size) if segment.host else None

    @property
    def view(self) -> memoryview:
        """The bytes; only where the program sees them."""
        assert self._view is not None
        return self._view

    def __del__(self) -> None:
        if self._free is not None:
            self._free.append((self.segment, self.offset))


class Memory(LateMemory):
    """The memory of one buffer. The buffer and every submitted operation hold it; it goes with the last of them."""

    __slots__ = ("_block", "_pool")

    def __init__(self, pool: Pool, size: int) -> None:
        super().__init__(size)
        self._pool = pool
        self._block: Block | None = None

    def _allocate(self) -> None:
        self._block = self._pool.allocate(self.size)
        self._counted = True
        self._pool.live.add(self)

    def _count_out(self) -> None:
        self._pool.drop(self.size)

    def adopt(self, segment: Segment) -> Memory:
        """Take a segment that the pool knows nothing of."""
        self._block = Block(segment, 0, self.size, None)
        self._pool.live.add(self)
        return self

    def leave(self) -> None:
        """The device was closed: the memory goes, but for what the program still looks at."""
        self._block = None
        self._failure = ClosedError("the device of this buffer was closed; open it again")

    @property
    def block(self) -> Block:
        """Where it is. Raises NotMadeError before it is there, and why when it never will be."""
        block = self._block
        if block is None:
            raise self._missing()
        return block

    def at(self, offset: int, size: int) -> memoryview:
        """The bytes of a range, where the program sees them. Raises as `block` does."""
        return self.block.view[offset : offset + size]

    def __del__(self) -> None:
        self.retire()


class Pool:
    """What buffers are allocated from. `limit` is the size of the heap in bytes, and what may be live at once."""

    def __init__(self, logical: Logical, kind: MemoryKind, limit: int, uri: str) -> None:
        self.live: WeakSet[Memory] = WeakSet()
        self._logical = logical
        self._kind = kind
        self._limit = limit
        self._uri = uri
        self._lock = threading.Lock()
        self._free: dict[int, deque[tuple[Segment, int]]] = {}
        self._buffers = self._bytes = self._bytes_peak = 0
        self._dropped: deque[int] = deque()

    def allocate(self, size: int) -> Block:
        """A block that counts. Raises OutOfMemoryError that says how much there is."""
        with self._lock:
            self._count_dropped()
            if self._bytes + size > self._limit:
                raise self._exhausted(size, self._limit - self._bytes)
            try:
                block = self._block(size)
            except OutOfMemoryError:
                free = self._logical.physical.free_bytes(self._kind.heap)
                raise self._exhausted(size, self._limit - self._bytes if free is None else free) from None
            self._buffers += 1
            self._bytes += size
            self._bytes_peak = max(self._bytes_peak, self._bytes)
        return block

    def drop(self, size: int) -> None:
        """Book a buffer out. It may be the garbage collector that drops it, while the lock is held: only note it."""
        self._dropped.append(size)

    def statistics(self) -> tuple[int, int, int]:
        """Buffers, bytes, and the most bytes there were at once."""
        with self._lock:
            self._count_dropped()
            return self._buffers, self._bytes, self._bytes_peak

    def close(self) -> None:
        """The device ends: nothing runs any more."""
        for memory in tuple(self.live):
            memory.leave()
        with self._lock:
            self._free.clear()

    def _block(self, size: int) -> Block:
        if size > LARGEST_CLASS:
            return Block(Segment(self._logical, -(-size // ALIGNMENT) * ALIGNMENT, self._kind), 0, size, None)
        each = max(ALIGNMENT, 1 << max(size - 1, 0).bit_length())
        free = self._free.setdefault(each, deque())
        try:
            segment, offset = free.pop()
        except IndexError:
            segment, offset = Segment(self._logical, CHUNK, self._kind), 0
            free.extend((segment, start) for start in range(CHUNK - each, 0, -each))
        return Block(segment, offset, size, free)

    def _count_dropped(self) -> None:
        while self._dropped:
            self._buffers -= 1
            self._bytes -= self._dropped.popleft()

    def _exhausted(self, size: int, free: int) -> OutOfMemoryError:
        return OutOfMemoryError(
            f"{self._logical.physical.name}: asked for {size:,} bytes, {free:,} of {self._limit:,} are free: close a buffer first",
            origin=self._uri,
        )
