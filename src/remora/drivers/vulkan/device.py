"""The device: its facts, its memory, its queues, and its end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from remora.base.snapshot import DeviceStatistics
from remora.drivers.vulkan.buffer import AnyBuffer, StagedBuffer, VulkanBuffer
from remora.drivers.vulkan.commands import Fill, Launch
from remora.drivers.vulkan.executable import VulkanExecutable
from remora.drivers.vulkan.line import Line
from remora.drivers.vulkan.loader import Instance
from remora.drivers.vulkan.logical import Logical
from remora.drivers.vulkan.memory import ALIGNMENT, Memory, Pool
from remora.drivers.vulkan.physical import Physical, choose
from remora.drivers.vulkan.queue import VulkanQueue
from remora.errors import Error
from remora.hal.device import DeviceInfo, Heap
from remora.hal.host_device import HostDevice
from remora.hal.specialization import ExecutableInfo
from remora.hal.staging import StagingPool
from remora.hal.target import Target

if TYPE_CHECKING:
    from remora.drivers.vulkan.pipeline import Code, Program

__all__ = ["QUEUE_COUNT", "VulkanDevice"]

QUEUE_COUNT = 4


class VulkanDevice(HostDevice[VulkanQueue]):
    """One device of a Vulkan driver. `mapped` says whether the program sees the memory of its buffers."""

    def __init__(self, uri: str, place: str, *, staged: bool) -> None:
        instance = Instance()
        try:
            physical = choose(instance, place)
            self.logical = Logical(instance, physical)
        except BaseException:
            instance.close()
            raise
        self.adapter = physical
        types = self.logical.memory_types()
        self.kind, self.host_kind = physical.device_kind(types, staged=staged), physical.host_kind(types)
        self.mapped = self.kind.mapped
        x, y, z = physical.limits.maxComputeWorkGroupCount
        self.max_grid = (x, y, z)
        super().__init__(uri, facts(physical, self.kind.heap))
        self._lost: Error | None = None
        self._lost_lock = threading.Lock()
        self.pool = Pool(self.logical, self.kind, self.info.heaps[0].size, uri)
        self._lines = [self._new_line(number) for number in range(QUEUE_COUNT + 1)]
        self._loading = threading.Lock()
        self._loaded: WeakValueDictionary[int, VulkanExecutable] = WeakValueDictionary()
        self.staging = None if self.mapped else StagingPool()
        self._queues = tuple(VulkanQueue(self, number, self._lines[number]) for number in range(QUEUE_COUNT))

    @property
    def _ended(self) -> bool:
        return self._closed or self._lost is not None

    def statistics(self) -> DeviceStatistics:
        """What the device holds and has done."""
        return DeviceStatistics(*self.pool.statistics(), sum(queue.dispatches for queue in self._queues))

    def close(self) -> None:
        """End the queues, then everything they used. A kernel that runs is waited for. Safe to repeat."""
        self._end_profile()
        with self._lost_lock:
            first, self._closed = not self._closed, True
        self._end_queues()
        if first:
            with self._loading:
                self.logical.idle()
                for queue in self._queues:
                    queue.close_line()
                self._lines[-1].close()
            for executable in tuple(self._loaded.values()):
                executable.unload()
            self.pool.close()
            self.logical.end()

    def lose(self, error: Error) -> None:
        """The driver says that the device is lost: everything that is pending or comes later fails with this."""
        with self._lost_lock:
            if self._lost is not None:
                return
            self._lost = error.bare()
            self._lost.origin = self.uri
        for queue in self._queues:
            queue.timeline.fail(self._lost.copy())
            queue._fail_pending(self._lost.copy())
        self._fail_semaphores(self._lost.copy())

    def initialize(self, code: Code, program: Program | None) -> None:
        """Zero the memory that code owns, then run what sets it."""
        work = [Fill(self._owned(segment.size).adopt(segment), 0, segment.size, bytes(4)) for segment in code.segments.values()]
        launches = [] if program is None else [Launch(program, (1, 1, 1), (), b"")]
        if work or launches:
            with self._loading:
                self._check_open()
                self._lines[-1].run(*work, *launches)

    def _owned(self, size: int) -> Memory:
        return Memory(self.pool, size)

    def _new_line(self, number: int) -> Line:
        return Line(self.logical, self.logical.lanes[number % len(self.logical.lanes)], self.lose)

    def _check_open(self) -> None:
        super()._check_open()
        if self._lost is not None:
            raise self._lost.copy()

    def buffer_over(self, memory: Memory) -> AnyBuffer:
        """A buffer with this memory."""
        return VulkanBuffer(self, memory) if self.mapped else StagedBuffer(self, memory)

    def _allocate(self, size: int) -> AnyBuffer:
        return self.buffer_over(Memory(self.pool, size).make())

    def _late_buffer(self, size: int) -> AnyBuffer:
        return self.buffer_over(Memory(self.pool, size))

    def _load(self, target: Target, artifact: Any, info: ExecutableInfo, constants: tuple[int, ...]) -> VulkanExecutable:
        executable = VulkanExecutable(self, target, artifact, info, constants)
        self._loaded[id(executable)] = executable
        return executable


def facts(physical: Physical, heap: int) -> DeviceInfo:
    """What the catalog says of it."""
    size = physical.heap_size(heap)
    memory = Heap("device", size=size, max_allocation=min(size, physical.max_allocation), alignment=ALIGNMENT)
    return DeviceInfo(physical.name, "vulkan", physical.targets(), (memory,), QUEUE_COUNT)
