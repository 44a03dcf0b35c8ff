"""A queue whose operations run on host threads, for drivers without a hardware queue of their own.

A short operation with nothing in front of it runs at once on the thread that submits it: a thread hop costs more than most small
kernels (20 us against 3). Everything else goes to the queue's one worker thread, which is started when it is first needed.
"""

from __future__ import annotations

import threading
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from remora.errors import BusyError, ClosedError, DeviceError, Error, UnsupportedError
from remora.hal.host_call import run_call
from remora.hal.queue import Queue
from remora.hal.records import (
    BarrierRecord,
    CopyRecord,
    DispatchRecord,
    EventAction,
    EventRecord,
    FillRecord,
    IndirectRecord,
    LabelRecord,
    Launch,
    Record,
    UpdateRecord,
    name_record,
)
from remora.hal.semaphore import Points, Semaphore, Timepoint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from remora.hal.buffer import Buffer, BufferView
    from remora.hal.command_buffer import CommandBuffer
    from remora.hal.device import Device
    from remora.hal.event import Event
    from remora.hal.file import File, HostFile
    from remora.hal.host_bytes import HostBytes
    from remora.hal.memory import LateMemory, Memory
    from remora.hal.memory_buffer import MemoryBuffer

__all__ = ["INLINE_NS", "HostQueue", "Step"]

#: An operation expected to take less than this (nanoseconds) runs on the submitting thread.
INLINE_NS = 100_000


class _Runner(Enum):
    """Who executes. IDLE -> INLINE -> IDLE | WORKER; IDLE -> WORKER -> IDLE."""

    IDLE = 0
    INLINE = 1
    """The thread that submitted the operation."""
    WORKER = 2
    """The worker thread, until nothing is pending."""


class Step(NamedTuple):
    """One record made ready: call `work(*args)`, which is expected to take `cost_ns`."""

    work: Callable[..., None]
    args: tuple[Any, ...] = ()
    cost_ns: float = 0


class _Operation(NamedTuple):
    work: Callable[..., None]
    args: tuple[Any, ...]
    wait: Points
    signal: Points
    value: int


class HostQueue(Queue):
    """In-order execution on host threads. A driver's `_dispatch` and its kin call `_submit` with the work to run."""

    __slots__ = ("_closing", "_inline", "_lock", "_pending", "_runner", "_stir", "_submitted", "_worker")

    def __init__(self, device: Device, ordinal: int) -> None:
        super().__init__(device, ordinal, Semaphore(name=f"queue {ordinal}"))
        self._lock = threading.Lock()
        self._pending: deque[_Operation] = deque()
        self._submitted = 0
        self._runner = _Runner.IDLE
        self._inline = 0  # the thread that runs an operation inline; it may close the device from a callback
        self._closing = False
        self._stir = threading.Event()  # set whenever the worker, or a closing thread, has something to look at
        self._worker: threading.Thread | None = None

    def _submit(self, work: Callable[..., None], args: tuple[Any, ...], cost_ns: float, wait: Points, signal: Points) -> Timepoint:
        """Run `work(*args)` after everything before it and `wait`: now if that is possible and short, else on the worker."""
        timeline = self.timeline
        with self._lock:
            if timeline._failure is not None:
                raise timeline._failure.copy()
            if self._closing:
                raise self._closed_error()
            self._submitted = value = self._submitted + 1
            if self._runner is not _Runner.IDLE or cost_ns >= INLINE_NS or (wait and not _reached(wait)):
                if self._runner is _Runner.IDLE:
                    try:
                        self._hand_over()
                    except BusyError:
                        self._submitted -= 1
                        raise
                self._pending.append(_Operation(work, args, wait, signal, value))
                return Timepoint(timeline, value)
            self._runner = _Runner.INLINE
            self._inline = threading.get_ident()
        try:
            self._perform(work, args, signal, value)
        finally:
            self._leave()
        return Timepoint(timeline, value)

    def _leave(self) -> None:
        """The submitting thread has run its operation: what came meanwhile goes to the worker."""
        failure = None
        with self._lock:
            self._runner = _Runner.IDLE
            if self._pending and not self._closing:
                try:
                    self._hand_over()
                except BusyError as error:
                    failure = error
            if self._closing:
                self._stir.set()
        if failure is not None:
            self.timeline.fail(failure)
            self._fail_pending(failure)

    def _hand_over(self) -> None:
        """Give what is pending to the worker. The lock is held. Raises BusyError when it cannot start; then nothing changes."""
        if self._worker is None:
            worker = threading.Thread(target=self._work, name=f"remora queue {self.ordinal}", daemon=True)
            try:
                worker.start()
            except RuntimeError:
                raise BusyError("the system gives this process no more threads: end some, or raise `ulimit -u`") from None
            self._worker = worker
        self._runner = _Runner.WORKER
        self._stir.set()

    def _work(self) -> None:
        while (operation := self._next()) is not None:
            if self._wait_for(operation):
                signal, value = operation.signal, operation.value
                failure = self._attempt(operation.work, operation.args)
                operation = None  # it holds memory, which goes back before anyone hears that the operation is done
                if failure is not None:
                    self._fail(failure, signal, value)
                else:
                    if signal:
                        signal_all(signal)
                    self.timeline._reach(value)
            operation = None

    def _next(self) -> _Operation | None:
        """The next operation for the worker, or None when the queue closes. Sleeps while there is none."""
        while True:
            with self._lock:
                if self._closing:
                    return None
                if self._runner is _Runner.WORKER:
                    if self._pending:
                        return self._pending.popleft()
                    self._runner = _Runner.IDLE
            self._stir.wait()
            self._stir.clear()

    def _wait_for(self, operation: _Operation) -> bool:
        """Sleep until the operation's waits are settled; False when one failed or the queue closes (then it has failed)."""
        for point in operation.wait:
            if not self._settle(point):
                with self._lock:
                    self._pending.appendleft(operation)  # the closing thread fails what is pending
                return False
            failure = point.semaphore._failure
            if failure is not None and point.semaphore._value < point.value:
                self._fail(failure, operation.signal, operation.value)
                return False
        return True

    def _settle(self, point: Timepoint) -> bool:
        """Worker: sleep until the point is reached or never will be; False when the queue closes first."""
        semaphore = point.semaphore
        if semaphore._value < point.value:
            point.on_done(self._stir.set)
        while semaphore._value < point.value and semaphore._failure is None:
            if self._closing:
                return False
            self._stir.wait()
            self._stir.clear()
        return True

    def _host_call(self, call: Callable[[], object], wait: Points, signal: Points) -> Timepoint:
        """Always on the worker: the submitting thread may hold a lock that the call takes."""
        return self._submit(self._run_call, (call,), INLINE_NS, wait, signal)

    def _run_call(self, call: Callable[[], object]) -> None:
        run_call(call)
        if self.timeline._failure is not None:  # the call closed the device, and this operation has ended with it
            raise self.timeline._failure.copy()

    def _barrier(self, wait: Points, signal: Points) -> Timepoint:
        return self._submit(_nothing, (), 0, wait, signal)

    # -- memory at an operation's turn: buffers are `MemoryBuffer`s -------------------------------------------------------------

    def _provide(self, buffer: Buffer, wait: Points, signal: Points) -> Timepoint:
        return self._submit(self._make, (cast("MemoryBuffer[LateMemory]", buffer).memory,), 0, wait, signal)

    def _deallocate(self, buffer: Buffer, wait: Points, signal: Points) -> Timepoint:
        held = [buffer._take()]
        try:
            return self._submit(self._give_back, (held,), 0, wait, signal)
        except BaseException:
            if held:
                cast("MemoryBuffer[Memory]", buffer)._memory = held.pop()
            raise

    def _make(self, memory: LateMemory) -> None:
        memory.make()

    def _give_back(self, held: list[Memory]) -> None:
        """Drop the memory."""
        held.pop().retire()

    # -- files: always on the worker, because a disk may be slow ----------------------------------------------------------------

    def _read_file(self, file: File, file_offset: int, target: Buffer | BufferView, wait: Points, signal: Points) -> Timepoint:
        return self._submit_file(self._host_bytes(target).pull, file, file_offset, wait, signal)

    def _write_file(self, source: Buffer | BufferView, file: File, file_offset: int, wait: Points, signal: Points) -> Timepoint:
        return self._submit_file(self._host_bytes(source).push, file, file_offset, wait, signal)

    def _submit_file(
        self, move: Callable[[HostFile, int], None], file: File, file_offset: int, wait: Points, signal: Points
    ) -> Timepoint:
        return self._submit(self._move_file, (move, cast("HostFile", file), file_offset), INLINE_NS, wait, signal)

    def _move_file(self, move: Callable[[HostFile, int], None], file: HostFile, file_offset: int) -> None:
        move(file, file_offset)

    def _host_bytes(self, buffer: Buffer | BufferView) -> HostBytes:
        """Driver: what files are read into and written from."""
        raise UnsupportedError(f"{self.device.uri} does not read and write files; go through host memory")

    # -- command buffers: one operation that runs a recording's records ---------------------------------------------------------

    def _execute(
        self,
        commands: CommandBuffer,
        table: tuple[Buffer | BufferView, ...],
        patched: dict[int, Launch],
        wait: Points,
        signal: Points,
    ) -> Timepoint:
        records = commands.records
        commands._check_open()  # after `records` was read: another thread's close() empties it
        steps = {
            number: self._any_step(patched.get(number, record), table)
            for number, record in enumerate(records)
            if not isinstance(record, LabelRecord | BarrierRecord)
        }
        return self._submit(self._play, (records, steps), sum(step.cost_ns for step in steps.values()), wait, signal)

    def _any_step(
        self,
        record: Launch | FillRecord | UpdateRecord | CopyRecord | EventRecord,
        table: Sequence[Buffer | BufferView],
    ) -> Step:
        if isinstance(record, EventRecord):
            return self._event_step(record)
        return self._indirect_step(record, table) if isinstance(record, IndirectRecord) else self._step(record, table)

    def _step(self, record: DispatchRecord | FillRecord | UpdateRecord | CopyRecord, table: Sequence[Buffer | BufferView]) -> Step:
        """Driver: a record made ready, its slots resolved. What it returns keeps the memory and code alive that it uses."""
        raise UnsupportedError(f"{self.device.uri} does not execute command buffers; submit the operations one by one")

    def _indirect_step(self, record: IndirectRecord, table: Sequence[Buffer | BufferView]) -> Step:
        """Driver: as `_step`; the grid is read, and checked, when the record runs."""
        raise UnsupportedError(f"{self.device.uri} takes grids from the host only: read the buffer and dispatch")

    def _event_step(self, record: EventRecord) -> Step:
        event = record.event
        if record.action is EventAction.WAIT:
            return Step(self._await_event, (event,), INLINE_NS)  # it may be long: not for the submitting thread
        return Step(event.signal if record.action is EventAction.SIGNAL else event.reset)

    def _await_event(self, event: Event) -> None:
        point = event._set_point()
        if not self._settle(point):
            raise self._closed_error()
        point.semaphore._check(point.value)

    def _play(self, records: Sequence[Record], steps: dict[int, Step]) -> None:
        for number, step in steps.items():
            try:
                step.work(*step.args)
            except Error as error:
                raise name_record(error, records, number) from error.__cause__
            except Exception as error:
                raise name_record(DeviceError(f"{type(error).__name__}: {error}"), records, number) from error

    def _perform(self, work: Callable[..., None], args: tuple[Any, ...], signal: Points, value: int) -> None:
        try:
            work(*args)
        except Error as error:
            self._fail(error, signal, value)
        except BaseException as error:
            failure = DeviceError(f"{type(error).__name__}: {error}")
            failure.__cause__ = error
            self._fail(failure, signal, value)
            if not isinstance(error, Exception):  # an interrupt of the submitting thread goes on its way
                raise
        else:
            if signal:
                signal_all(signal)
            self.timeline._reach(value)

    def _settled(self) -> None:
        """What the work of the running operation began is done, too: for who takes the time."""

    def _attempt(self, work: Callable[..., None], args: tuple[Any, ...]) -> Error | None:
        """Worker: run it; what went wrong, without the frames that hold its memory."""
        try:
            work(*args)
        except Error as error:
            return error.with_traceback(None)
        except BaseException as error:
            failure = DeviceError(f"{type(error).__name__}: {error}")
            failure.__cause__ = error
            return failure
        return None

    def _fail(self, error: Error, signal: Points, value: int) -> None:
        """End the queue: this operation and everything behind it fail with the first cause."""
        if not error.origin:
            error.origin = f"{self.device.uri} queue {self.ordinal}, operation {value}"
        self.timeline.fail(error)
        fail_all(signal, error)
        self._fail_pending(error)

    def _fail_pending(self, error: Error) -> None:
        with self._lock:
            pending = tuple(self._pending)
            self._pending.clear()
        for operation in pending:
            fail_all(operation.signal, error)

    def _close(self) -> None:
        """Let the running operation finish; everything after it ends with ClosedError. Joins the worker."""
        self._stop()
        error = self._closed_error()
        self.timeline.fail(error)
        self._fail_pending(error)

    def _stop(self) -> None:
        """From here on no operation begins, and the one that ran has finished."""
        with self._lock:
            self._closing = True
            worker = self._worker
        self._stir.set()
        if worker is not None and worker is not threading.current_thread():
            worker.join()
        while self._runner is _Runner.INLINE and self._inline != threading.get_ident():
            self._stir.wait()
            self._stir.clear()

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"the device {self.device.uri} was closed before this operation ran; open it again")


def _nothing() -> None:
    """The work of a barrier."""


def _reached(points: Points) -> bool:
    return all(point.semaphore._value >= point.value for point in points)


def signal_all(points: Points) -> None:
    """Signal each; one that cannot move (it is there already, or failed) fails with the reason."""
    for point in points:
        try:
            point.semaphore._signal_from_queue(point.value)
        except Error as error:
            point.semaphore.fail(error)


def fail_all(points: Points, error: Error) -> None:
    """Fail the semaphore of each."""
    for point in points:
        point.semaphore.fail(error)
