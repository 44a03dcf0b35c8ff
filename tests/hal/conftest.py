"""A device whose memory is bytearrays and whose kernels are Python functions: the smallest driver over HostQueue."""

from __future__ import annotations

import pytest

from remora.base.snapshot import DeviceStatistics
from remora.hal.buffer import Access, Buffer
from remora.hal.device import Device, DeviceInfo, Heap
from remora.hal.executable import Executable
from remora.hal.host_queue import HostQueue, Step
from remora.hal.records import CopyRecord, DispatchRecord, FillRecord, resolve
from remora.hal.target import Target

SIZE_LIMIT = 1 << 20


class ScratchBuffer(Buffer):
    def __init__(self, device, size):
        super().__init__(device, size)
        self.memory = bytearray(size)
        self.unmapped = []
        self.released = 0

    def _map(self, access, offset, size, timeout):
        self.device.queue.wait_idle(timeout)
        return memoryview(self.memory)[offset : offset + size]

    def _unmap(self, mapping):
        self.unmapped.append((mapping.offset, mapping.size, bool(mapping.access & Access.WRITE)))

    def _release(self):
        self.released += 1


class ScratchQueue(HostQueue):
    cost_ns = 0

    def _dispatch(self, kernel, grid, bindings, constants, wait, signal):
        run = kernel.executable.functions[kernel.name]
        memories = [memoryview(each.buffer.memory)[each.offset : each.offset + each.size] for each in bindings]
        return self._submit(run, (grid, memories, constants), self.cost_ns, wait, signal)

    def _fill(self, buffer, pattern, wait, signal):
        def work():
            buffer.buffer.memory[buffer.offset : buffer.offset + buffer.size] = pattern * (buffer.size // len(pattern))

        return self._submit(work, (), self.cost_ns, wait, signal)

    def _update(self, buffer, offset, data, wait, signal):
        def work():
            buffer.memory[offset : offset + data.nbytes] = data

        return self._submit(work, (), self.cost_ns, wait, signal)

    def _read(self, buffer, offset, into, wait, signal):
        def work():
            into[:] = memoryview(buffer.memory)[offset : offset + into.nbytes]

        return self._submit(work, (), self.cost_ns, wait, signal)

    def _copy(self, source, target, wait, signal):
        def work():
            data = bytes(source.buffer.memory[source.offset : source.offset + source.size])
            target.buffer.memory[target.offset : target.offset + source.size] = data

        return self._submit(work, (), self.cost_ns, wait, signal)

    def _step(self, record, table):
        if isinstance(record, DispatchRecord):
            memories = [memory_of(resolve(binding, table)) for binding in record.bindings]
            run = record.kernel.executable.functions[record.kernel.name]
            return Step(run, (record.grid, memories, record.constants), self.cost_ns)
        target = memory_of(resolve(record.target, table))
        if isinstance(record, FillRecord):
            return Step(overwrite, (target, record.pattern * (len(target) // len(record.pattern))), self.cost_ns)
        if isinstance(record, CopyRecord):
            return Step(overwrite, (target, memory_of(resolve(record.source, table))[: record.size]), self.cost_ns)
        return Step(overwrite, (target, record.data), self.cost_ns)


def memory_of(binding):
    return memoryview(binding.buffer.memory)[binding.offset : binding.offset + binding.size]


def overwrite(memory, data):
    memory[: len(data)] = data


class ScratchExecutable(Executable):
    def __init__(self, device, target, infos, functions):
        super().__init__(device, target, infos)
        self.functions = functions


class ScratchDevice(Device):
    """`artifact` of `load_artifact` is a dict of Python functions by kernel name."""

    def __init__(self, queue_count=2):
        heap = Heap("bytes", SIZE_LIMIT * 16, SIZE_LIMIT)
        super().__init__("scratch://", DeviceInfo("scratch", "scratch", (Target("python", "any"),), (heap,), queue_count))
        self._queues = tuple(ScratchQueue(self, ordinal) for ordinal in range(queue_count))
        self.allocated = []

    @property
    def queues(self):
        return self._queues

    def statistics(self):
        return DeviceStatistics(len(self.allocated), sum(each.size for each in self.allocated), 0, 0)

    def close(self):
        self._closed = True
        for queue in self._queues:
            queue._close()

    def _allocate(self, size):
        buffer = ScratchBuffer(self, size)
        self.allocated.append(buffer)
        return buffer

    def _load(self, target, artifact, info, constants):
        return ScratchExecutable(self, target, info, artifact)


@pytest.fixture
def device():
    with ScratchDevice() as opened:
        yield opened


@pytest.fixture
def other_device():
    with ScratchDevice() as opened:
        yield opened


@pytest.fixture(scope="session")
def make_device():
    return ScratchDevice
