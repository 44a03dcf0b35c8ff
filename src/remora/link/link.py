"""A session, its three carriers, one lock, and the thread that reads the control lane and watches the clock.

    lock      guards the session; held for microseconds, never during I/O or a callback
    turn      one a lane: whoever holds it sends what the session wrote; the others leave their bytes to it
    thread    "remora link": control lane, heartbeat, and whatever its `watch` adds (the client's pump, the server's supervisor)

A failure seen anywhere ends in `fail`: first cause wins, carriers and transfers end, and the handler hears of it once (H05).

Ctrl-C may come in the middle of any step of a calling thread. A wait that it ends can be made again. A step that it cuts short
ends the session (`cut_short`), because nobody can tell what is half done; if the end itself is cut short, `close` makes it whole.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import Protocol, TypeVar

from remora.carriers.carrier import Carrier
from remora.errors import BrokenError, Error, PeerError
from remora.hal.threads import start_thread
from remora.link.bulk import BulkLane
from remora.link.latch import Latch, Turn
from remora.link.probe import Probe
from remora.link.wake import Wake
from remora.session.events import Event, Failed
from remora.session.session import Session
from remora.session.state import Lane, Role
from remora.session.transfers import MIN_STAGING

__all__ = ["GRACE", "Handler", "Link"]

#: Seconds that a broken queue or bulk lane waits for the control lane to bring the cause. A dead peer's lanes all end at once, so
#: only a peer that lives and has the cause to tell is waited for: the server's parent process, which reaps the session's first.
GRACE = 3.0
#: Seconds that the end waits for the control lane's turn to say goodbye.
FAREWELL = 0.04
#: Seconds between two looks at an end that another thread is bringing about.
PAUSE = 0.001
#: Seconds that answers and downloads have to arrive after the peer's GOAWAY.
ARRIVAL = 1.0
#: The longest the thread sleeps, in seconds.
NAP = 1.0

T = TypeVar("T")


class Handler(Protocol):
    """Who hears of events. Called without the lock, from the thread that received them."""

    def on_event(self, event: Event) -> None:
        """One event that is not Failed."""

    def on_failed(self, error: Error) -> None:
        """The session ended. Called once."""

    def arriving(self) -> bool:
        """Whether bytes are still on their way that the peer has said are sent."""


class _Outlet:
    """One lane's way out: whoever has the turn sends, and keeps here what the carrier did not take."""

    __slots__ = ("carrier", "rest", "turn")

    def __init__(self, carrier: Carrier) -> None:
        self.carrier = carrier
        self.turn = Turn()
        self.rest: memoryview | None = None


class _Step:
    """What is done with `with link.step:` is whole, or the session has ended. Not with a lock held, the link's or a queue's."""

    __slots__ = ("_link",)

    def __init__(self, link: Link) -> None:
        self._link = link

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is not None:
            self._link.cut_short(error)


class Link:
    """An operational session on its carriers. `start()` runs the thread; `close()` or `fail()` end it.

    Raises BusyError when there is no descriptor left for it; the carriers are then still the caller's.
    """

    def __init__(self, session: Session, carriers: dict[Lane, Carrier], handler: Handler) -> None:
        self.session = session
        self.lock = threading.Lock()
        self.carriers = carriers
        self.handler = handler
        self.ended = Latch()
        self.step = _Step(self)
        self.round_trips = 0
        self.bulk = self._bulk_lane()
        self._outlets = {lane: _Outlet(carriers[lane]) for lane in (Lane.CONTROL, Lane.QUEUE)}
        self._wake = Wake()
        self._watched: dict[int, Callable[[], None]] = {}
        self._chores: list[Callable[[float], float]] = []
        if session.role is Role.CLIENT:
            self._chores.append(Probe(session, self.bulk, self._ask).look)
        self._bulk_arrived = 0
        self._runs_in: threading.Thread | None = None
        self._reader = 0  # the thread that is in `run`
        self._reading_end = False  # that thread reads what the peer said last
        self._ending = 0  # the thread that brings about the end
        self._broken: Error | None = None  # why a lane broke, the first that did

    # -- sending --------------------------------------------------------------------------------------------------------------

    def flush(self, lane: Lane) -> None:
        """Send what the session has written on a lane. What the carrier has no room for is sent by the thread later."""
        outlet, session = self._outlets[lane], self.session
        failure: Error | None = None
        try:
            while failure is None and (session.pending(lane) or outlet.rest is not None):
                for mine in outlet.turn.attempt:
                    if not mine:
                        return
                    break
                try:
                    failure = self._send(lane, outlet)
                finally:
                    outlet.turn.release()
                if outlet.rest is not None:
                    self.wake()
                    return
        except BaseException as error:
            self.cut_short(error)
            raise
        if failure is not None:
            self.lane_broken(lane, failure, sending=True)

    def send_with_descriptor(self, write: Callable[[], T], fd: int, timeout: float | None = None) -> T:
        """Send the one control frame that `write()` writes, called under the lock, with a descriptor attached to it.

        It may write nothing; then nothing is sent. Needs a control carrier with POSIX_FD. Blocks while the peer does not read, and
        ends the session after `timeout` seconds of that.
        """
        outlet = self._outlets[Lane.CONTROL]
        try:
            outlet.turn.acquire()
            try:
                written, failure = self._send_along(outlet, write, fd, timeout)
            finally:
                outlet.turn.release()
        except BaseException as error:
            self.cut_short(error)
            raise
        if failure is not None:
            self.lane_broken(Lane.CONTROL, failure, sending=True)
        self.flush(Lane.CONTROL)
        return written

    def _send_along(self, outlet: _Outlet, write: Callable[[], T], fd: int, timeout: float | None) -> tuple[T, Error | None]:
        """The caller has the control lane's turn."""
        session = self.session
        with self.lock:
            before = bytes(outlet.rest or b"") + session.take(Lane.CONTROL)
            outlet.rest = memoryview(before) if before else None
            written = write()
            frame = session.take(Lane.CONTROL)
        try:
            if outlet.rest is not None:
                outlet.carrier.send_all(outlet.rest, timeout=timeout)
            outlet.rest = None
            if frame:
                outlet.carrier.send_fds(frame, (fd,), timeout)
        except Error as error:
            outlet.rest = None
            return written, error
        return written, None

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
        """Read a lane once and hand its events on; False when nothing came in time. Never raises: failures end the link.

        An interruption passes through. While this waited, nothing was lost; later, the session has ended.
        """
        carrier = self.carriers[lane]
        try:
            lease = carrier.receive(timeout)
        except Error as error:
            self.lane_broken(lane, error)
            return True
        except BaseException as error:
            if carrier.failure is not None:
                self.cut_short(error)
            raise
        if lease is None:
            return False
        try:
            try:
                with self.lock:
                    events = self.session.receive(lane, lease.view)
                self.hand_on(events)
            finally:
                lease.release()
        except BaseException as error:
            self.cut_short(error)
            raise
        return True

    def hand_on(self, events: list[Event]) -> None:
        """Give events to the handler."""
        handler = self.handler
        for event in events:
            if isinstance(event, Failed):
                self._settle()
            else:
                handler.on_event(event)

    # -- the end --------------------------------------------------------------------------------------------------------------

    def lane_broken(self, lane: Lane, error: Error, *, sending: bool = False) -> None:
        """A carrier failed, or the peer broke the protocol on it. What arrives on the control lane may say better why (H26).

        Also when it was a send on the control lane itself that failed: what the peer said before it closed can still be read. A
        peer that answers a PING has nothing to say: its connection broke alone. Of several that break the first is the cause.
        """
        if self._broken is None and not isinstance(error, PeerError):
            self._broken = error.copy()
        if (lane is not Lane.CONTROL or sending) and not isinstance(error, PeerError) and not self.ended.is_set():
            if threading.get_ident() == self._reader:
                if self._reading_end:
                    return  # a send failed once more while the end is being read
                self._reading_end = True
                deadline, nonce = monotonic() + GRACE, 0 if sending else self._ask()
                while not self.ended.is_set() and not self._answered(nonce) and (left := deadline - monotonic()) > 0:
                    self.receive(Lane.CONTROL, left)
                    if self.carriers[Lane.CONTROL].failure is not None:
                        self.ended.wait(PAUSE)  # another thread is ending the link
                if not self.ended.is_set():
                    self.receive(Lane.CONTROL, 0)  # this thread may have had no turn until now
            else:
                self._await_reason(0 if sending else self._ask())
        cause = error if self._broken is None or isinstance(error, PeerError) else self._broken
        failure = cause.copy()  # without the traceback, whose frames hold memory
        failure.origin = cause.origin or self.session.peer
        self.fail(failure)

    def _await_reason(self, nonce: int) -> None:
        """Another thread reads the control lane: until it has ended the link, the peer has answered, or time is up."""
        deadline = monotonic() + 2 * GRACE
        while not self.ended.wait(PAUSE) and not self._answered(nonce) and monotonic() < deadline:
            continue

    def _answered(self, nonce: int) -> bool:
        return nonce > 0 and self.session.heartbeat.answered(nonce)

    def _bulk_lane(self) -> BulkLane:
        """The bulk lane. The server stages what ACCEPT says, a client the least that there is: its uploads alone run ahead."""
        accepted, session = self.session.accepted, self.session
        staging = accepted.staging if accepted is not None else MIN_STAGING
        budgets = (MIN_STAGING, staging) if session.role is Role.CLIENT else (staging, MIN_STAGING)
        return BulkLane(
            [carrier for lane, carrier in sorted(self.carriers.items()) if lane >= Lane.BULK],
            self._bulk_broken,
            session.peer,
            self.commands_moved,
            stages=budgets[0],
            peer_stages=budgets[1],
            began=self.wake,
        )

    def _ask(self) -> int:
        """Send a PING now and return its nonce, 0 when the session has ended."""
        with self.lock:
            nonce = 0 if self.session.failure is not None else self.session.ask()
        self.flush(Lane.CONTROL)
        return nonce

    def commands_moved(self) -> int:
        """A count that every frame of the queue lane moves."""
        count = self.carriers[Lane.QUEUE].statistics()
        return count.bytes_sent + count.bytes_received

    def _bulk_broken(self, error: Error) -> None:
        self.lane_broken(Lane.BULK, error)

    def fail(self, error: Error) -> None:
        """End the session with this cause; does nothing when it has ended."""
        with self.lock:
            events = self.session.fail(error)
        self.hand_on(events)

    def cut_short(self, interruption: BaseException) -> None:
        """A step of this thread was not finished. Unless it was an Exception, which has its own ways, the session ends.

        Call it without a lock; it raises nothing.
        """
        if isinstance(interruption, Exception):
            return
        with self.lock:
            self.session.close(f"{type(interruption).__name__} came in the middle of a step; open the device again")
        self._settle()

    def close(self, reason: str) -> None:
        """End the session in good order, join the threads and close the carriers. Safe to repeat, not from a callback."""
        with self.lock:
            self.session.close(reason)
        self.join()

    def _settle(self) -> None:
        """Do what the end of the session brings with it, unless a thread does that, or has. Each part of it can be repeated."""
        error, me = self.session.failure, threading.get_ident()
        if error is None or self.ended.is_set():
            return
        try:
            with self.lock:
                if self._ending:
                    return
                self._ending = me
            self._end(error)
        except BaseException:
            if self._ending == me:
                self._ending = 0
            raise

    def _end(self, error: Error) -> None:
        self._say_goodbye()
        if self.session.dismissed:
            self._let_arrive()
        for carrier in self.carriers.values():
            carrier.fail(error)
        self.bulk.fail(error)
        self.handler.on_failed(error)
        self.ended.set()
        self.wake()

    def _let_arrive(self) -> None:
        """A GOAWAY may overtake the last answers, and the bytes of downloads: each lane is a connection of its own."""
        deadline, pause = monotonic() + ARRIVAL, threading.Event()
        while self.session.owed_answers and monotonic() < deadline and self._take_answers(deadline):
            pause.wait(PAUSE)
        while self.handler.arriving() and monotonic() < deadline:
            pause.wait(PAUSE)

    def _take_answers(self, deadline: float) -> bool:
        """Read the queue lane while answers are owed; False at its end, True while another thread reads it."""
        carrier = self.carriers[Lane.QUEUE]
        try:
            while self.session.owed_answers and (lease := carrier.receive(max(0.0, deadline - monotonic()))) is not None:
                with lease:
                    with self.lock:
                        events = self.session.receive(Lane.QUEUE, lease.view)
                    self.hand_on(events)
        except Error:
            return carrier.failure is None
        return False

    def _say_goodbye(self) -> None:
        """Push the last control frame, if the carrier has room: the peer then knows why."""
        outlet = self._outlets[Lane.CONTROL]
        if outlet.turn.acquire(True, FAREWELL):
            try:
                while self.unsent(Lane.CONTROL):
                    if self._send(Lane.CONTROL, outlet) is not None or outlet.rest is not None:
                        return
            finally:
                outlet.turn.release()

    def join(self) -> None:
        """Wait for the threads of an ended link and close what it holds. Safe to repeat."""
        self._settle()
        thread = self._runs_in
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self.bulk.join()
        for carrier in self.carriers.values():
            carrier.close()
        with self.lock:
            self._wake.close()

    # -- the thread -----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Run the thread. Raises BusyError when the system gives no more threads; then `join` closes what the link holds."""
        self._runs_in = start_thread(self.run, f"remora link {self.session.peer}")

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
            self._wake.ring()

    def run(self) -> None:
        """What the thread does; the server's session process runs it on its main thread."""
        self._reader = threading.get_ident()
        try:
            self._run()
        except (OSError, MemoryError) as error:
            self.fail(BrokenError(f"the thread that serves the connection cannot go on: {type(error).__name__} {error}"))

    def _run(self) -> None:
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
        wanted[self._wake.fileno()] = wanted[self.carriers[Lane.CONTROL].fileno()] = select.POLLIN
        for outlet in self._outlets.values():
            if outlet.rest is not None:
                fd, room = outlet.carrier.room_fileno()
                wanted[fd] = wanted.get(fd, 0) | room
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
        arrived = self.bulk.bytes_received
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
            if fd == self._wake.fileno():
                self._wake.hush()
            elif fd == control and events != select.POLLOUT:
                self.receive(Lane.CONTROL, 0)
            elif events != select.POLLOUT and (call := self._watched.get(fd)) is not None:
                call()
        self._tick()
        if not self.ended.is_set():
            for lane in self._outlets:
                self.flush(lane)
