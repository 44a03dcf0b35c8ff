"""Commands of one session to calls of the HAL: ids to objects, waits to timepoints, completions to ADVANCE.

Each axis of the session is one queue of a device. A command goes to the queue when everything it names is there; otherwise it is
parked, and what follows on its axis behind it. The queue reports when it is done, in any order; ADVANCE is contiguous.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, TypeAlias

from remora.base.ids import ResourceType, describe_id, split_axis
from remora.errors import DeviceError, Error, PeerError, UsageError
from remora.hal.buffer import Buffer, BufferView
from remora.hal.device import Device
from remora.hal.event import Event
from remora.hal.executable import Kernel
from remora.hal.queue import Queue
from remora.hal.semaphore import Semaphore, Timepoint
from remora.link.link import Link
from remora.server.arrivals import Arrivals
from remora.server.command_buffers import CommandBuffers
from remora.server.events import Events
from remora.server.options import SessionLimits
from remora.server.quotas import Quotas
from remora.server.resources import ResourceTable
from remora.session.axes import CompletionWindow
from remora.session.events import AllocateReceived, CommandReceived, EventAsked, ReleaseReceived
from remora.session.state import Lane
from remora.wire import commands
from remora.wire.calls import Loaded
from remora.wire.commands import Copy, Dispatch, Fill, Range, Transfer, Update
from remora.wire.execute import Announced, Execute

__all__ = ["Dispatcher"]

#: Commands that may wait on one axis for a resource that is being made.
MAX_PARKED = 4096


class _Axis:
    """One axis: its queue, its window, the timepoints of what is not done, and what is parked."""

    __slots__ = ("axis", "parked", "points", "queue", "results", "submitted", "window")

    def __init__(self, axis: int, queue: Queue, window: CompletionWindow) -> None:
        self.axis = axis
        self.queue = queue
        self.window = window
        self.points: dict[int, Timepoint] = {}
        self.results: dict[int, bytearray] = {}
        self.parked: deque[CommandReceived] = deque()
        self.submitted = 0  # the last epoch that was given to the queue


class Dispatcher:
    """Runs a session's commands. `lock` guards the table and submission; completions come from any thread."""

    def __init__(self, link: Link, devices: Sequence[Device], limits: SessionLimits) -> None:
        self.link = link
        self.devices = devices
        self.quotas = Quotas(limits)
        self.table = ResourceTable(limits.resources)
        self.lock = threading.RLock()
        self.arrivals = Arrivals(link)
        self.command_buffers = CommandBuffers(self, devices)
        self.events = Events(self, devices)
        self._buffers = self.table.of(ResourceType.BUFFER)
        self._executables = self.table.of(ResourceType.EXECUTABLE)
        self._done: deque[tuple[_Axis, int]] = deque()  # what ran at once, to be counted at the next report
        self._news: dict[int, _Axis] = {}  # axes with something to report; the link's lock guards it
        self._names: list[tuple[int, int]] = []
        self._deferred: list[ReleaseReceived] = []
        self._axes: dict[int, _Axis] = {}
        for axis, window in link.session.completion.items():
            _, _, _, device, queue = split_axis(axis)
            self._axes[axis] = _Axis(axis, devices[device].queues[queue], window)

    # -- what arrives ---------------------------------------------------------------------------------------------------------

    def command(self, event: CommandReceived) -> None:
        """Run, park or fail one command. `lock` is held."""
        axis = self._axes[event.axis]
        if axis.window.failed is not None:
            self._refuse_transfer(event, axis.window.failed[1])
            if type(event.body) is Announced:
                self.link.bulk.abort(event.body.transfer_id, axis.window.failed[1])
            return
        execute = event.op == commands.EXECUTE
        if execute and type(event.body) is Announced:
            self.command_buffers.expect(event.body)
        if axis.parked or ((execute or event.waits or self.table.pending) and self._must_wait(event)):
            if len(axis.parked) >= MAX_PARKED:
                raise PeerError(f"more than {MAX_PARKED} commands wait for a resource")
            axis.parked.append(_owned(event))
        else:
            self._submit(axis, event)

    def allocate(self, event: AllocateReceived) -> None:
        """Make a buffer; its id is resolved in the next ADVANCE. `lock` is held."""
        try:
            if event.device >= len(self.devices):
                raise UsageError(f"there is no device {event.device}; the server has {len(self.devices)}")
            resource = self._make_buffer(event)
            with self.link.lock:
                self._names.append((event.provisional, resource))
        except PeerError:
            raise
        except Error as error:
            self.table.fail(event.provisional, error)
            with self.link.lock:
                if self.link.session.failure is None:
                    self.link.session.unname(event.provisional, error)
        if self.command_buffers.held:
            self.command_buffers.retry()

    def _make_buffer(self, event: AllocateReceived) -> int:
        """Allocate within the quota and put it into the table. Raises which limit is reached; then nothing is held."""
        memory = self.quotas.memory
        memory.take(event.size)
        try:
            buffer = self.devices[event.device].allocate(event.size)
        except BaseException:
            memory.give_back(event.size)
            raise
        self.quotas.charge(buffer, memory, event.size)
        try:
            return self.table.add(event.provisional, ResourceType.BUFFER, buffer)
        except BaseException:
            self._give_back(buffer)
            raise

    def event(self, asked: EventAsked) -> None:
        """Do what the host does with an event. `lock` is held."""
        self.events.act(asked)
        if self.command_buffers.held:
            self.command_buffers.retry()

    def release(self, event: ReleaseReceived) -> None:
        """Free resources once every command before the release is submitted. `lock` is held."""
        if any(axis.parked for axis in self._axes.values()):
            self._deferred.append(event)
            return
        for resource in event.ids:
            self.table.release(resource, self._give_back)

    def grant(self, request: int, provisional: int, kind: ResourceType, thing: Any) -> None:
        """What a request asked for is there: answer it, and submit what waited."""
        with self.lock:
            try:
                resource = self.table.add(provisional, kind, thing)
            except Error as error:
                self._give_back(thing)
                self.refuse(request, provisional, error)
                return
            self.unpark()
        self._answer(request, Loaded(resource))

    def refuse(self, request: int, provisional: int, error: Error) -> None:
        """What a request asked for cannot be made: answer it; what waited for it fails."""
        with self.lock:
            self.table.fail(provisional, error)
            self.unpark()
        self._answer(request, error)

    def _answer(self, request: int, answer: Loaded | Error) -> None:
        with self.link.lock:
            if self.link.session.failure is not None:
                return
            self.link.session.respond(request, answer)
        self.link.flush(Lane.CONTROL)
        self.link.flush(Lane.QUEUE)

    def unpark(self) -> None:
        """Submit what need not wait any more, on every axis, until nothing moves. `lock` is held."""
        if self.command_buffers.held:
            self.command_buffers.retry()
        moved = True
        while moved:
            moved = False
            for axis in self._axes.values():
                while axis.parked and not self._must_wait(axis.parked[0]):
                    self._submit(axis, axis.parked.popleft())
                    moved = True
        if self._deferred and not any(axis.parked for axis in self._axes.values()):
            deferred, self._deferred = self._deferred, []
            for release in deferred:
                self.release(release)
        self.report()

    def report(self) -> None:
        """Write the ADVANCE of every axis with news, and resolutions; the caller flushes."""
        with self.link.lock:
            session = self.link.session
            if session.failure is not None:
                return
            self._count_done()
            names, self._names = self._names, []
            if names and not self._news:
                self._news.update(islice(self._axes.items(), 1))
            for axis in self._news.values():
                if axis.results:
                    self._write_results(axis)
                session.advance(axis.axis, names)
                names = []
            self._news.clear()

    def close(self) -> None:
        """The session ended: give everything back."""
        with self.lock:
            self._deferred.clear()
            for axis in self._axes.values():
                axis.parked.clear()
            self.table.clear(self._give_back)

    def _give_back(self, thing: Any) -> None:
        if not isinstance(thing, Event):  # it holds nothing
            thing.close()
        self.quotas.settle(thing)

    # -- submission -----------------------------------------------------------------------------------------------------------

    def _must_wait(self, event: CommandReceived) -> bool:
        """Whether the command names a resource that is being made, or an epoch that is itself parked."""
        if event.op == commands.DISPATCH and event.body.executable in self.table.pending:
            return True
        if event.op == commands.EXECUTE and self.command_buffers.must_wait(event.body):
            return True
        return any(epoch > self._axes[axis].submitted and self._axes[axis].window.failed is None for axis, epoch in event.waits)

    def _submit(self, axis: _Axis, event: CommandReceived) -> None:
        epoch = axis.submitted = event.epoch
        try:
            wait = self._timepoints(event.waits) if event.waits else ()
            point = _RUN[event.op](self, axis, epoch, event.body, wait)
        except PeerError:
            raise
        except Error as error:
            self._refuse_transfer(event, error)
            self._complete(axis, epoch, error)
            return
        semaphore = point.semaphore
        if semaphore._value >= point.value:
            self._done.append((axis, epoch))
        else:
            axis.points[epoch] = point
            point.on_done(lambda: self._settled(axis, epoch, point))

    def _refuse_transfer(self, event: CommandReceived, error: Error) -> None:
        """A command with bulk data will not run: the peer must not wait with it."""
        if event.op in _TRANSFERS:
            self.link.bulk.abort(event.body.transfer_id, error)

    def _timepoints(self, waits: Iterable[tuple[int, int]]) -> tuple[Timepoint, ...]:
        """Local timepoints of remote epochs; those that are done are left out. Raises the failure of an axis that ended."""
        points = []
        for other, epoch in waits:
            axis = self._axes[other]
            if epoch <= axis.window.done:
                continue
            if axis.window.failed is not None:
                raise axis.window.failed[1].copy()
            point = axis.points.get(epoch)
            if point is not None:
                points.append(point)
        return tuple(points)

    def _complete(self, axis: _Axis, epoch: int, failure: Error | None) -> None:
        with self.link.lock:
            self._count_done()
            axis.window.complete(epoch, failure)
            self._news[axis.axis] = axis

    def _count_done(self) -> None:
        """Complete what ran at once. The link's lock is held."""
        while self._done:
            axis, epoch = self._done.popleft()
            axis.window.complete(epoch)
            self._news[axis.axis] = axis

    def _settled(self, axis: _Axis, epoch: int, point: Timepoint) -> None:
        """A queue moved, on whichever thread: report at once."""
        failure = None
        if point.semaphore._value < point.value:
            failure = point.semaphore.failure or DeviceError("the queue ended without a cause")
        self._complete(axis, epoch, failure)
        axis.points.pop(epoch, None)
        self.report()
        self.link.flush(Lane.QUEUE)

    def _write_results(self, axis: _Axis) -> None:
        """RESULT frames of the reads that the next ADVANCE covers. The link's lock is held."""
        for epoch in sorted(axis.results):
            if epoch <= axis.window.done:
                self.link.session.result(axis.axis, epoch, axis.results.pop(epoch))

    # -- operations -----------------------------------------------------------------------------------------------------------

    def find(self, resource: int, kind: ResourceType) -> Any:
        """The object of this kind with this id. Raises NotFoundError, what it failed with, or UsageError for another kind."""
        found = self.table.of(kind).get(resource)
        if found is None:
            self.table.get(resource)  # raises why it is not there
            raise UsageError(f"{describe_id(resource)} does not name {_NAMES[kind]}")
        return found

    def view(self, buffer: int, offset: int, length: int) -> Buffer | BufferView:
        """Bytes of a buffer by its id."""
        found: Buffer | None = self._buffers.get(buffer)
        if found is None:
            found = self.find(buffer, ResourceType.BUFFER)
        return found if offset == 0 and length == found.size else found.view(offset, length)

    def _run_barrier(self, axis: _Axis, epoch: int, body: None, wait: tuple[Timepoint, ...]) -> Timepoint:
        return axis.queue.barrier(wait=wait)

    def _run_fill(self, axis: _Axis, epoch: int, body: Fill, wait: tuple[Timepoint, ...]) -> Timepoint:
        return axis.queue.fill(self.view(body.buffer, body.offset, body.length), body.pattern, wait=wait)

    def _run_update(self, axis: _Axis, epoch: int, body: Update, wait: tuple[Timepoint, ...]) -> Timepoint:
        """Inline data lives in the receive buffer, so the queue gets its own copy (at most 64 KiB)."""
        target = self.view(body.buffer, body.offset, body.length)
        return axis.queue.update(target, bytes(body.data), wait=wait)

    def _run_copy(self, axis: _Axis, epoch: int, body: Copy, wait: tuple[Timepoint, ...]) -> Timepoint:
        source = self.view(body.buffer, body.offset, body.length)
        return axis.queue.copy(source, self.view(body.target, body.target_offset, body.length), wait=wait)

    def _run_read(self, axis: _Axis, epoch: int, body: Range, wait: tuple[Timepoint, ...]) -> Timepoint:
        if body.length > commands.MAX_INLINE:
            raise UsageError(f"a READ of {body.length} bytes; above {commands.MAX_INLINE} it is a DOWNLOAD")
        into = bytearray(body.length)
        point = axis.queue.read(self.view(body.buffer, body.offset, body.length), into, wait=wait)
        axis.results[epoch] = into
        return point

    def _run_upload(self, axis: _Axis, epoch: int, body: Transfer, wait: tuple[Timepoint, ...]) -> Timepoint:
        """Bulk data goes straight into the buffer once everything before is done; the queue waits at a gate meanwhile."""
        buffer = self.view(body.buffer, body.offset, body.length)
        gate = Semaphore(name="upload")
        memory = buffer.buffer.host_memory()
        if memory is None:
            staging = memoryview(bytearray(body.length))
            self.link.bulk.expect(body.transfer_id, staging, lambda error: _open_gate(gate, error))
            return axis.queue.update(buffer, staging, wait=(*wait, gate.at(1)))
        room = memory[buffer.offset : buffer.offset + body.length]
        ready = axis.queue.barrier(wait=wait)
        ready.on_done(
            lambda: self._begin(ready, gate, lambda done: self.link.bulk.expect(body.transfer_id, room, done), body.transfer_id)
        )
        return self._hold(axis, buffer, gate)

    def _run_download(self, axis: _Axis, epoch: int, body: Transfer, wait: tuple[Timepoint, ...]) -> Timepoint:
        buffer = self.view(body.buffer, body.offset, body.length)
        gate = Semaphore(name="download")
        memory = buffer.buffer.host_memory()
        if memory is None:
            data = memoryview(bytearray(body.length))
            ready = axis.queue.read(buffer, data, wait=wait)
        else:
            data = memory[buffer.offset : buffer.offset + body.length]
            ready = axis.queue.barrier(wait=wait)
        ready.on_done(
            lambda: self._begin(ready, gate, lambda done: self.link.bulk.send(body.transfer_id, data, done), body.transfer_id)
        )
        return self._hold(axis, buffer, gate)

    def _hold(self, axis: _Axis, buffer: Buffer | BufferView, gate: Semaphore) -> Timepoint:
        """Stop the queue until the transfer is over. An empty update keeps the memory alive, whatever is released meanwhile."""
        return axis.queue.update(buffer.view(0, 0), b"", wait=gate.at(1))

    def _begin(
        self, ready: Timepoint, gate: Semaphore, start: Callable[[Callable[[Error | None], None]], None], transfer_id: int
    ) -> None:
        """Start a transfer whose turn has come; if the queue failed before, tell the peer that it never will be."""
        failure = ready.semaphore.failure if ready.semaphore._value < ready.value else None
        if failure is not None:
            self.link.bulk.abort(transfer_id, failure)
            return
        try:
            start(lambda error: _open_gate(gate, error))
        except Error as error:
            gate.fail(error)

    def _run_dispatch(self, axis: _Axis, epoch: int, body: Dispatch, wait: tuple[Timepoint, ...]) -> Timepoint:
        executable, kernel, grid, flat, constants = body
        buffers, fields = self._buffers, iter(flat)
        bindings: list[Buffer | BufferView] = []
        for buffer, offset, length in zip(fields, fields, fields, strict=True):
            found = buffers.get(buffer)
            if found is None or offset or length != found.size:
                found = self.view(buffer, offset, length)
            bindings.append(found)
        return axis.queue.dispatch(self._kernel(executable, kernel), grid, bindings, constants, wait=wait)

    def _kernel(self, executable: int, ordinal: int) -> Kernel:
        found = self._executables.get(executable) or self.find(executable, ResourceType.EXECUTABLE)
        kernels: tuple[Kernel, ...] = found.ordered
        if ordinal >= len(kernels):
            raise UsageError(f"there is no kernel {ordinal}; the executable has {len(kernels)}")
        return kernels[ordinal]

    def _run_execute(self, axis: _Axis, epoch: int, body: Execute | Announced, wait: tuple[Timepoint, ...]) -> Timepoint:
        return self.command_buffers.run(axis.queue, body, wait)


_Run: TypeAlias = Callable[[Dispatcher, _Axis, int, Any, tuple[Timepoint, ...]], Timepoint]


def _counted(run: _Run) -> _Run:
    """A transfer, counted by its session's quota from its submission to its end, good or bad."""

    def transfer(dispatcher: Dispatcher, axis: _Axis, epoch: int, body: Any, wait: tuple[Timepoint, ...]) -> Timepoint:
        transfers = dispatcher.quotas.transfers
        transfers.take()
        try:
            point = run(dispatcher, axis, epoch, body, wait)
        except BaseException:
            transfers.give_back()
            raise
        point.on_done(transfers.give_back)
        return point

    return transfer


_RUN: dict[int, _Run] = {
    commands.BARRIER: Dispatcher._run_barrier,
    commands.FILL: Dispatcher._run_fill,
    commands.UPDATE: Dispatcher._run_update,
    commands.COPY: Dispatcher._run_copy,
    commands.READ: Dispatcher._run_read,
    commands.UPLOAD: _counted(Dispatcher._run_upload),
    commands.DOWNLOAD: _counted(Dispatcher._run_download),
    commands.DISPATCH: Dispatcher._run_dispatch,
    commands.EXECUTE: Dispatcher._run_execute,
}
_TRANSFERS = frozenset((commands.UPLOAD, commands.DOWNLOAD))
_NAMES = {
    ResourceType.BUFFER: "a buffer",
    ResourceType.EXECUTABLE: "an executable",
    ResourceType.COMMAND_BUFFER: "a command buffer",
    ResourceType.EVENT: "an event",
}


def _owned(event: CommandReceived) -> CommandReceived:
    """The command with its own copy of inline data, to outlive the receive buffer."""
    if event.op == commands.UPDATE:
        return event._replace(body=event.body._replace(data=memoryview(bytes(event.body.data))))
    if type(event.body) is Execute:
        return event._replace(body=event.body._replace(stream=memoryview(bytes(event.body.stream))))
    return event


def _open_gate(gate: Semaphore, error: Error | None) -> None:
    if error is None:
        gate.signal(1)
    else:
        gate.fail(error)
