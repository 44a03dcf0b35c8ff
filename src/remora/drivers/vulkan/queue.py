"""A queue: what each operation is on the device, and what the host does for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from remora.drivers.vulkan.buffer import memory_of
from remora.drivers.vulkan.command_buffer import groups_of, reports, step_of
from remora.drivers.vulkan.commands import Command, Launch
from remora.drivers.vulkan.transfer import Mapped, Mover, Staged
from remora.errors import ClosedError, DeviceError, Error, Status, UsageError
from remora.hal.buffer import Buffer, BufferView
from remora.hal.executable import Grid, Kernel
from remora.hal.host_bytes import BytesInPieces, BytesInPlace, HostBytes
from remora.hal.host_queue import INLINE_NS, HostQueue, Step, signal_all
from remora.hal.indirect import GRID_BYTES, read_grid
from remora.hal.records import CopyRecord, DispatchRecord, FillRecord, IndirectRecord, Record, UpdateRecord, name_record, resolve
from remora.hal.semaphore import Points, Timepoint

if TYPE_CHECKING:
    from remora.drivers.vulkan.device import VulkanDevice
    from remora.drivers.vulkan.executable import VulkanKernel
    from remora.drivers.vulkan.line import Line
    from remora.drivers.vulkan.memory import Memory
    from remora.drivers.vulkan.pipeline import Program
    from remora.hal.host_queue import _Operation

__all__ = ["VulkanQueue"]

#: Operations that go to the device at once.
MOST_TOGETHER = 32


class VulkanQueue(HostQueue):
    """In-order execution on a line of the device. What is submitted and not done yet waits here, not on the device."""

    __slots__ = ("_line", "_mover", "dispatches")

    def __init__(self, device: VulkanDevice, ordinal: int, line: Line) -> None:
        super().__init__(device, ordinal)
        self._line = line
        self._mover: Mover = Mapped() if device.mapped else Staged(device.logical, line, device.host_kind)
        self.dispatches = 0

    def _dispatch(
        self, kernel: Kernel, grid: Grid, bindings: Sequence[Buffer | BufferView], constants: bytes, wait: Points, signal: Points
    ) -> Timepoint:
        return self._submit(self._run, (self.launch(kernel, grid, bindings, constants),), INLINE_NS, wait, signal)

    def _dispatch_indirect(
        self,
        kernel: Kernel,
        grid: Buffer | BufferView,
        bindings: Sequence[Buffer | BufferView],
        constants: bytes,
        wait: Points,
        signal: Points,
    ) -> Timepoint:
        """The host reads the grid at its turn, because a grid that is too large has to fail the queue and not the device."""
        launch = self.launch(kernel, (0, 0, 0), bindings, constants)
        return self._submit(self._run_indirect, (kernel, memory_of(grid), grid.offset, launch), INLINE_NS, wait, signal)

    def launch(self, kernel: Kernel, grid: Grid, bindings: Sequence[Buffer | BufferView], constants: bytes) -> Launch:
        """A dispatch, ready to be recorded. Raises ClosedError, and UsageError for a grid that the device does not take."""
        program = cast("VulkanKernel", kernel).program
        if program is None:
            raise ClosedError(f"the executable of {kernel.name} was closed; load it again")
        self._check_grid(kernel, grid)
        return Launch(program, grid, [(memory_of(binding), binding.offset) for binding in bindings], constants)

    def _check_grid(self, kernel: Kernel, grid: Grid) -> None:
        most = cast("VulkanDevice", self.device).max_grid
        if any(count > limit for count, limit in zip(grid, most, strict=True)):
            raise UsageError(
                f"{kernel.name}: the grid {grid} is more than {most}, which is what {self.device.name} runs at once: split it",
                code=Status.OUT_OF_RANGE,
            )

    def _run_indirect(self, kernel: Kernel, memory: Memory, offset: int, launch: Launch) -> None:
        held = memoryview(bytearray(GRID_BYTES))
        self._mover.read(memory, offset, held)
        grid = read_grid(kernel, held)
        self._check_grid(kernel, grid)
        self._run(launch._replace(grid=grid))

    def _run(self, work: Command) -> None:
        """One command as a submission of its own."""
        if not isinstance(work, Launch):
            self._line.run(work)
            return
        self.dispatches += 1
        if work.program.report is None:
            self._line.run(work)
        else:
            self._run_reporting(work, work.program)

    # -- the worker: dispatches that wait for nothing but each other go to the device together ---------------------------------

    def _work(self) -> None:
        while (operation := self._next()) is not None:
            if self._wait_for(operation):
                held = deque((operation,))
                operation = None  # what it holds goes back before anyone hears that it is done
                self._gather(held)
                self._turn(held)
            operation = None

    def _gather(self, held: deque[_Operation]) -> None:
        """Take what is pending and can go along with the operation in `held`."""
        if not self._joins(held[0]):
            return
        with self._lock:
            while self._pending and len(held) < MOST_TOGETHER and self._joins(self._pending[0]) and not self._closing:
                held.append(self._pending.popleft())

    def _joins(self, operation: _Operation) -> bool:
        """Whether it is one command of the device that can fail only with the device, and waits for nothing any more."""
        return (
            operation.work == self._run
            and not reports(operation.args)
            and all(point.semaphore._value >= point.value for point in operation.wait)
        )

    def _turn(self, held: deque[_Operation]) -> None:
        """Do operations in their order; each is done when the device says so, whatever comes behind it."""
        if len(held) == 1:
            failure = self._attempt(held[0].work, held[0].args)
            self._settle_first(held, failure)
            return
        ready, broken = 0, None
        for operation in held:
            broken = self._attempt(self._line.record, (ready, operation.args))
            if broken is not None:
                break
            ready += 1
        del operation
        first, failure = self._started(ready)
        for number in range(ready):
            failure = failure or self._attempt(self._line.wait, (first + number,))
            self.dispatches += failure is None
            if not self._settle_first(held, failure):
                return
        if broken is not None:
            self._settle_first(held, broken)

    def _started(self, ready: int) -> tuple[int, Error | None]:
        """Submit what was recorded: the first value to wait for, or what went wrong."""
        if not ready:
            return 0, None
        try:
            return self._line.submit(ready), None
        except Error as error:
            return 0, error.with_traceback(None)

    def _settle_first(self, held: deque[_Operation], failure: Error | None) -> bool:
        """The first operation is over; after a failure so is everything behind it, and the answer is False."""
        done = held.popleft()
        signal, value = done.signal, done.value
        del done
        if failure is None:
            if signal:
                signal_all(signal)
            self.timeline._reach(value)
            return True
        with self._lock:
            self._pending.extendleft(reversed(held))
        held.clear()
        self._fail(failure, signal, value)
        return False

    def _run_reporting(self, work: Launch, program: Program) -> None:
        report = program.report
        assert report is not None
        with report.lock:
            report.clear()
            self._line.run(work)
            code = report.code()
        if code:
            raise DeviceError(f"kernel {program.name} failed: it reported {code}; what the code means is the kernel's to say")

    def _fill(self, buffer: Buffer | BufferView, pattern: bytes, wait: Points, signal: Points) -> Timepoint:
        args = (memory_of(buffer), buffer.offset, buffer.size, pattern)
        return self._submit(self._mover.fill, args, self._mover.cost_ns(buffer.size), wait, signal)

    def _update(self, buffer: Buffer, offset: int, data: memoryview, wait: Points, signal: Points) -> Timepoint:
        return self._submit(self._mover.write, (memory_of(buffer), offset, data), self._mover.cost_ns(data.nbytes), wait, signal)

    def _read(self, buffer: Buffer, offset: int, into: memoryview, wait: Points, signal: Points) -> Timepoint:
        return self._submit(self._mover.read, (memory_of(buffer), offset, into), self._mover.cost_ns(into.nbytes), wait, signal)

    def _copy(self, source: Buffer | BufferView, target: Buffer | BufferView, wait: Points, signal: Points) -> Timepoint:
        args = (memory_of(source), source.offset, memory_of(target), target.offset, source.size)
        return self._submit(self._mover.copy, args, self._mover.cost_ns(source.size), wait, signal)

    def _host_bytes(self, buffer: Buffer | BufferView) -> HostBytes:
        memory, offset, mover = memory_of(buffer), buffer.offset, self._mover
        if isinstance(mover, Mapped):
            return BytesInPlace(partial(memory.at, offset, buffer.size))
        return BytesInPieces(
            buffer.size,
            lambda start, into: mover.read(memory, offset + start, into),
            lambda start, data: mover.write(memory, offset + start, data),
        )

    # -- recordings -------------------------------------------------------------------------------------------------------------

    def _step(self, record: DispatchRecord | FillRecord | UpdateRecord | CopyRecord, table: Sequence[Buffer | BufferView]) -> Step:
        return step_of(self, record, table)

    def _indirect_step(self, record: IndirectRecord, table: Sequence[Buffer | BufferView]) -> Step:
        grid = resolve(record.grid, table)
        bindings = [resolve(binding, table) for binding in record.bindings]
        launch = self.launch(record.kernel, (0, 0, 0), bindings, record.constants)
        return Step(self._run_indirect, (record.kernel, memory_of(grid), grid.offset, launch), INLINE_NS)

    def _play(self, records: Sequence[Record], steps: dict[int, Step]) -> None:
        """Commands that follow each other go to the device as one submission."""
        for group in groups_of(steps, self._run):
            first = next(iter(group))
            if len(group) == 1:
                super()._play(records, group)
                continue
            try:
                work: list[Command] = [step.args[0] for step in group.values()]
                self._line.run(*work)
                self.dispatches += sum(isinstance(each, Launch) for each in work)
            except Error as error:
                raise name_record(error, records, first) from error.__cause__

    def close_line(self) -> None:
        """The device ends; nothing runs any more."""
        if isinstance(self._mover, Staged):
            self._mover.close()
        self._line.close()
