"""One session on the server, from ACCEPT to its end: the shell around Link and Dispatcher.

control lane    the thread that calls `serve` (the main thread of a session process)
queue lane      "remora queue lane": reads a batch, runs what is short, answers with one send
bulk lane       two threads, started with the first transfer
long kernels    the worker of each HAL queue
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from remora.carriers.carrier import Capability, Carrier, Lease
from remora.errors import DeviceError, Error, PeerError
from remora.hal.device import Device
from remora.hal.threads import start_thread
from remora.link.link import Link
from remora.server.content_line import Contents
from remora.server.dispatch import Dispatcher
from remora.server.ending import Drain, IdleWatch
from remora.server.options import SessionLimits
from remora.session.events import (
    AllocateReceived,
    CommandReceived,
    Event,
    EventAsked,
    Profiled,
    ReleaseReceived,
    RequestReceived,
)
from remora.session.session import Session
from remora.session.state import Lane

__all__ = ["SessionRunner"]

#: Unsent answers, in bytes, above which no more commands are read: a peer that does not read its answers waits for itself.
MAX_UNREAD = 4 << 20
#: How long the queue lane's thread looks at devices before it sleeps and their queues' own threads look, in seconds.
LOOK_S = 1e-3
#: Descriptors that may lie here before the requests that they came with are read.
MAX_PASSED = 16


class SessionRunner:
    """Serves one session on open devices, which it does not own. `serve` returns when the session has ended; then `close` it."""

    def __init__(
        self,
        session: Session,
        carriers: dict[Lane, Carrier],
        devices: Sequence[Device],
        limits: SessionLimits,
        contents: Contents,
    ) -> None:
        self.link = Link(session, carriers, self)
        if Capability.POSIX_FD in carriers[Lane.CONTROL].capabilities:
            carriers[Lane.CONTROL].keep_fds(MAX_PASSED)
        self.devices = devices
        self.dispatcher = Dispatcher(self.link, devices, limits, contents)
        self.error: Error | None = None
        self.takes_commands = True
        """False while the session drains: what comes then is not run. The dispatcher's lock guards it."""
        self._requests = 0
        self._drain: Drain | None = None
        self._idle = None if limits.idle_timeout is None else IdleWatch(limits.idle_timeout, monotonic())
        self.link.chore(self._watch)
        contents.attach(self.link)
        self._queue_thread: threading.Thread | None = None

    def serve(self) -> None:
        """Serve until the session ends. A session process then exits, whatever its kernels still do."""
        try:
            self.link.bulk.start()
            self._queue_thread = start_thread(self._run_queue_lane, "remora queue lane")
        except Error as error:
            self.link.fail(error)
        self.link.run()

    def close(self) -> None:
        """After the end: join the threads and give everything back."""
        self.link.join()
        if self._queue_thread is not None:
            self._queue_thread.join()
        self.dispatcher.close()

    def stop(self, reason: str) -> None:
        """End the session from outside, in good order; `serve` returns soon."""
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
        commands = link.carriers[Lane.QUEUE].statistics().bytes_received
        activity = self._requests + commands + link.bulk.bytes_received + link.bulk.bytes_sent
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
                lease = self._next_batch(carrier)
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
                dispatcher.report(keep=True)
            link.flush(Lane.QUEUE)
            while link.unsent(Lane.QUEUE) > MAX_UNREAD and not link.ended.wait(0.01):
                link.flush(Lane.QUEUE)

    def _next_batch(self, carrier: Carrier) -> Lease | None:
        """The next bytes. Until they come, what devices do by themselves is looked at for `LOOK_S`, and told when it is done."""
        dispatcher, until = self.dispatcher, monotonic() + LOOK_S
        while dispatcher.busy:
            lease = carrier.receive(timeout=0)
            if lease is not None:
                return lease
            with dispatcher.lock:
                news = dispatcher.look(keep=monotonic() < until)
            if news:
                self.link.flush(Lane.QUEUE)
        return carrier.receive()

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
            self._do(self.dispatcher.call, event.id, event.body)
        elif type(event) is Profiled:
            self._do(self.dispatcher.profiles.taken, event.body)

    def _do(self, work: Callable[..., None], *args: Any) -> None:
        try:
            work(*args)
        except Exception as error:
            self._blame(error)

    def arriving(self) -> bool:
        """See `link.Handler`."""
        return False

    def on_failed(self, error: Error) -> None:
        """See `link.Handler`."""
        self.error = error


def _leave(_: CommandReceived) -> None:
    """A command that came after the last call: the end of the session fails it."""
