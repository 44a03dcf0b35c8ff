"""When the commands of one session run: waits to timepoints, completions to ADVANCE. What each of them does is in operations.py.

Each axis of the session is one queue of a device. A command goes to the queue when everything it names is there; otherwise it is
parked, and what follows on its axis behind it. The queue reports when it is done, in any order; ADVANCE is contiguous.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from time import monotonic
from typing import Any

from remora.base.ids import ResourceType, split_axis
from remora.errors import DeviceError, Error, OutOfMemoryError, PeerError, UsageError
from remora.hal.device import Device
from remora.hal.event import Event
from remora.hal.semaphore import Timepoint
from remora.hal.stream_queue import StreamQueue
from remora.hal.virtual_memory import PhysicalMemory, Reservation
from remora.link.link import Link
from remora.server import queue_memory
from remora.server.arrivals import Arrivals
from remora.server.axis import Axis
from remora.server.command_buffers import CommandBuffers
from remora.server.content_line import Contents
from remora.server.events import Events
from remora.server.executables import Executables
from remora.server.files import Files
from remora.server.operations import RUN, TRANSFERS
from remora.server.options import SessionLimits
from remora.server.profile import Profiles, stamped
from remora.server.quotas import Quotas
from remora.server.resources import ResourceTable
from remora.server.sharing import Sharing
from remora.server.transfers import Transfers
from remora.server.virtual_memory import VirtualMemory
from remora.session.events import AllocateReceived, CommandReceived, EventAsked, ReleaseReceived
from remora.session.state import Lane
from remora.wire import commands, memory_calls
from remora.wire.command_buffer_calls import CommandBufferUpload
from remora.wire.executable_calls import ExecutableGlobal, ExecutableLoad
from remora.wire.execute import Announced, Execute
from remora.wire.export_calls import ExecutableExports
from remora.wire.file_calls import FileOpen, FileRegister
from remora.wire.file_commands import FILE_READ, FILE_WRITE
from remora.wire.method import Loaded
from remora.wire.profile_calls import ClockRead, ProfileBegin, ProfileEnd, ProfileFlush
from remora.wire.sharing_calls import SegmentOpen

__all__ = ["Dispatcher"]

#: Commands that may wait on one axis for a resource that is being made.
MAX_PARKED = 4096
#: Seconds that a batch of commands waits for its answers when a device works by itself.
LINGER_S = 50e-6
#: The operations as they are while a profile is on.
_STAMPED = stamped(RUN)


class Dispatcher:
    """Runs a session's commands. `lock` guards the table and submission; completions come from any thread."""

    def __init__(self, link: Link, devices: Sequence[Device], limits: SessionLimits, contents: Contents) -> None:
        self.link = link
        self.devices = devices
        self.quotas = Quotas(limits)
        self.table = ResourceTable(limits.resources)
        self.lock = threading.RLock()
        self.arrivals = Arrivals(link)
        self.command_buffers = CommandBuffers(self, devices)
        self.executables = Executables(self, devices, contents)
        self.events = Events(self, devices)
        self.files = Files(self, devices, limits.files)
        self.profiles = Profiles(self, devices)
        self.virtual_memory = VirtualMemory(self, devices)
        self.sharing = Sharing(self, link)
        self.transfers = Transfers(self, self.sharing)
        self._calls: dict[type[Any], Callable[[int, Any], None]] = {
            ExecutableLoad: self.executables.load,
            ExecutableGlobal: self.executables.global_,
            ExecutableExports: self.executables.exports,
            CommandBufferUpload: self.command_buffers.upload,
            ProfileBegin: self.profiles.begin,
            ProfileFlush: self.profiles.flush,
            ProfileEnd: self.profiles.end,
            ClockRead: self.profiles.clock,
            FileOpen: self.files.open,
            **dict.fromkeys((method.request for method in memory_calls.METHODS.values()), self.virtual_memory.call),
            FileRegister: self.files.register,
            SegmentOpen: self.sharing.open,
        }
        self.busy: dict[int, Axis] = {}
        """Axes with `flying` operations: their devices work by themselves, and are looked at. `lock` guards it."""
        self._fresh = False  # whether any of them began since the last report
        self._done: deque[tuple[Axis, int]] = deque()  # what ran at once, to be counted at the next report
        self._news: dict[int, Axis] = {}  # axes with something to report; the link's lock guards it
        self._names: list[tuple[int, int]] = []
        self._deferred: list[ReleaseReceived] = []
        self._run = RUN
        self._axes: dict[int, Axis] = {}
        for axis, window in link.session.completion.items():
            _, _, _, device, queue = split_axis(axis)
            self._axes[axis] = Axis(axis, devices[device].queues[queue], window)

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
        device = self.devices[event.device]
        buffer = device.late_buffer(event.size) if event.late else queue_memory.allocate(self, device, event.size)
        try:
            return self.table.add(event.provisional, ResourceType.BUFFER, buffer)
        except BaseException:
            self._give_back(buffer)
            raise

    def call(self, request: int, body: Any) -> None:
        """Do what a request asks for; `answer` (or `grant`, `refuse`) is called with its number, now or later."""
        self._calls[type(body)](request, body)

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
        self.answer(request, Loaded(resource))

    def refuse(self, request: int, provisional: int, error: Error) -> None:
        """What a request asked for cannot be made: answer it; what waited for it fails."""
        self.withdraw(provisional, error)
        self.answer(request, error)

    def withdraw(self, provisional: int, error: Error) -> None:
        """Nothing will be made under this id: what waited for it fails, and so does what names it later."""
        with self.lock:
            self.table.fail(provisional, error)
            self.unpark()

    def answer(self, request: int, answer: Any) -> None:
        """Answer a request with its method's answer or an Error, unless the session has ended."""
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

    def report(self, *, keep: bool = False) -> None:
        """Write the ADVANCE of every axis with news, and resolutions; the caller flushes. `lock` is held.

        What devices have begun is looked at for a moment. With `keep` the caller goes on looking (`look`); else the queues'
        own threads will tell.
        """
        if self.busy:
            self._look(keep, monotonic() + LINGER_S if self._fresh else 0.0)
        self._tell()

    def look(self, *, keep: bool) -> bool:
        """Look once at what devices have begun; whether there is something to flush. `keep` as for `report`, `lock` is held."""
        self._look(keep, 0.0)
        if not self._done:
            return False
        self._tell()
        return True

    def _tell(self) -> None:
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

    def stamp(self, on: bool) -> None:
        """A profile is on: commands are submitted under their epochs; or none is any more."""
        self._run = _STAMPED if on else RUN

    def close(self) -> None:
        """The session ended: give everything back."""
        self.profiles.close()
        with self.lock:
            self._deferred.clear()
            self.busy.clear()
            for axis in self._axes.values():
                axis.parked.clear()
                axis.flying.clear()
            self.table.clear(self._give_back)

    def _give_back(self, thing: Any) -> None:
        if isinstance(thing, Reservation | PhysicalMemory):
            thing._end()
        elif not isinstance(thing, Event):  # it holds nothing
            thing.close()
        self.quotas.settle(thing)

    # -- submission -----------------------------------------------------------------------------------------------------------

    def _must_wait(self, event: CommandReceived) -> bool:
        """Whether the command names a resource that is being made, or an epoch that is itself parked."""
        if event.op == commands.DISPATCH and event.body.executable in self.table.pending:
            return True
        if event.op == commands.DISPATCH_INDIRECT and event.body.dispatch.executable in self.table.pending:
            return True
        if event.op == commands.EXECUTE and self.command_buffers.must_wait(event.body):
            return True
        return any(epoch > self._axes[axis].submitted and self._axes[axis].window.failed is None for axis, epoch in event.waits)

    def _submit(self, axis: Axis, event: CommandReceived) -> None:
        epoch = axis.submitted = event.epoch
        try:
            wait = self._timepoints(event.waits) if event.waits else ()
            point = self._run[event.op](self, axis, epoch, event.body, wait)
        except PeerError:
            raise
        except (Error, MemoryError) as caught:
            error = caught.bare() if isinstance(caught, Error) else OutOfMemoryError("the server has no memory for this command")
            self._refuse_transfer(event, error)
            if event.op in (FILE_READ, FILE_WRITE):
                self.files.refuse(event.body, error)
            self._complete(axis, epoch, error)
            return
        semaphore = point.semaphore
        if semaphore._value >= point.value:
            self._done.append((axis, epoch))
        else:
            axis.points[epoch] = point
            if isinstance(axis.queue, StreamQueue):
                axis.flying.append((epoch, point))
                self.busy[axis.axis] = axis
                self._fresh = True
            else:
                point.on_done(lambda: self._settled(axis, epoch, point))

    def _look(self, keep: bool, deadline: float) -> None:
        """An answer from here costs half of one from the queue's own thread, which has to be woken."""
        self._fresh = False
        left: list[tuple[Axis, int, Timepoint]] = []
        for axis in tuple(self.busy.values()):
            flying, queue = axis.flying, axis.queue
            assert isinstance(queue, StreamQueue)
            queue.linger(flying[-1][1].value, deadline)
            while flying and flying[0][1].semaphore._value >= flying[0][1].value:
                epoch, _ = flying.popleft()
                axis.points.pop(epoch, None)
                self._done.append((axis, epoch))
            if not keep:
                left += [(axis, epoch, point) for epoch, point in flying]
                flying.clear()
            if not flying:
                del self.busy[axis.axis]
        for axis, epoch, point in left:
            point.on_done(partial(self._settled, axis, epoch, point))

    def _refuse_transfer(self, event: CommandReceived, error: Error) -> None:
        """A command with bulk data will not run: the peer must not wait with it."""
        if event.op in TRANSFERS:
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

    def _complete(self, axis: Axis, epoch: int, failure: Error | None) -> None:
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

    def _settled(self, axis: Axis, epoch: int, point: Timepoint) -> None:
        """A queue moved, on whichever thread: report at once."""
        failure = None
        if point.semaphore._value < point.value:
            failure = point.semaphore.failure or DeviceError("the queue ended without a cause")
        self._complete(axis, epoch, failure)
        axis.points.pop(epoch, None)
        self._tell()
        self.link.flush(Lane.QUEUE)

    def _write_results(self, axis: Axis) -> None:
        """RESULT frames of the reads that the next ADVANCE covers. The link's lock is held."""
        for epoch in sorted(axis.results):
            if epoch <= axis.window.done:
                self.link.session.result(axis.axis, epoch, axis.results.pop(epoch))


def _owned(event: CommandReceived) -> CommandReceived:
    """The command with its own copy of inline data, to outlive the receive buffer."""
    if event.op == commands.UPDATE:
        return event._replace(body=event.body._replace(data=memoryview(bytes(event.body.data))))
    if type(event.body) is Execute:
        return event._replace(body=event.body._replace(stream=memoryview(bytes(event.body.stream))))
    return event
