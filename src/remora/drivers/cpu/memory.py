"""Device memory: memfds, so that another process can map it, cut into size classes and reused.

    size class           segment                      when freed
    64 B to 256 KiB      chunk of a 2 MiB memfd       kept
    to 8 MiB             chunk of a 64 MiB memfd      kept warm; beyond the limit its pages go back, its place stays
    above                a memfd of its own           kept warm; beyond the limit it is unmapped

Reuse matters: the first touch of fresh memory costs ten times a warm copy. Memory that a submitted operation still uses is not
freed: the operation holds the block, and the block goes back when its last holder drops it.
"""

from __future__ import annotations

import threading
from collections import deque

from remora.drivers.cpu.processor import available_bytes
from remora.errors import ClosedError, OutOfMemoryError
from remora.hal.memory_segment import Segment

__all__ = ["Block", "Memory", "size_class"]

KIB = 1 << 10
MIB = 1 << 20
ALIGNMENT = 64
SMALL = 256 * KIB
MEDIUM = 8 * MIB
SMALL_SEGMENT = 2 * MIB
MEDIUM_SEGMENT = 64 * MIB
#: From this class on a chunk is whole pages, so its pages can go back to the system.
PAGED = 64 * KIB
#: Warm free memory is kept up to this, or a quarter of what is live, whichever is more.
WARM_BYTES = 256 * MIB
#: Allocations from this size on ask the system first whether it has that much.
ASK_FIRST = 16 * MIB


def size_class(size: int) -> int:
    """The bytes set aside for `size` bytes: at most half more, at most an eighth more above 8 MiB; a multiple of 64."""
    if size <= ALIGNMENT:
        return ALIGNMENT
    power = 1 << (size - 1).bit_length()
    step = power // 16 if size > MEDIUM else max(power // 4, ALIGNMENT)
    return -(-size // step) * step


class Block:
    """The memory of one buffer: `size` bytes at `offset` of a segment. Goes back when the last reference is dropped."""

    __slots__ = ("__weakref__", "_live", "_memory", "address", "offset", "reserved", "segment", "size", "view")

    def __init__(self, memory: Memory, segment: Segment, offset: int, reserved: int, size: int) -> None:
        self._memory = memory
        self._live = True
        self.segment = segment
        self.offset = offset
        self.reserved = reserved
        self.size = size
        self.address = segment.address + offset
        self.view = segment.view[offset : offset + size]

    def at(self, offset: int, size: int) -> memoryview:
        """The bytes of a range."""
        return self.view[offset : offset + size]

    def retire(self) -> None:
        """See `remora.hal.memory.Memory`."""
        if self._live:
            self._live = False
            self._memory._count_out(self.size)

    def __del__(self) -> None:
        self._memory._take_back(self.segment, self.offset, self.reserved, self.size if self._live else -1)


class Memory:
    """The allocator of one device. Any thread may call any method.

    A block can be dropped anywhere, by the garbage collector too, even while this thread holds the lock. So a drop only notes what
    came back, and sorts it in if the lock is free; whoever takes the lock next does the rest.
    """

    def __init__(self, total_bytes: int, origin: str) -> None:
        self._total = total_bytes
        self._origin = origin
        self._lock = threading.Lock()
        self._returned: deque[tuple[Segment, int, int, int]] = deque()
        self._free: dict[int, list[tuple[Segment, int, bool]]] = {}  # class -> (segment, offset, warm)
        self._fresh: dict[int, tuple[Segment, int]] = {}  # class -> the segment being cut, and how far
        self._reserved = 0
        self._warm = 0
        self._closed = False
        self.buffers = 0
        self.bytes_live = 0
        self.bytes_peak = 0

    def allocate(self, size: int) -> Block:
        """Memory for a buffer, contents undefined. Raises OutOfMemoryError that says how much is there."""
        reserved = size_class(size)
        with self._lock:
            if self._closed:
                raise ClosedError("the device was closed; open it again")
            self._sort_in()
            segment, offset = self._take(reserved, size)
            self._reserved += reserved
            self.buffers += 1
            self.bytes_live += size
            self.bytes_peak = max(self.bytes_peak, self.bytes_live)
        return Block(self, segment, offset, reserved, size)

    def statistics(self) -> tuple[int, int, int]:
        """(live buffers, live bytes, most bytes that were live)."""
        with self._lock:
            self._sort_in()
            return self.buffers, self.bytes_live, self.bytes_peak

    def close(self) -> None:
        """Drop all free memory; what is still referenced goes when its last reference does. Safe to repeat."""
        with self._lock:
            self._closed = True
            self._sort_in()
            self._free.clear()
            self._fresh.clear()

    def _take(self, reserved: int, size: int) -> tuple[Segment, int]:
        free = self._free.get(reserved)
        if free:
            segment, offset, warm = free.pop()
            if warm:
                self._warm -= reserved
            return segment, offset
        self._check_room(reserved, size)
        try:
            return self._cut(reserved)
        except OSError as error:
            raise OutOfMemoryError(
                f"asked for {size:,} bytes with {self.bytes_live:,} in use, and the system refused: {error.strerror}. "
                "Close buffers, or raise the limits of this process (ulimit -n, ulimit -v)",
                origin=self._origin,
            ) from error

    def _cut(self, reserved: int) -> tuple[Segment, int]:
        if reserved > MEDIUM:
            return Segment(reserved), 0
        segment, offset = self._fresh.pop(reserved, (None, 0))
        if segment is None:
            segment = Segment(SMALL_SEGMENT if reserved <= SMALL else MEDIUM_SEGMENT)
        if offset + 2 * reserved <= segment.size:
            self._fresh[reserved] = segment, offset + reserved
        return segment, offset

    def _check_room(self, reserved: int, size: int) -> None:
        room = self._total - self._reserved
        if reserved >= ASK_FIRST:
            room = min(room, available_bytes() + self._warm)
            if reserved + self._warm > room:
                self._trim()
        if reserved > room:
            raise OutOfMemoryError(
                f"asked for {size:,} bytes, {max(room, 0):,} of {self._total:,} are free: close buffers first", origin=self._origin
            )

    def _trim(self) -> None:
        """Give all warm free memory back to the system."""
        for reserved, free in self._free.items():
            if reserved > MEDIUM:
                free.clear()
            elif reserved >= PAGED:
                for segment, offset, warm in free:
                    if warm:
                        segment.discard(offset, reserved)
                free[:] = [(segment, offset, False) for segment, offset, _ in free]
        self._warm = sum(reserved * sum(warm for *_, warm in free) for reserved, free in self._free.items())

    def _count_out(self, size: int) -> None:
        with self._lock:
            self.buffers -= 1
            self.bytes_live -= size

    def _take_back(self, segment: Segment, offset: int, reserved: int, uncounted: int) -> None:
        self._returned.append((segment, offset, reserved, uncounted))
        if self._lock.acquire(blocking=False):
            try:
                self._sort_in()
            finally:
                self._lock.release()

    def _sort_in(self) -> None:
        """Book returned blocks; the lock is held. `uncounted` is the size of a block whose buffer was never closed, or -1."""
        while self._returned:
            segment, offset, reserved, uncounted = self._returned.popleft()
            self._reserved -= reserved
            if uncounted >= 0:
                self.buffers -= 1
                self.bytes_live -= uncounted
            if not self._closed:
                self._keep(segment, offset, reserved)

    def _keep(self, segment: Segment, offset: int, reserved: int) -> None:
        warm = reserved < PAGED or self._warm + reserved <= max(WARM_BYTES, self.bytes_live // 4)
        if warm:
            self._warm += reserved
        elif reserved > MEDIUM:
            return
        else:
            segment.discard(offset, reserved)
        self._free.setdefault(reserved, []).append((segment, offset, warm))
