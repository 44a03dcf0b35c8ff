"""A queue: the work behind each operation, and what it costs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from remora.drivers.null import extension
from remora.drivers.null.buffer import memory_of
from remora.errors import ClosedError
from remora.hal.buffer import Buffer, BufferView
from remora.hal.executable import Grid, Kernel
from remora.hal.host_bytes import BytesInPlace, HostBytes
from remora.hal.host_queue import HostQueue, Step
from remora.hal.indirect import GRID_BYTES, read_grid
from remora.hal.records import CopyRecord, DispatchRecord, FillRecord, IndirectRecord, UpdateRecord, resolve
from remora.hal.semaphore import Points, Timepoint

if TYPE_CHECKING:
    from remora.drivers.null.device import NullDevice
    from remora.drivers.null.executable import NullExecutable
    from remora.drivers.null.memory import Memory

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
        self, kernel: Kernel, grid: Grid, bindings: Sequence[Buffer | BufferView], constants: bytes, wait: Points, signal: Points
    ) -> Timepoint:
        """The kernel's contract was checked by `Queue.dispatch`. A driver hands grid, addresses and constants to its code."""
        if cast("NullExecutable", kernel.executable).closed:
            raise ClosedError(f"the executable of {kernel.name} was closed; load it again")
        return self._submit(self._run, (), 0, wait, signal)

    def _dispatch_indirect(
        self,
        kernel: Kernel,
        grid: Buffer | BufferView,
        bindings: Sequence[Buffer | BufferView],
        constants: bytes,
        wait: Points,
        signal: Points,
    ) -> Timepoint:
        """As `_dispatch`, but the grid is read at the operation's turn, and checked then."""
        if cast("NullExecutable", kernel.executable).closed:
            raise ClosedError(f"the executable of {kernel.name} was closed; load it again")
        return self._submit(self._run_indirect, (kernel, memory_of(grid), grid.offset), 0, wait, signal)

    def _run_indirect(self, kernel: Kernel, memory: Memory, offset: int) -> None:
        read_grid(kernel, memory.at(offset, GRID_BYTES))
        self._run()

    def _fill(self, buffer: Buffer | BufferView, pattern: bytes, wait: Points, signal: Points) -> Timepoint:
        args = (memory_of(buffer), buffer.offset, buffer.size, pattern)
        return self._submit(fill, args, buffer.size * NS_PER_BYTE, wait, signal)

    def _update(self, buffer: Buffer, offset: int, data: memoryview, wait: Points, signal: Points) -> Timepoint:
        return self._submit(write, (memory_of(buffer), offset, data), data.nbytes * NS_PER_BYTE, wait, signal)

    def _read(self, buffer: Buffer, offset: int, into: memoryview, wait: Points, signal: Points) -> Timepoint:
        return self._submit(read, (memory_of(buffer), offset, into), into.nbytes * NS_PER_BYTE, wait, signal)

    def _copy(self, source: Buffer | BufferView, target: Buffer | BufferView, wait: Points, signal: Points) -> Timepoint:
        args = (memory_of(source), source.offset, memory_of(target), target.offset, source.size)
        return self._submit(copy, args, source.size * NS_PER_BYTE, wait, signal)

    def _host_bytes(self, buffer: Buffer | BufferView) -> HostBytes:
        """For files. A driver with memory of its own gives `BytesInPieces`."""
        return BytesInPlace(partial(memory_of(buffer).at, buffer.offset, buffer.size))

    def _extension(
        self, namespace: str, operation: int, payload: bytes, buffers: Sequence[Buffer | BufferView], wait: Points, signal: Points
    ) -> Timepoint:
        """`Queue.extension` has checked that the device declares it. What the payload is like shows at the operation's turn."""
        places = [(memory_of(buffer), buffer.offset, buffer.size) for buffer in buffers]
        return self._submit(extension.run, (operation, payload, places), 0, wait, signal)

    def _step(self, record: DispatchRecord | FillRecord | UpdateRecord | CopyRecord, table: Sequence[Buffer | BufferView]) -> Step:
        """One record of a command buffer. A driver whose device runs recordings overrides `_execute` instead."""
        if isinstance(record, DispatchRecord):
            return Step(self._run)
        target = resolve(record.target, table)
        memory, offset = memory_of(target), target.offset
        if isinstance(record, FillRecord):
            return Step(fill, (memory, offset, target.size, record.pattern), target.size * NS_PER_BYTE)
        if isinstance(record, UpdateRecord):
            return Step(write, (memory, offset, memoryview(record.data)), len(record.data) * NS_PER_BYTE)
        source, size = resolve(record.source, table), record.size
        return Step(copy, (memory_of(source), source.offset, memory, offset, size), size * NS_PER_BYTE)

    def _indirect_step(self, record: IndirectRecord, table: Sequence[Buffer | BufferView]) -> Step:
        """As `_step` for the one record whose grid is in a buffer."""
        grid = resolve(record.grid, table)
        return Step(self._run_indirect, (record.kernel, memory_of(grid), grid.offset))

    def _run(self) -> None:
        self.dispatches += 1


def fill(memory: Memory, offset: int, size: int, pattern: bytes) -> None:
    """Repeat the pattern over a range."""
    memory.at(offset, size)[:] = pattern * (size // len(pattern))


def write(memory: Memory, offset: int, data: memoryview) -> None:
    """Copy host bytes into a range."""
    memory.at(offset, data.nbytes)[:] = data


def read(memory: Memory, offset: int, into: memoryview) -> None:
    """Copy a range into host memory."""
    into[:] = memory.at(offset, into.nbytes)


def copy(source: Memory, source_offset: int, target: Memory, target_offset: int, size: int) -> None:
    """Copy between two ranges that do not overlap."""
    target.at(target_offset, size)[:] = source.at(source_offset, size)
