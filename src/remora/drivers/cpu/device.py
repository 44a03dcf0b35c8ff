"""The device: the processor's facts, its worker pool, its memory and its queues."""

from __future__ import annotations

import os
from collections.abc import Sequence
from ctypes import addressof
from typing import Any

from remora.base.snapshot import DeviceStatistics
from remora.drivers.cpu import processor
from remora.drivers.cpu._ffi import Environment, Pool
from remora.drivers.cpu.buffer import CpuBuffer
from remora.drivers.cpu.command_buffer import Recording
from remora.drivers.cpu.executable import CpuExecutable
from remora.drivers.cpu.memory import Memory
from remora.drivers.cpu.queue import CpuQueue
from remora.hal.command_buffer import CommandBuffer
from remora.hal.device import Device, DeviceInfo, Heap
from remora.hal.executable import KernelInfo
from remora.hal.target import Target

__all__ = ["QUEUE_COUNT", "CpuDevice"]

QUEUE_COUNT = 4


class CpuDevice(Device):
    """All usable cores as one device. The workers start with the device; each queue's own thread when it is first needed."""

    def __init__(self, uri: str, threads: int | None = None) -> None:
        machine, features = processor.architecture(), processor.flags()
        total = processor.total_bytes()
        heap = Heap("host", size=total, max_allocation=total // 4 * 3)
        info = DeviceInfo(processor.model_name(), "cpu", processor.targets(machine, features), (heap,), QUEUE_COUNT)
        super().__init__(uri, info)
        self._environment = Environment(processor=tuple(processor.feature_words(machine, features)))
        self.environment = addressof(self._environment)
        self.pool = Pool(threads or len(os.sched_getaffinity(0)))
        self.memory = Memory(total, uri)
        self._queues = tuple(CpuQueue(self, ordinal) for ordinal in range(QUEUE_COUNT))

    @property
    def queues(self) -> Sequence[CpuQueue]:
        """Four queues that run beside each other and share the cores."""
        return self._queues

    def statistics(self) -> DeviceStatistics:
        """What the device holds and has done."""
        return DeviceStatistics(*self.memory.statistics(), sum(queue.dispatches for queue in self._queues))

    def close(self) -> None:
        """End the queues, the workers and the memory. A kernel that runs is waited for. Safe to repeat."""
        self._closed = True
        for queue in self._queues:
            queue._close()
        self._fail_semaphores(self._closed_error())
        self.pool.close()
        self.memory.close()

    def _allocate(self, size: int) -> CpuBuffer:
        return CpuBuffer(self, self.memory.allocate(size))

    def _load(self, target: Target, artifact: Any, kernels: Sequence[KernelInfo]) -> CpuExecutable:
        return CpuExecutable(self, target, artifact, kernels)

    def _prepare(self, commands: CommandBuffer) -> None:
        commands.prepared = Recording(commands.records, commands.slots)
