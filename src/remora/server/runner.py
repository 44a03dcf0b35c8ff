"""One session on the server, from ACCEPT to its end: the shell around Link and Dispatcher.

control lane    the thread that calls `run` (the main thread of a session process)
queue lane      "remora queue lane": reads a batch, runs what is short, answers with one send
bulk lane       two threads, started with the first transfer
long kernels    the worker of each HAL queue
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from time import monotonic

from remora.base.ids import ResourceType
from remora.carriers.carrier import Carrier
from remora.errors import DeviceError, Error, PeerError, UsageError
from remora.hal.device import Device
from remora.hal.manifest import parse_kernels
from remora.hal.target import Target
from remora.link.link import Link
from remora.server.dispatch import Dispatcher
from remora.server.ending import Drain, IdleWatch
from remora.server.options import SessionLimits
from remora.session.events import AllocateReceived, CommandReceived, Event, EventAsked, ReleaseReceived, RequestReceived
from remora.session.session import Session
from remora.session.state import Lane
from remora.wire.calls import ExecutableLoad

__all__ = ["SessionRunner"]

#: Unsent answers, in bytes, above which no more commands are read: a peer that does not read its answers waits for itself.
MAX_UNREAD = 4 << 20


class SessionRunner:
    """Serves one session on open devices, which it does not own. `serve` and `run` return when the session has ended."""

    def __init__(self, session: Session, carriers: dict[Lane, Carrier], devices: Sequence[Device], limits: SessionLimits) -> None:
        self.link = Link(session, carriers, self)
        self.devices = devices
        self.dispatcher = Dispatcher(self.link, devices, limits)
        self.error: Error | None = None
        self.takes_commands = True
        """False while the session drains: what comes then is not run. The dispatcher's lock guards it."""
        self._requests = 0
        self._drain: Drain | None = None
        self._idle = None if limits.idle_timeout is None else IdleWatch(limits.idle_timeout, monotonic())
        self.link.chore(self._watch)
        self._queue_thread = threading.Thread(target=self._run_queue_lane, name="remora queue lane", daemon=True)

    def serve(self) -> None:
        """Serve until the session ends. A session process then exits, whatever its kernels still do."""
        self.link.bulk.start()
        self._queue_thread.start()
        self.link.run()

    def run(self) -> None:
        """Serve until the session ends, then join the threads and give everything back."""
        self.serve()
        self.link.join()
        self._queue_thread.join()
        self.dispatcher.close()

    def stop(self, reason: str) -> None:
        """End the session from outside, in good order; `run` returns soon."""
        with self.link.lock:
            events = self.link.session.close(reason)
        self.link.hand_on(events)

    def drain(self, reason: str, timeout: float) -> None:
        """End the session in good order once what it has in flight is done, after `timeout` seconds at the latest."""
        self._drain = Drain(self, reason, timeout, monotonic())
        self.link.wake()

    def _watch(self, now: float) -> float:
        """A chore of the link: when to look again whether to end the session."""
        if self.link.ended.is_set():
            return math.inf
        if self._drain is not None:
            return self._drain.look(now)
        return math.inf if self._idle is None else self._watch_idle(self._idle, now)

    def _watch_idle(self, idle: IdleWatch, now: float) -> float:
        link = self.link
        counts = [link.carriers[lane].statistics() for lane in (Lane.QUEUE, Lane.BULK)]
        activity = self._requests + sum(count.bytes_received for count in counts) + counts[1].bytes_sent
        with link.lock:
            unfinished = link.session.open_requests + sum(window.in_flight for window in link.session.completion.values())
        again = idle.look(now, activity, unfinished)
        if again > now:
            return again
        self.stop(f"it was idle for {idle.timeout:g} s (--idle-timeout of the server); open the device again")
        return math.inf

    def _run_queue_lane(self) -> None:
        link, dispatcher, carrier, session = self.link, self.dispatcher, self.link.carriers[Lane.QUEUE], self.link.session
        while not link.ended.is_set():
            try:
                lease = carrier.receive()
            except Error as error:
                link.lane_broken(Lane.QUEUE, error)
                return
            if lease is None:
                continue
            with dispatcher.lock:
                with link.lock:
                    events = session.receive(Lane.QUEUE, lease.view)
                self._take(events)
                lease.release()
                dispatcher.report()
            link.flush(Lane.QUEUE)
            while link.unsent(Lane.QUEUE) > MAX_UNREAD and not link.ended.wait(0.01):
                link.flush(Lane.QUEUE)

    def _take(self, events: list[Event]) -> None:
        """Events of the queue lane: commands, which are many, go straight to the dispatcher."""
        command = self.dispatcher.command if self.takes_commands else _leave
        try:
            for event in events:
                if type(event) is CommandReceived:
                    command(event)
                else:
                    self.link.hand_on([event])
        except Exception as error:
            self._blame(error)

    def _blame(self, error: Exception) -> None:
        """A peer's mistake that shows only here ends the session like one that the codec sees; a bug does not hide."""
        if isinstance(error, PeerError):
            self.link.fail(error)
            return
        failure = DeviceError(f"the server failed on a command: {type(error).__name__}: {error}")
        failure.__cause__ = error
        self.link.fail(failure)
        raise error

    # -- events ---------------------------------------------------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        """See `link.Handler`."""
        if type(event) is AllocateReceived:
            self.dispatcher.allocate(event)
        elif type(event) is ReleaseReceived:
            self.dispatcher.release(event)
        elif type(event) is EventAsked:
            self.dispatcher.event(event)
        elif type(event) is RequestReceived:
            self._requests += 1
            try:
                if isinstance(event.body, ExecutableLoad):
                    self._load(event.id, event.body)
                else:
                    self.dispatcher.command_buffers.upload(event.id, event.body)
            except Exception as error:
                self._blame(error)

    def on_failed(self, error: Error) -> None:
        """See `link.Handler`."""
        self.error = error

    def _load(self, request: int, body: ExecutableLoad) -> None:
        """Load an executable: at once when it came along, or when its bulk transfer is complete."""
        with self.dispatcher.lock:
            self.dispatcher.table.announce(body.resource, ResourceType.EXECUTABLE)
        try:
            self.dispatcher.quotas.executables.take()
        except Error as error:
            if body.transfer_id:
                self.link.bulk.abort(body.transfer_id, error)
            self.dispatcher.refuse(request, body.resource, error)
            return
        self.dispatcher.arrivals.receive(
            body.size, body.artifact, body.transfer_id, lambda data, error: self._finish_load(request, body, data, error)
        )

    def _finish_load(self, request: int, body: ExecutableLoad, artifact: memoryview, error: Error | None) -> None:
        quotas = self.dispatcher.quotas
        try:
            if error is not None:
                raise error
            if body.device >= len(self.devices):
                raise UsageError(f"there is no device {body.device}; the server has {len(self.devices)}")
            executable = self.devices[body.device].load_artifact(Target(*body.target), artifact, parse_kernels(body.manifest))
        except Error as failure:
            quotas.executables.give_back()
            self.dispatcher.refuse(request, body.resource, failure)
            return
        quotas.charge(executable, quotas.executables)
        self.dispatcher.grant(request, body.resource, ResourceType.EXECUTABLE, executable)


def _leave(_: CommandReceived) -> None:
    """A command that came after the last call: the end of the session fails it."""
