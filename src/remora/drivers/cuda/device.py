"""The device: a GPU's facts, its context, its memory and its queues."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from remora.base.snapshot import DeviceStatistics
from remora.drivers.cuda._ffi import Context, attribute, call, driver, initialize
from remora.drivers.cuda.buffer import CudaBuffer
from remora.drivers.cuda.command_buffer import Recording
from remora.drivers.cuda.executable import CudaExecutable
from remora.drivers.cuda.memory import Memory, PinnedPool
from remora.drivers.cuda.queue import CudaQueue
from remora.drivers.cuda.targets import targets
from remora.drivers.cuda.virtual_memory import CudaPhysicalMemory, CudaReservation, Pages, Range, page_size
from remora.errors import NotFoundError, UnsupportedError
from remora.hal.command_buffer import CommandBuffer
from remora.hal.device import DeviceInfo, Heap
from remora.hal.device_memory import Block
from remora.hal.host_device import HostDevice
from remora.hal.memory_segment import Segment
from remora.hal.specialization import ExecutableInfo
from remora.hal.staging import StagingPool
from remora.hal.target import Target

__all__ = ["QUEUE_COUNT", "CudaDevice"]

QUEUE_COUNT = 4
#: The context needs memory of its own for code, graphs and streams: one part in so many of what is free.
RESERVE = 64
#: Bytes in which the driver's pool takes memory.
GRAIN = 2 << 20


class CudaDevice(HostDevice[CudaQueue]):
    """One GPU, in its primary context."""

    def __init__(self, uri: str, ordinal: int) -> None:
        initialize()
        count = call(driver.cuDeviceGetCount)
        if ordinal >= count:
            raise NotFoundError(f"{uri}: there is no GPU {ordinal}, this machine has {count}; write cuda://0")
        device = call(driver.cuDeviceGet, ordinal)
        self.ordinal = ordinal
        with ExitStack() as made:  # what there is of a device that cannot be opened goes, the last first
            self.context = Context(device)
            made.callback(self.context.close)
            self.context.enter()
            super().__init__(uri, facts(device))
            self.memory = Memory(self.context, device, self.info.heaps[0].size, uri)
            made.callback(self.memory.close)
            self.pinned = PinnedPool()
            made.callback(self.pinned.close)
            self.staging = StagingPool(self._pin, self._unpin)
            self._queues = tuple(self._queue(number, made) for number in range(QUEUE_COUNT))
            self._made = made.pop_all()

    def _queue(self, number: int, made: ExitStack) -> CudaQueue:
        queue = CudaQueue(self, number)
        made.callback(queue.destroy)
        return queue

    def statistics(self) -> DeviceStatistics:
        """What the device holds and has done."""
        return DeviceStatistics(*self.memory.statistics(), sum(queue.dispatches for queue in self._queues))

    def close(self) -> None:
        """End the queues, then everything they used. A kernel that runs is waited for. Safe to repeat."""
        self._end_profile()
        closed, self._closed = self._closed, True
        if closed:
            return
        self.context.enter_to_end()
        self._end_queues()
        self._made.close()

    def _pin(self, segment: Segment) -> None:
        """Staging memory: the GPU copies seven times as fast where the system may not move the pages."""
        self.context.enter()
        driver.cuMemHostRegister(segment.address, segment.size, 0)

    def _unpin(self, segment: Segment) -> None:
        self.context.enter_to_end()
        driver.cuMemHostUnregister(segment.address)

    def _allocate(self, size: int) -> CudaBuffer:
        return CudaBuffer(self, Block(self.memory, size).make())

    def _late_buffer(self, size: int) -> CudaBuffer:
        return CudaBuffer(self, Block(self.memory, size))

    def _reserve(self, size: int) -> CudaReservation:
        return CudaReservation(CudaBuffer(self, Range(self, size)))

    def _physical(self, size: int) -> CudaPhysicalMemory:
        return CudaPhysicalMemory(self, Pages(self, size).make())

    def _load(self, target: Target, artifact: Any, info: ExecutableInfo, constants: tuple[int, ...]) -> CudaExecutable:
        return CudaExecutable(self, target, artifact, info, constants)

    def _prepare(self, commands: CommandBuffer) -> None:
        commands.prepared = Recording(self, commands)


def facts(device: Any) -> DeviceInfo:
    """What a GPU is, and what of its memory is free now. In its context. Raises UnsupportedError when it cannot be driven."""
    name = call(driver.cuDeviceGetName, 128, device).partition(b"\0")[0].decode(errors="replace")
    if not attribute(device, "CAN_USE_64_BIT_STREAM_MEM_OPS") or not attribute(device, "MEMORY_POOLS_SUPPORTED"):
        raise UnsupportedError(f"{name} has no 64-bit stream memory operations or no memory pools: use a GPU of 2016 or later")
    capability = attribute(device, "COMPUTE_CAPABILITY_MAJOR"), attribute(device, "COMPUTE_CAPABILITY_MINOR")
    free, total = map(int, call(driver.cuMemGetInfo))
    heap = Heap("gpu", size=total, max_allocation=(free - free // RESERVE) // GRAIN * GRAIN, alignment=256)
    keys = targets(capability, int(call(driver.cuDriverGetVersion)))
    return DeviceInfo(name, "cuda", keys, (heap,), QUEUE_COUNT, page_size(device))
