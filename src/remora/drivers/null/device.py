"""The device: its facts, its queues, and what it makes."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from remora.base.snapshot import DeviceStatistics
from remora.drivers.null.buffer import NullBuffer
from remora.drivers.null.executable import NullExecutable
from remora.drivers.null.extension import BYTES
from remora.drivers.null.memory import Memory
from remora.drivers.null.queue import NullQueue
from remora.errors import OutOfMemoryError
from remora.hal.device import DeviceInfo, Heap
from remora.hal.executable import Executable
from remora.hal.host_device import HostDevice
from remora.hal.specialization import ExecutableInfo
from remora.hal.target import Target

__all__ = ["NullDevice"]

#: A driver asks its device for these facts. They never change while the device is open, and they travel in the catalog.
HEAP = Heap("host", size=1 << 28, max_allocation=1 << 26)
INFO = DeviceInfo(name="null", driver="null", targets=(Target("null", "any"),), heaps=(HEAP,), queue_count=2, extensions=(BYTES,))


class NullDevice(HostDevice[NullQueue]):
    """A device that runs nothing."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri, INFO)
        self._lock = threading.Lock()
        self._buffers = 0
        self._bytes = 0
        self._bytes_peak = 0
        self._dropped: deque[int] = deque()
        self._queues = tuple(NullQueue(self, ordinal) for ordinal in range(INFO.queue_count))

    def statistics(self) -> DeviceStatistics:
        """What the device holds and has done."""
        dispatches = sum(queue.dispatches for queue in self._queues)
        with self._lock:
            self._count_dropped()
            return DeviceStatistics(self._buffers, self._bytes, self._bytes_peak, dispatches)

    def _allocate(self, size: int) -> NullBuffer:
        return NullBuffer(self, Memory(self, size).make())

    def _late_buffer(self, size: int) -> NullBuffer:
        """Its memory is made at the turn of the operation that provides it."""
        return NullBuffer(self, Memory(self, size))

    def _load(self, target: Target, artifact: Any, info: ExecutableInfo, constants: tuple[int, ...]) -> Executable:
        return NullExecutable(self, target, info, constants)

    def count(self, size: int) -> None:
        """Book a buffer in. Raises OutOfMemoryError."""
        with self._lock:
            self._count_dropped()
            if self._bytes + size > HEAP.size:
                raise OutOfMemoryError(
                    f"asked for {size:,} bytes, {HEAP.size - self._bytes:,} of {HEAP.size:,} are free: close a buffer first",
                    origin=self.uri,
                )
            self._buffers += 1
            self._bytes += size
            self._bytes_peak = max(self._bytes_peak, self._bytes)

    def drop(self, size: int) -> None:
        """Book a buffer out. It may be the garbage collector that drops it, while the lock is held: only note it."""
        self._dropped.append(size)

    def _count_dropped(self) -> None:
        while self._dropped:
            self._buffers -= 1
            self._bytes -= self._dropped.popleft()
