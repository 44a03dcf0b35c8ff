"""The device: the processor's facts, its worker pool, its memory and its queues."""

from __future__ import annotations

import os
from mmap import PAGESIZE
from typing import Any

from remora.base.snapshot import DeviceStatistics
from remora.drivers.cpu import processor
from remora.drivers.cpu._ffi import Environment, Pool
from remora.drivers.cpu.buffer import CpuBuffer
from remora.drivers.cpu.command_buffer import Recording
from remora.drivers.cpu.executable import CpuExecutable
from remora.drivers.cpu.late import LateBlock
from remora.drivers.cpu.memory import Memory
from remora.drivers.cpu.queue import CpuQueue
from remora.drivers.cpu.virtual_memory import CpuPhysicalMemory, CpuReservation, Range, RangeBlock
from remora.hal.command_buffer import CommandBuffer
from remora.hal.device import DeviceInfo, Heap
from remora.hal.host_device import HostDevice
from remora.hal.specialization import ExecutableInfo
from remora.hal.target import Target

__all__ = ["QUEUE_COUNT", "CpuDevice"]

QUEUE_COUNT = 4


class CpuDevice(HostDevice[CpuQueue]):
    """All usable cores as one device. The workers start with the device; each queue's own thread when it is first needed."""

    def __init__(self, uri: str, threads: int | None = None) -> None:
        machine, features = processor.architecture(), processor.flags()
        total = processor.total_bytes()
        heap = Heap("host", size=total, max_allocation=total // 4 * 3)
        info = DeviceInfo(processor.model_name(), "cpu", processor.targets(machine, features), (heap,), QUEUE_COUNT, PAGESIZE)
        super().__init__(uri, info)
        self.environment = Environment(processor=tuple(processor.feature_words(machine, features)))
        self.pool = Pool(threads or len(os.sched_getaffinity(0)))
        self.memory = Memory(total, uri)
        self._queues = tuple(CpuQueue(self, ordinal) for ordinal in range(QUEUE_COUNT))

    def statistics(self) -> DeviceStatistics:
        """What the device holds and has done."""
        return DeviceStatistics(*self.memory.statistics(), sum(queue.dispatches for queue in self._queues))

    def close(self) -> None:
        """End the queues, the workers and the memory. A kernel that runs is waited for. Safe to repeat."""
        super().close()
        self.pool.close()
        self.memory.close()

    def _allocate(self, size: int) -> CpuBuffer:
        return CpuBuffer(self, self.memory.allocate(size))

    def _reserve(self, size: int) -> CpuReservation:
        return CpuReservation(CpuBuffer(self, RangeBlock(Range(size, self.uri))))

    def _physical(self, size: int) -> CpuPhysicalMemory:
        return CpuPhysicalMemory(self, self.memory.allocate(size))

    def _load(self, target: Target, artifact: Any, info: ExecutableInfo, constants: tuple[int, ...]) -> CpuExecutable:
        return CpuExecutable(self, target, artifact, info, constants)

    def _late_buffer(self, size: int) -> CpuBuffer:
        return CpuBuffer(self, LateBlock(self.memory, size))

    def _prepare(self, commands: CommandBuffer) -> None:
        commands.prepared = Recording(commands.records, commands.slots)
