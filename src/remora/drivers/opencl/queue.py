"""A queue: an in-order OpenCL command queue behind a timeline.

OpenCL has no timeline semaphores (PoCL not even binary ones), so the host keeps the order between queues: a queue's thread
enqueues an operation once its waits are reached, waits for OpenCL, and moves the timeline. A recording is enqueued whole and waited
for once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import pyopencl as cl

from remora.drivers.opencl.buffer import Place, memory_of, place
from remora.drivers.opencl.failures import failing
from remora.drivers.opencl.launch import Lane, launch, run_copy, run_fill, run_read, run_write
from remora.errors import ClosedError
from remora.hal.buffer import Buffer, BufferView
from remora.hal.executable import Grid, Kernel
from remora.hal.host_bytes import BytesInPieces, HostBytes
from remora.hal.host_queue import INLINE_NS, HostQueue, Step
from remora.hal.indirect import GRID_BYTES, read_grid
from remora.hal.records import CopyRecord, DispatchRecord, EventRecord, FillRecord, IndirectRecord, Record, UpdateRecord, resolve
from remora.hal.semaphore import Points, Timepoint

if TYPE_CHECKING:
    from remora.drivers.opencl.device import OpenclDevice
    from remora.drivers.opencl.executable import OpenclKernel, Program

__all__ = ["OpenclQueue"]

#: Expected cost of one command and of moving one byte, in nanoseconds.
NS_PER_COMMAND = 20_000
NS_PER_BYTE = 0.2


class OpenclQueue(HostQueue):
    """In-order execution. Kernels and whatever is long run on the queue's thread, short transfers on the thread that submits."""

    __slots__ = ("_lane", "dispatches")

    def __init__(self, device: OpenclDevice, ordinal: int) -> None:
        super().__init__(device, ordinal)
        with failing("a command queue"):
            commands = cl.CommandQueue(device.context, device.native)
        self._lane = Lane(commands, device.context, ordinal, device.alignment)
        self.dispatches = 0

    # -- what is enqueued, and waited for ---------------------------------------------------------------------------------------

    def _finish(self) -> None:
        with failing("the command queue"):
            self._lane.commands.finish()

    def _finished(self, work: Callable[..., None], *args: Any) -> None:
        """Enqueue, and wait until everything enqueued is done."""
        work(self._lane, *args)
        self._finish()

    def _launch(self, lane: Lane, program: Program, grid: Grid, constants: bytes, places: Sequence[Place]) -> None:
        self.dispatches += 1
        launch(lane, program, grid, constants, places)

    # -- dispatches -------------------------------------------------------------------------------------------------------------

    def _dispatch(
        self, kernel: Kernel, grid: Grid, bindings: Sequence[Buffer | BufferView], constants: bytes, wait: Points, signal: Points
    ) -> Timepoint:
        args = (self._launch, program_of(kernel), grid, constants, [place(binding) for binding in bindings])
        return self._submit(self._finished, args, INLINE_NS, wait, signal)

    def _dispatch_indirect(
        self,
        kernel: Kernel,
        grid: Buffer | BufferView,
        bindings: Sequence[Buffer | BufferView],
        constants: bytes,
        wait: Points,
        signal: Points,
    ) -> Timepoint:
        places = [place(binding) for binding in bindings]
        args = (self._launch_indirect, kernel, program_of(kernel), place(grid), constants, places)
        return self._submit(self._finished, args, INLINE_NS, wait, signal)

    def _launch_indirect(
        self, lane: Lane, kernel: Kernel, program: Program, grid: Place, constants: bytes, places: Sequence[Place]
    ) -> None:
        """As `_launch`; the host reads the grid, which waits for everything that was enqueued before."""
        words = memoryview(bytearray(GRID_BYTES))
        run_read(lane, grid, words)
        self._launch(lane, program, read_grid(kernel, words), constants, places)

    # -- transfers --------------------------------------------------------------------------------------------------------------

    def _fill(self, buffer: Buffer | BufferView, pattern: bytes, wait: Points, signal: Points) -> Timepoint:
        return self._submit(self._finished, (run_fill, place(buffer), pattern), cost_ns(buffer.size), wait, signal)

    def _update(self, buffer: Buffer, offset: int, data: memoryview, wait: Points, signal: Points) -> Timepoint:
        args = (self._lane, Place(memory_of(buffer), offset, data.nbytes), data)
        return self._submit(run_write, args, cost_ns(data.nbytes), wait, signal)

    def _read(self, buffer: Buffer, offset: int, into: memoryview, wait: Points, signal: Points) -> Timepoint:
        args = (self._lane, Place(memory_of(buffer), offset, into.nbytes), into)
        return self._submit(run_read, args, cost_ns(into.nbytes), wait, signal)

    def _copy(self, source: Buffer | BufferView, target: Buffer | BufferView, wait: Points, signal: Points) -> Timepoint:
        return self._submit(self._finished, (run_copy, place(source), place(target)), cost_ns(source.size), wait, signal)

    def _host_bytes(self, buffer: Buffer | BufferView) -> HostBytes:
        lane, memory, offset = self._lane, memory_of(buffer), buffer.offset
        return BytesInPieces(
            buffer.size,
            lambda start, into: run_read(lane, Place(memory, offset + start, into.nbytes), into),
            lambda start, data: run_write(lane, Place(memory, offset + start, data.nbytes), data),
        )

    # -- recordings -------------------------------------------------------------------------------------------------------------

    def _step(self, record: DispatchRecord | FillRecord | UpdateRecord | CopyRecord, table: Sequence[Buffer | BufferView]) -> Step:
        lane = self._lane
        if isinstance(record, DispatchRecord):
            places = [place(resolve(binding, table)) for binding in record.bindings]
            return Step(self._launch, (lane, program_of(record.kernel), record.grid, record.constants, places), INLINE_NS)
        target = place(resolve(record.target, table))
        if isinstance(record, FillRecord):
            return Step(run_fill, (lane, target, record.pattern), cost_ns(target.size))
        if isinstance(record, UpdateRecord):
            return Step(run_write, (lane, target, memoryview(record.data)), cost_ns(len(record.data)))
        source = place(resolve(record.source, table))._replace(size=record.size)
        return Step(run_copy, (lane, source, target), cost_ns(record.size))

    def _indirect_step(self, record: IndirectRecord, table: Sequence[Buffer | BufferView]) -> Step:
        places = [place(resolve(binding, table)) for binding in record.bindings]
        grid = place(resolve(record.grid, table))
        args = (self._lane, record.kernel, program_of(record.kernel), grid, record.constants, places)
        return Step(self._launch_indirect, args, INLINE_NS)

    def _event_step(self, record: EventRecord) -> Step:
        step = super()._event_step(record)
        return Step(self._then, (step.work, *step.args), step.cost_ns)

    def _then(self, work: Callable[..., None], *args: Any) -> None:
        """What the host does between records, once everything before is done."""
        self._finish()
        work(*args)

    def _play(self, records: Sequence[Record], steps: dict[int, Step]) -> None:
        try:
            super()._play(records, steps)
        finally:
            self._finish()  # whatever was enqueued uses memory that this operation holds


def program_of(kernel: Kernel) -> Program:
    """What a dispatch launches. Raises ClosedError when its executable was closed."""
    program = cast("OpenclKernel", kernel).program
    if program is None:
        raise ClosedError(f"the executable of {kernel.name} was closed; load it again")
    return program


def cost_ns(size: int) -> float:
    """Expected duration of a transfer."""
    return NS_PER_COMMAND + NS_PER_BYTE * size
