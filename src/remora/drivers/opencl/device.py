"""The device: its facts, its context, its queues, and what it makes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyopencl as cl

from remora.base.snapshot import DeviceStatistics
from remora.drivers.opencl.buffer import OpenclBuffer, Place
from remora.drivers.opencl.compiler import Compiler
from remora.drivers.opencl.executable import OpenclExecutable, Program
from remora.drivers.opencl.failures import failing
from remora.drivers.opencl.launch import Lane, launch, run_fill
from remora.drivers.opencl.memory import Book, Memory
from remora.drivers.opencl.platforms import name_of, targets_of
from remora.drivers.opencl.queue import OpenclQueue
from remora.hal.device import DeviceInfo, Heap
from remora.hal.host_device import HostDevice
from remora.hal.specialization import ExecutableInfo
from remora.hal.staging import StagingPool
from remora.hal.target import Target

__all__ = ["OpenclDevice"]

QUEUE_COUNT = 4


class OpenclDevice(HostDevice[OpenclQueue]):
    """One OpenCL device in a context of its own, without virtual memory. OpenCL's objects go with their last reference."""

    def __init__(self, uri: str, native: cl.Device) -> None:
        heap = Heap("device", size=native.global_mem_size, max_allocation=native.max_mem_alloc_size)
        super().__init__(uri, DeviceInfo(name_of(native), "opencl", targets_of(native), (heap,), QUEUE_COUNT))
        self.native = native
        with failing(f"a context on {name_of(native)}"):
            self.context = cl.Context([native])
        self.alignment = max(native.mem_base_addr_align // 8, 1)
        self.book = Book(self.context, heap.size, uri)
        self.compiler = Compiler(self.context, native, self.info.name)
        self.staging = StagingPool()
        self._queues = tuple(OpenclQueue(self, ordinal) for ordinal in range(QUEUE_COUNT))

    def statistics(self) -> DeviceStatistics:
        """What the device holds and has done."""
        return DeviceStatistics(*self.book.statistics(), sum(queue.dispatches for queue in self._queues))

    def initialize(self, memories: Collection[Memory], program: Program | None) -> None:
        """Give a program's globals their first contents: zeros, and then what its own kernel puts there. Waits for it."""
        with failing("the globals of the artifact"):
            commands = cl.CommandQueue(self.context, self.native)
            lane = Lane(commands, self.context, -1, self.alignment)
            for memory in memories:
                run_fill(lane, Place(memory, 0, memory.size), b"\0")
            if program is not None:
                launch(lane, program, (1, 1, 1), b"", ())
            commands.finish()

    def _allocate(self, size: int) -> OpenclBuffer:
        return OpenclBuffer(self, Memory(self.book, size).make())

    def _late_buffer(self, size: int) -> OpenclBuffer:
        return OpenclBuffer(self, Memory(self.book, size))

    def _load(self, target: Target, artifact: Any, info: ExecutableInfo, constants: tuple[int, ...]) -> OpenclExecutable:
        return OpenclExecutable(self, target, artifact, info, constants)
