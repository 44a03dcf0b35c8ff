"""The device: a GPU's facts, its memory and its queues."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int
from typing import Any, Final

from remora.base.snapshot import DeviceStatistics
from remora.drivers.hip._ffi import Runtime
from remora.drivers.hip.buffer import HipBuffer
from remora.drivers.hip.executable import HipExecutable
from remora.drivers.hip.memory import Memory, free_and_total
from remora.drivers.hip.queue import HipQueue
from remora.drivers.hip.targets import Processor, arch_name, targets
from remora.errors import NotFoundError, UnsupportedError
from remora.hal.device import DeviceInfo, Heap
from remora.hal.device_memory import Block
from remora.hal.host_device import HostDevice
from remora.hal.specialization import ExecutableInfo
from remora.hal.staging import StagingPool
from remora.hal.target import Target

__all__ = ["HipDevice"]

QUEUE_COUNT: Final = 4
#: The runtime needs memory of its own for code and streams: one part in so many of what is free.
RESERVE: Final = 64
GRAIN: Final = 2 << 20
#: hipDeviceAttributeCanUseStreamWaitValue, from which on streams write and wait for values.
STREAM_VALUES: Final = 10013
#: hipDeviceAttributeMaxSharedMemoryPerBlock.
SHARED_BYTES: Final = 74


class HipDevice(HostDevice[HipQueue]):
    """One GPU."""

    def __init__(self, uri: str, ordinal: int) -> None:
        self.runtime = runtime = Runtime()
        count = runtime.count()
        if ordinal >= count:
            raise NotFoundError(
                f"{uri}: there is no AMD GPU {ordinal}, ROCm's runtime finds {count}; write hip://0, or see what `rocminfo` says "
                "and whether this user may open /dev/kfd"
            )
        runtime.ordinal = ordinal
        runtime.enter()
        self.processor = processor_of_gpu(runtime)
        #: Shared memory that a workgroup can have, in bytes.
        self.shared_bytes = told(runtime, SHARED_BYTES)
        super().__init__(uri, facts(runtime, self.processor))
        self.memory = Memory(runtime, uri)
        self.staging = StagingPool()
        self._queues = tuple(HipQueue(self, number) for number in range(QUEUE_COUNT))

    def statistics(self) -> DeviceStatistics:
        """What the device holds and has done."""
        return DeviceStatistics(*self.memory.statistics(), sum(queue.dispatches for queue in self._queues))

    def close(self) -> None:
        """End the queues, then everything they used. A kernel that runs is waited for. Safe to repeat."""
        self._end_profile()
        closed, self._closed = self._closed, True
        if closed:
            return
        self._end_queues()
        self.runtime.enter()
        for queue in self._queues:
            queue.destroy()
        self.memory.end_all()

    def _allocate(self, size: int) -> HipBuffer:
        return HipBuffer(self, Block(self.memory, size).make())

    def _late_buffer(self, size: int) -> HipBuffer:
        return HipBuffer(self, Block(self.memory, size))

    def _load(self, target: Target, artifact: Any, info: ExecutableInfo, constants: tuple[int, ...]) -> HipExecutable:
        return HipExecutable(self, target, artifact, info, constants)


def processor_of_gpu(runtime: Runtime) -> Processor:
    """What the GPU is called. Raises UnsupportedError when the runtime does not tell."""
    found = arch_name(runtime.properties())
    if found is None:
        raise UnsupportedError(f"ROCm's runtime does not say which processor GPU {runtime.ordinal} is: install ROCm 5 or newer")
    return found


def told(runtime: Runtime, attribute: int) -> int:
    """An attribute of the GPU."""
    value = c_int()
    runtime.call("hipDeviceGetAttribute", byref(value), attribute, runtime.ordinal)
    return value.value


def facts(runtime: Runtime, processor: Processor) -> DeviceInfo:
    """What the GPU is, and what of its memory is free now. Raises UnsupportedError when it cannot be driven."""
    text = ctypes.create_string_buffer(256)
    runtime.call("hipDeviceGetName", text, len(text), runtime.ordinal)
    name = text.value.decode(errors="replace") or str(processor)
    if not told(runtime, STREAM_VALUES):
        raise UnsupportedError(f"{name}: its streams write no values to memory; use a GPU that ROCm supports under Linux")
    free, total = free_and_total(runtime)
    heap = Heap("gpu", size=total, max_allocation=(free - free // RESERVE) // GRAIN * GRAIN, alignment=256)
    return DeviceInfo(name, "hip", targets(processor), (heap,), QUEUE_COUNT)
