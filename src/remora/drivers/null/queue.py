"""A queue: the work behind each operation, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from remora.errors import ClosedError
from remora.hal.buffer import Buffer, BufferView
from remora.hal.executable import Grid, Kernel
from remora.hal.host_queue import HostQueue, Step
from remora.hal.records import CopyRecord, DispatchRecord, FillRecord, UpdateRecord, resolve
from remora.hal.semaphore import Timepoint

if TYPE_CHECKING:
    from remora.drivers.null.buffer import NullBuffer
    from remora.drivers.null.device import NullDevice
    from remora.drivers.null.executable import NullExecutable

__all__ = ["NullQueue"]

#: Expected cost of moving one byte, in nanoseconds. It decides whether an operation runs at once or on the queue's worker.
NS_PER_BYTE = 0.2


class NullQueue(HostQueue):
    """In-order host execution. A driver with a hardware queue derives from `Queue` and submits to that instead."""

    __slots__ = ("dispatches",)

    def __init__(self, device: NullDevice, ordinal: int) -> None:
        super().__init__(device, ordinal)
        self.dispatches = 0

    def _dispatch(
        self,
        kernel: Kernel,
        grid: Grid,
        bindings: Sequence[Buffer | BufferView],
        constants: bytes,
        wait: tuple[Timepoint, ...],
        signal: tuple[Timepoint, ...],
    ) -> Timepoint:
        """The kernel's contract was checked by `Queue.dispatch`. A driver hands grid, addresses and constants to its code."""
        if cast("NullExecutable", kernel.executable).closed:
            raise ClosedError(f"the executable of {kernel.name} was closed; load it again")
        return self._submit(self._run, (), 0, wait, signal)

    def _fill(
        self, buffer: Buffer | BufferView, pattern: bytes, wait: tuple[Timepoint, ...], signal: tuple[Timepoint, ...]
    ) -> Timepoint:
        memory = memory_of(buffer, buffer.offset, buffer.size)
        return self._submit(fill, (memory, pattern), buffer.size * NS_PER_BYTE, wait, signal)

    def _update(
        self, buffer: Buffer, offset: int, data: memoryview, wait: tuple[Timepoint, ...], signal: tuple[Timepoint, ...]
    ) -> Timepoint:
        memory = memory_of(buffer, offset, data.nbytes)
        return self._submit(copy, (memory, data), data.nbytes * NS_PER_BYTE, wait, signal)

    def _read(
        self, buffer: Buffer, offset: int, into: memoryview, wait: tuple[Timepoint, ...], signal: tuple[Timepoint, ...]
    ) -> Timepoint:
        memory = memory_of(buffer, offset, into.nbytes)
        return self._submit(copy, (into, memory), into.nbytes * NS_PER_BYTE, wait, signal)

    def _copy(
        self,
        source: Buffer | BufferView,
        target: Buffer | BufferView,
        wait: tuple[Timepoint, ...],
        signal: tuple[Timepoint, ...],
    ) -> Timepoint:
        size = source.size
        args = (memory_of(target, target.offset, size), memory_of(source, source.offset, size))
        return self._submit(copy, args, size * NS_PER_BYTE, wait, signal)

    def _barrier(self, wait: tuple[Timepoint, ...], signal: tuple[Timepoint, ...]) -> Timepoint:
        return self._submit(nothing, (), 0, wait, signal)

    def _step(self, record: DispatchRecord | FillRecord | UpdateRecord | CopyRecord, table: Sequence[Buffer | BufferView]) -> Step:
        """One record of a command buffer. A driver whose device runs recordings overrides `_execute` instead."""
        if isinstance(record, DispatchRecord):
            return Step(self._run)
        target = resolve(record.target, table)
        if isinstance(record, FillRecord):
            return Step(fill, (memory_of(target, target.offset, target.size), record.pattern), target.size * NS_PER_BYTE)
        if isinstance(record, UpdateRecord):
            size = len(record.data)
            return Step(copy, (memory_of(target, target.offset, size), record.data), size * NS_PER_BYTE)
        source, size = resolve(record.source, table), record.size
        memories = memory_of(target, target.offset, size), memory_of(source, source.offset, size)
        return Step(copy, memories, size * NS_PER_BYTE)

    def _run(self) -> None:
        self.dispatches += 1


def memory_of(buffer: Buffer | BufferView, offset: int, size: int) -> memoryview:
    """The bytes that an operation touches; the reference keeps them alive until the operation is done."""
    return cast("NullBuffer", buffer.buffer).memory[offset : offset + size]


def fill(memory: memoryview, pattern: bytes) -> None:
    """Repeat the pattern over the memory."""
    memory[:] = pattern * (memory.nbytes // len(pattern))


def copy(target: memoryview, source: memoryview | bytes) -> None:
    """Copy all of source over target, which has the same size."""
    target[:] = source


def nothing() -> None:
    """The work of a barrier."""
