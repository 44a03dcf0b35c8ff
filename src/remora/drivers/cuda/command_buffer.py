"""Recordings as CUDA graphs: a sealed recording without slots and events is instantiated once and launched by one call.

What a binding table, a patch or the grid of an indirect dispatch decides, events, and memory that comes late are in no graph:
such a recording is walked, record by record, like one that is executed once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from remora.drivers.cuda._ffi import call, driver
from remora.drivers.cuda.places import Place, check_grid, place, places, program_of
from remora.drivers.cuda.stream import Stream
from remora.hal.host_queue import Step
from remora.hal.late import NotMadeError
from remora.hal.records import (
    BarrierRecord,
    CopyRecord,
    DispatchRecord,
    EventRecord,
    FillRecord,
    IndirectRecord,
    LabelRecord,
    UpdateRecord,
    resolve,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remora.drivers.cuda.device import CudaDevice
    from remora.drivers.cuda.executable import Program
    from remora.hal.buffer import Buffer, BufferView
    from remora.hal.command_buffer import CommandBuffer
    from remora.hal.executable import Grid

__all__ = ["Recording", "copy", "fill", "launch", "step_of", "write"]

#: How long a thread takes to begin a recorded dispatch, in nanoseconds.
NS_PER_LAUNCH = 3_000


class Recording:
    """What the driver keeps of a sealed command buffer. `graph` is None for one that is walked; executions in flight hold it."""

    def __init__(self, device: CudaDevice, commands: CommandBuffer) -> None:
        self._device = device
        self.graph: Any = None
        self._memory: list[Any] = []
        self.dispatches = sum(isinstance(record, DispatchRecord) for record in commands.records)
        walked = (
            commands.one_shot
            or commands.slots
            or any(isinstance(record, EventRecord | IndirectRecord) for record in commands.records)
        )
        if not walked and commands.records:
            self._capture(commands)

    def launch(self, stream: Stream) -> None:
        """Run it in a stream."""
        call(driver.cuGraphLaunch, self.graph, stream.handle)
        stream.dispatches += self.dispatches

    def _capture(self, commands: CommandBuffer) -> None:
        device = self._device
        device.context.enter()
        stream = Stream()
        try:
            steps = [
                step_of(stream, record, ())
                for record in commands.records
                if not isinstance(record, LabelRecord | BarrierRecord | EventRecord | IndirectRecord)
            ]
            call(driver.cuStreamBeginCapture, stream.handle, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            try:
                for step in steps:
                    step.work(*step.args)
            finally:
                graph = call(driver.cuStreamEndCapture, stream.handle)
        except NotMadeError:
            return
        finally:
            stream.destroy()
        try:
            self.graph = call(driver.cuGraphInstantiate, graph, 0)
            self._memory = [step.args for step in steps]
        finally:
            driver.cuGraphDestroy(graph)

    def __del__(self) -> None:
        if self.graph is not None and not self._device.closed:
            self._device.context.enter()
            driver.cuGraphExecDestroy(self.graph)


def step_of(
    stream: Stream, record: DispatchRecord | FillRecord | UpdateRecord | CopyRecord, table: Sequence[Buffer | BufferView]
) -> Step:
    """One record made ready for a stream, under a binding table."""
    if isinstance(record, DispatchRecord):
        check_grid(record.kernel, record.grid)
        bindings = places([resolve(binding, table) for binding in record.bindings])
        return Step(launch, (stream, program_of(record.kernel), record.grid, record.constants, bindings), NS_PER_LAUNCH)
    target = place(resolve(record.target, table))
    if isinstance(record, FillRecord):
        return Step(fill, (stream, target, record.pattern))
    if isinstance(record, UpdateRecord):
        return Step(write, (stream, target, memoryview(record.data)))
    return Step(copy, (stream, place(resolve(record.source, table)), target, record.size))


def launch(stream: Stream, program: Program, grid: Grid, constants: bytes, bindings: Sequence[Place]) -> None:
    """Run a kernel whose bindings have their addresses by now."""
    stream.launch(program, grid, constants, [binding.address for binding in bindings])


def fill(stream: Stream, target: Place, pattern: bytes) -> None:
    """Repeat a pattern over a range."""
    stream.fill(target.address, target.size, pattern)


def write(stream: Stream, target: Place, data: memoryview) -> None:
    """Copy host bytes to the start of a range."""
    stream.write(target.address, data)


def copy(stream: Stream, source: Place, target: Place, size: int) -> None:
    """Copy between two ranges."""
    stream.copy(source.address, target.address, size)
