"""A session, its three carriers, one lock, and the thread that reads the control lane and watches the clock.

    lock      guards the session; held for microseconds, never during I/O or a callback
    turn      one a lane: whoever holds it sends what the session wrote; the others leave their bytes to it
    thread    "remora link": control lane, heartbeat, and whatever its `watch` adds (the client's pump, the server's supervisor)

A failure seen anywhere ends in `fail`: first cause wins, carriers and transfers end, and the handler hears of it once (H05).
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from time import monotonic
from typing import Protocol

from remora.carriers.carrier import Carrier
from remora.errors import Error, PeerError
from remora.link.bulk import BulkLane
from remora.session.events import Event, Failed
from remora.session.session import Session
from remora.session.state import Lane

__all__ = ["GRACE", "Handler", "Link"]

#: Seconds that a broken queue or bulk lane waits for the control lane to bring the cause. A dead peer's lanes all end at once, so
#: only a peer that lives and has the cause to tell is waited for: the server's parent process, which reaps the session's first.
GRACE = 1.0
#: Seconds that the end waits for the control lane's turn to say goodbye.
FAREWELL = 0.04
#: The longest the thread sleeps, in seconds.
NAP = 1.0


class Handler(Protocol):
    """Who hears of events. Called without the lock, from the thread that received them."""

    def on_event(self, event: Event) -> None:
        """One event that is not Failed."""

    def on_failed(self, error: Error) -> None:
        """The session ended. Called once."""


class _Outlet:
    """One lane's way out: whoever has the turn sends, and keeps here what the carrier did not take."""

    __slots__ = ("carrier", "rest", "turn")

    def __init__(self, carrier: Carrier) -> None:
        self.carrier = carrier
        self.turn = threading.Lock()
        self.rest: memoryview | None = None


class Link:
    """An operational session on its carriers. `start()` runs the thread; `close()` or `fail()` end it."""

    def __init__(self, session: Session, carriers: dict[Lane, Carrier], handler: Handler) -> None:
        self.session = session
        self.lock = threading.Lock()
        self.carriers = carriers
        self.handler = handler
        self.ended = threading.Event()
        self.round_trips = 0
        self.bulk = BulkLane(carriers[Lane.BULK], self._bulk_broken, session.peer)
        self._outlets = {lane: _Outlet(carriers[lane]) for lane in (Lane.CONTROL, Lane.QUEUE)}
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._watched: dict[int, Callable[[], None]] = {}
        self._chores: list[Callable[[float], float]] = []
        self._bulk_arrived = 0
        self._thread: threading.Thread | None = None
        self._reader = 0  # the thread that is in `run`

    # -- sending --------------------------------------------------------------------------------------------------------------

    def flush(self, lane: Lane) -> None:
        """Send what the session has written on a lane. What the carrier has no room for is sent by the thread later."""
        outlet, session = self._outlets[lane], self.session
        while (session.pending(lane) or outlet.rest is not None) and outlet.turn.acquire(blocking=False):
            try:
                failure = self._send(lane, outlet)
            finally:
                outlet.turn.release()
            if failure is not None:
                self.lane_broken(lane, failure)
                return
            if outlet.rest is not None:
                self.wake()
                return

    def _send(self, lane: Lane, outlet: _Outlet) -> Error | None:
        """Give the carrier one buffer. The caller has the lane's turn."""
        data: bytearray | memoryview | None = outlet.rest
        if data is None:
            with self.lock:
                data = self.session.take(lane)
            if not data:
                return None
        try:
            sent = outlet.carrier.send(data)
        except Error as error:
            outlet.rest = None
            return error
        outlet.rest = None if sent == len(data) else memoryview(data)[sent:]
        return None

    def unsent(self, lane: Lane) -> int:
        """Bytes written and not yet taken by the carrier."""
        rest = self._outlets[lane].rest
        return self.session.pending(lane) + (len(rest) if rest is not None else 0)

    # -- receiving ------------------------------------------------------------------------------------------------------------

    def receive(self, lane: Lane, timeout: float | None) -> bool:
        """Read a lane once and hand its events on; False when nothing came in time. Never raises: failures end the link."""
        try:
            lease = self.carriers[lane].receive(timeout)
        except Error as error:
            self.lane_broken(lane, error)
            return True
        if lease is None:
            return False
        try:
            with self.lock:
                events = self.session.receive(lane, lease.view)
            self.hand_on(events)
        finally:
            lease.release()
        return True

    def hand_on(self, events: list[Event]) -> None:
        """Give events to the handler."""
        handler = self.handler
        for event in events:
            if isinstance(event, Failed):
                self._end(event.error)
            else:
                handler.on_event(event)

    # -- the end --------------------------------------------------------------------------------------------------------------

    def lane_broken(self, lane: Lane, error: Error) -> None:
        """A carrier failed, or the peer broke the protocol on it. The control lane may know better why a carrier did (H26)."""
        if lane is not Lane.CONTROL and not isinstance(error, PeerError) and not self.ended.is_set():
            if threading.get_ident() == self._reader:
                deadline = monotonic() + GRACE
                while not self.ended.is_set() and (left := deadline - monotonic()) > 0:
                    self.receive(Lane.CONTROL, left)
            else:
                self.ended.wait(GRACE)
        if not error.origin:
            error = error.copy()
            error.origin = self.session.peer
        self.fail(error)

    def _bulk_broken(self, error: Error) -> None:
        self.lane_broken(Lane.BULK, error)

    def fail(self, error: Error) -> None:
        """End the session with this cause; does nothing when it has ended."""
        with self.lock:
            events = self.session.fail(error)
        self.hand_on(events)

    def close(self, reason: str) -> None:
        """End the session in good order, join the threads and close the carriers. Safe to repeat, not from a callback."""
        with self.lock:
            events = self.session.close(reason)
        self.hand_on(events)
        self.join()

    def _end(self, error: Error) -> None:
        self._say_goodbye()
        for carrier in self.carriers.values():
            carrier.fail(error)
        self.bulk.fail(error)
        self.handler.on_failed(error)
        self.ended.set()
        self.wake()

    def _say_goodbye(self) -> None:
        """Push the last control frame, if the carrier has room: the peer then knows why."""
        outlet = self._outlets[Lane.CONTROL]
        if outlet.turn.acquire(timeout=FAREWELL):
            try:
                while self.unsent(Lane.CONTROL):
                    if self._send(Lane.CONTROL, outlet) is not None or outlet.rest is not None:
                        return
            finally:
                outlet.turn.release()

    def join(self) -> None:
        """Wait for the threads of an ended link and close what it holds. Safe to repeat."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self.bulk.join()
        for carrier in self.carriers.values():
            carrier.close()
        with self.lock:
            wake, self._wake = self._wake, -1
        if wake >= 0:
            os.close(wake)

    # -- the thread -----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Run the thread."""
        self._thread = threading.Thread(target=self.run, name=f"remora link {self.session.peer}", daemon=True)
        self._thread.start()

    def watch(self, fd: int, ready: Callable[[], None] | None) -> None:
        """Have the thread call `ready()` whenever `fd` is readable, or no more. Before `start`, or from the thread."""
        if ready is None:
            self._watched.pop(fd, None)
        else:
            self._watched[fd] = ready

    def chore(self, run: Callable[[float], float]) -> None:
        """Have the thread call `run(now)` each time around; it returns when (monotonic) to call it again. Before `start`."""
        self._chores.append(run)

    def wake(self) -> None:
        """Let the thread look around now."""
        with self.lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def run(self) -> None:
        """What the thread does; the server's session process runs it on its main thread."""
        self._reader = threading.get_ident()
        poll = select.poll()
        registered: dict[int, int] = {}
        while not self.ended.is_set():
            timeout = self._next_time() - monotonic()
            self._register(poll, registered)
            self._serve(poll.poll(max(0.0, timeout) * 1000))

    def _next_time(self) -> float:
        now = monotonic()
        return min(self.session.next_tick(), now + NAP, *(chore(now) for chore in self._chores))

    def _register(self, poll: select.poll, registered: dict[int, int]) -> None:
        """Poll for exactly what is wanted now: input, and room on the carriers that had none."""
        wanted = dict.fromkeys(self._watched, select.POLLIN)
        wanted[self._wake] = wanted[self.carriers[Lane.CONTROL].fileno()] = select.POLLIN
        for outlet in self._outlets.values():
            if outlet.rest is not None:
                fd = outlet.carrier.fileno()
                wanted[fd] = wanted.get(fd, 0) | select.POLLOUT
        wanted.pop(-1, None)
        for fd in registered.keys() - wanted.keys():
            poll.unregister(fd)
        for fd, mask in wanted.items():
            if registered.get(fd) != mask:
                poll.register(fd, mask)
        registered.clear()
        registered |= wanted

    def _tick(self) -> None:
        """Look at the clock. Bulk bytes are a sign of life too, and so is an answer that came while this thread slept."""
        heartbeat = self.session.heartbeat
        arrived = self.carriers[Lane.BULK].statistics().bytes_received
        if arrived != self._bulk_arrived:
            self._bulk_arrived = arrived
            heartbeat.heard = True
        if heartbeat.expired(monotonic()):
            self.receive(Lane.CONTROL, 0)
        with self.lock:
            events = self.session.tick(monotonic())
        self.hand_on(events)

    def _serve(self, ready: list[tuple[int, int]]) -> None:
        control = self.carriers[Lane.CONTROL].fileno()
        for fd, events in ready:
            if fd == self._wake:
                os.eventfd_read(fd)
            elif fd == control and events != select.POLLOUT:
                self.receive(Lane.CONTROL, 0)
            elif events != select.POLLOUT and (call := self._watched.get(fd)) is not None:
                call()
        self._tick()
        if not self.ended.is_set():
            for lane in self._outlets:
                self.flush(lane)
