"""What all byte-stream carriers share: life, sticky failure, the send turn, kept bytes, leases, counts.

A subclass gives eight primitives (`_put` and the ones below it); they may raise OSError, which becomes the failure here.

Who may send is a token, `_turn`, and who may receive is another one, `_inbox`: a list with one element, which pop takes and append
gives back. Both are atomic and cost a third of a Lock. A send that does not get the turn takes nothing, so no send waits behind a
bulk transfer. Who wants something at the end of a running send (kept bytes to push, the turn itself, the descriptor to be closed)
says so in `_late`; whoever gives the turn back looks there. `_lock` guards state, failure and kept bytes, and is held for moments;
it is reentrant, because a signal handler may close the carrier.

Ctrl-C may come after any call in the main thread, before the result of that call is kept. A `for` keeps what it gets in one step,
so tokens and received bytes are taken by one (over a `map`), and a wait that is interrupted has lost nothing. An interruption
anywhere else leaves a stream of which nobody knows what it has sent or lost: it fails the carrier.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from itertools import islice, repeat
from threading import Condition, RLock
from time import monotonic
from typing import TYPE_CHECKING

from remora.carriers.carrier import Budget, Capability, Carrier, CarrierState, Lease, Reservation, Span, Statistics
from remora.carriers.causes import broken
from remora.carriers.pieces import SPANS, advance, batch, pieces_of
from remora.errors import BrokenError, BusyError, ClosedError, DeadlineError, Error, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["TICK", "Endpoint"]

#: Bytes and count of reservations that may be open or kept.
RESERVE_BYTES = 1 << 20
RESERVE_SLOTS = 64
#: Size of a receive buffer, and how many leases may be out.
LEASE_BYTES = 256 << 10
LEASES = 8
#: Seconds that a blocking primitive waits before it returns.
TICK = 0.1


class Endpoint(Carrier):
    """A carrier over eight primitives."""

    def __init__(self, local: str, peer: str, capabilities: Capability) -> None:
        self.local = local
        self.peer = peer
        self.capabilities = capabilities
        self._state = CarrierState.CREATED
        self._failure: Error | None = None
        self._lock = RLock()
        self._turn: list[None] = [None]
        self._turn_lock = RLock()  # entered by itself: a Condition is entered in steps
        self._turn_free = Condition(self._turn_lock)
        self._inbox: list[None] = [None]
        # Bound once: looking a method up twice in each call is a tenth of what a call costs here.
        self._turns, self._end_turn = map(self._turn.pop, repeat(-1)), self._turn.append
        self._look = self._woke = _look_at_nothing
        self._inboxes, self._end_inbox = map(self._inbox.pop, repeat(-1)), self._inbox.append
        self._sendable = False
        self._receivable = False
        self._taking = False  # whether a primitive is at a place where an interruption loses bytes
        self._kept: deque[memoryview] = deque()
        self._late = False
        self._ending = False
        self._pending_bytes = 0
        self._pending_slots = 0
        self._leases: list[Lease] = []
        self._lease_count = 0
        self._bytes_sent = self._bytes_received = self._sends = self._receives = 0

    # -- primitives ------------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _put(self, spans: Sequence[Span]) -> int:
        """Take bytes now and return how many; BlockingIOError when there is no room; 0 only for empty input."""

    @abstractmethod
    def _put_wait(self, spans: Sequence[Span]) -> int:
        """As `_put`, but wait up to TICK for room."""

    #: Receive into the room given, waiting up to TICK: the count, 0 at the end of the stream, BlockingIOError when nothing came.
    #: A plain attribute, so that a socket can put its own method here.
    _take_tick: Callable[[Span], int]
    #: Called before and after a `receive` that may sleep, by the thread that has the inbox: see `spin.Lookout`.
    _look: Callable[[], None]
    _woke: Callable[[], None]

    @abstractmethod
    def _take_soon(self, room: Span, timeout: float) -> int:
        """As `_take_tick`, but within `timeout`, which is less than a tick; -1 when nothing came."""

    @abstractmethod
    def _wait_room(self, timeout: float | None) -> bool:
        """Wait until `_put` may take bytes, or until `_interrupt`."""

    @abstractmethod
    def _end_output(self) -> None:
        """Tell the peer that no more bytes come."""

    @abstractmethod
    def _interrupt(self) -> None:
        """Wake every blocked primitive of this end and end the stream both ways. Called under `_lock`."""

    @abstractmethod
    def _dispose(self) -> None:
        """Let go of what the system holds. Called once, under `_lock`."""

    # -- life ------------------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> CarrierState:
        return self._state

    @property
    def failure(self) -> Error | None:
        return self._failure

    def activate(self) -> None:
        with self._lock:
            if self._failure is not None:
                raise self._failure.copy()
            if self._state is not CarrierState.CREATED:
                raise UsageError("activate() was called before; a carrier is activated once")
            self._state = CarrierState.ACTIVE
            self._sendable = self._receivable = True

    def fail(self, error: Error) -> None:
        self._settle_failure(error, hide=True)

    def shutdown(self) -> None:
        with self._lock:
            if self._failure is not None or self._state is CarrierState.DRAINING:
                return
            if self._state is CarrierState.CREATED:
                raise self._refusal("shutdown")
            self._state = CarrierState.DRAINING
            self._sendable = False
            self._ending = True
        self._push()

    def close(self) -> None:
        if self._state is CarrierState.CLOSED:
            return
        self._push()
        with self._lock:
            self._state = CarrierState.CLOSED
        self.fail(ClosedError("this carrier was closed", origin=self.local))
        self._dispose_alone()

    def _dispose_alone(self) -> None:
        """Dispose when closed and nobody is inside a call; else whoever is inside comes here on the way out."""
        with self._lock:
            if self._state is CarrierState.CLOSED and self._take_both():
                self._dispose()

    def _take_inbox(self) -> bool:
        """Become the one that receives, until `_end_inbox(None)`; False when another thread is."""
        return _taken(self._inboxes)

    def _take_both(self) -> bool:
        """Both tokens, for good, or none. With them go the receive buffers, which refer to their list. Called under `_lock`."""
        if not _taken(self._turns):
            return False
        if _taken(self._inboxes):
            self._leases.clear()
            return True
        self._end_turn(None)
        return False

    def statistics(self) -> Statistics:
        return Statistics(self._bytes_sent, self._bytes_received, self._sends, self._receives)

    def _settle_failure(self, error: Error, hide: bool = False) -> Error:
        """Make `error` the failure unless there is one; `hide` also hides bytes that have arrived. Returns a copy to raise."""
        with self._lock:
            if self._failure is None:
                self._failure = error
            self._sendable = False
            if hide:
                self._receivable = False
            self._interrupt()
            failure = self._failure.copy()
        with self._turn_lock:
            self._turn_free.notify_all()
        return failure

    def _broke(self, error: OSError) -> Error:
        return self._settle_failure(broken(self.peer, error))

    def _refusal(self, verb: str) -> Error:
        """Why a call is not possible now."""
        if self._failure is not None:
            return self._failure.copy()
        if self._state is CarrierState.CREATED:
            return UsageError(f"call activate() before {verb}")
        return UsageError(f"{verb} after shutdown(): the send side has ended")

    # -- sending ---------------------------------------------------------------------------------------------------------------

    def send(self, *spans: Span) -> int:
        if not self._sendable:
            raise self._refusal("send")
        try:
            for _ in self._turns:
                break
        except IndexError:
            if self._failure is not None:
                raise self._failure.copy() from None
            return 0
        try:
            if self._kept:
                self._drain()
            count = self._put(spans)
            if not count:
                raise UsageError("nothing to send: give at least one byte")
            self._bytes_sent += count
            self._sends += 1
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._broke(error) from error
        except BaseException as error:
            self._cut_short(error)
            raise
        else:
            return count
        finally:
            self._end_turn(None)
            if self._late:
                self._push()

    def _cut_short(self, interruption: BaseException) -> None:
        """Something that is no Exception came in the middle of a call."""
        if not isinstance(interruption, Exception):
            story = f"{type(interruption).__name__} came while bytes moved: the stream is cut; connect again"
            self._settle_failure(BrokenError(story, origin=self.peer))

    def send_all(self, *spans: Span, timeout: float | None = None) -> None:
        if not self._sendable:
            raise self._refusal("send_all")
        deadline = None if timeout is None else monotonic() + timeout
        pieces = pieces_of(spans)
        if not pieces:
            raise UsageError("nothing to send: give at least one byte")
        self._wait_turn(deadline)
        try:
            self._drain_until(deadline)
            self._put_all(pieces, deadline)
        except BlockingIOError as error:
            raise DeadlineError("the peer did not take the bytes in the time given", origin=self.peer) from error
        except OSError as error:
            raise self._broke(error) from error
        finally:
            self._end_turn(None)
            if self._late:
                self._push()

    def _put_all(self, pieces: deque[memoryview], deadline: float | None) -> None:
        """Everything, or BlockingIOError at the deadline. A stop on the way cuts the stream, so it fails the carrier."""
        total = sum(map(len, pieces))
        sent = 0
        try:
            while True:
                try:
                    count = self._put_wait(batch(pieces))
                    advance(pieces, count)
                    sent += count
                    if not pieces:
                        break
                except BlockingIOError:
                    if deadline is None:
                        continue
                if deadline is not None and monotonic() >= deadline:
                    raise BlockingIOError
        except BaseException as error:
            self._cut_short(error)
            if sent and (not isinstance(error, OSError) or isinstance(error, BlockingIOError)):
                self._settle_failure(
                    BrokenError(f"sending stopped after {sent} of {total} bytes: the stream is cut", origin=self.peer)
                )
            raise
        finally:
            self._bytes_sent += sent
        self._sends += 1

    def _wait_turn(self, deadline: float | None) -> None:
        """Take the turn, however long another thread sends. DeadlineError at the deadline; raises the failure."""
        with self._turn_lock:
            while True:
                self._late = True
                if self._failure is not None:
                    raise self._failure.copy()
                if _taken(self._turns):
                    return
                if not self._turn_free.wait(None if deadline is None else max(deadline - monotonic(), 0)):
                    raise DeadlineError("another send did not finish in the time given", origin=self.peer)

    def wait_writable(self, timeout: float | None = None) -> bool:
        if self._failure is not None or self._state is CarrierState.CREATED:
            raise self._refusal("wait_writable")
        deadline = None if timeout is None else monotonic() + timeout
        try:
            self._wait_turn(deadline)
        except DeadlineError:
            return False
        self._end_turn(None)
        if self._late:
            self._push()
        ready = self._wait_room(None if deadline is None else max(deadline - monotonic(), 0))
        if self._failure is not None:
            raise self._failure.copy()
        return ready

    # -- reservations and kept bytes -------------------------------------------------------------------------------------------

    def reserve(self, size: int) -> Reservation:
        if not self._sendable:
            raise self._refusal("reserve")
        if not 0 < size <= RESERVE_BYTES:
            raise UsageError(f"cannot reserve {size} bytes: give 1 to {RESERVE_BYTES}, or use send_all")
        with self._lock:
            if self._pending_bytes + size > RESERVE_BYTES or self._pending_slots >= RESERVE_SLOTS:
                raise BusyError(
                    f"{self._pending_bytes} bytes are reserved or kept; wait_writable() and flush() make room", origin=self.peer
                )
            self._pending_bytes += size
            self._pending_slots += 1
        return Reservation(memoryview(bytearray(size)), self._settle)

    def _settle(self, view: memoryview, publish: bool) -> None:
        """Commit or abort a reservation."""
        with self._lock:
            live = publish and self._sendable
            if live:
                self._kept.append(view)
            else:
                self._pending_bytes -= len(view)
                self._pending_slots -= 1
        if live:
            self._push()
        elif publish:
            raise self._refusal("commit")

    def flush(self) -> bool:
        if self._failure is None:
            self._push()
        if self._failure is not None:
            raise self._failure.copy()
        return not self._kept

    def budget(self) -> Budget:
        if not self._sendable:
            return Budget(0, 0)
        room = RESERVE_BYTES - self._pending_bytes if self._wait_room(0) else 0
        return Budget(room, RESERVE_SLOTS - self._pending_slots)

    def _push(self) -> None:
        """Do what is due when no send is running: send what is kept as far as there is room, then the end, then let others in."""
        self._late = True
        while self._late and _taken(self._turns):
            self._late = False
            try:
                self._drain()
                if self._ending:
                    self._ending = False
                    self._end_output()
            except BlockingIOError:
                pass
            except OSError as error:
                self._broke(error)
            finally:
                self._end_turn(None)
                with self._turn_lock:
                    self._turn_free.notify_all()
        if self._state is CarrierState.CLOSED:
            self._dispose_alone()

    def _drain(self) -> None:
        """Send all that is kept; BlockingIOError when there is no room. The caller holds the turn."""
        while self._kept:
            with self._lock:
                spans = tuple(islice(self._kept, SPANS))
            count = self._put(spans)
            with self._lock:
                self._pending_slots -= advance(self._kept, count)
                self._pending_bytes -= count
            self._bytes_sent += count
            self._sends += 1

    def _drain_until(self, deadline: float | None) -> None:
        while self._kept:
            try:
                self._drain()
            except BlockingIOError:
                if not self._wait_room(None if deadline is None else max(deadline - monotonic(), 0)):
                    raise

    # -- receiving -------------------------------------------------------------------------------------------------------------

    def receive(self, timeout: float | None = None) -> Lease | None:
        if not self._receivable:
            raise self._refusal("receive")
        try:
            for _ in self._inboxes:
                break
        except IndexError:
            self._take_held_inbox()
        count, waiting, lease = 0, False, None
        try:
            try:
                lease = self._leases.pop() if self._leases else self._another_lease()
                waiting = True
                try:
                    if timeout is None or timeout > TICK:
                        self._look()
                        for taken in lease.take_by(self._take_tick):
                            count = taken
                            break
                    else:
                        count = self._take_soon(lease._room, timeout)
                except BlockingIOError:
                    count = self._take_on(lease._room, timeout)
                waiting = False
                if count > 0:
                    self._bytes_received += count
                    self._receives += 1
                    lease.view = lease._room[:count]
                    return lease
            finally:
                self._end_inbox(None)
                self._woke()
                if count <= 0 or self._failure is not None:
                    self._keep(lease, count)
        except BaseException as error:
            self._explain(error, lost=count > 0 or self._taking or not waiting)
            raise
        self._check_end(count)
        return None

    def _explain(self, error: BaseException, lost: bool) -> None:
        """Why a primitive ended so: raises the failure that an OSError is. An interruption fails the carrier if it lost bytes."""
        if isinstance(error, OSError):
            raise self._broke(error) from error
        if lost:
            self._cut_short(error)

    def _keep(self, lease: Lease | None, count: int) -> None:
        """After a receive that brought nothing, or the last one. Another thread may have closed the carrier meanwhile."""
        if count <= 0 and lease is not None:
            self._leases.append(lease)
        if self._failure is not None:
            self._dispose_alone()
            if self._state is CarrierState.CLOSED:
                self._leases.clear()

    def receive_into(self, view: Span, timeout: float | None = None) -> int:
        if not self._receivable:
            raise self._refusal("receive_into")
        if not len(view):
            raise UsageError("receive_into needs room for at least one byte")
        try:
            for _ in self._inboxes:
                break
        except IndexError:
            self._take_held_inbox()
        try:
            try:
                count = self._take_tick(view) if timeout is None or timeout > TICK else self._take_soon(view, timeout)
            except BlockingIOError:
                count = self._take_on(view, timeout)
            if count > 0:
                self._bytes_received += count
                self._receives += 1
                return count
        except BaseException as error:
            self._explain(error, lost=True)
            raise
        finally:
            self._end_inbox(None)
            if self._failure is not None:
                self._dispose_alone()
        self._check_end(count)
        return 0

    def _take_on(self, view: Span, timeout: float | None) -> int:
        """Go on waiting after a first tick of `timeout`; -1 when nothing came. Only here the clock is read."""
        deadline = None if timeout is None else monotonic() + timeout - TICK
        while True:
            left = TICK * 2 if deadline is None else deadline - monotonic()
            if left <= TICK:
                return self._take_soon(view, max(left, 0))
            try:
                for count in map(self._take_tick, (view,)):
                    return count
            except BlockingIOError:
                continue

    def _take_held_inbox(self) -> None:
        """Another thread has the inbox: raises, unless it is a thread that has it for a moment and receives nothing."""
        raise self._crowded()

    def _crowded(self) -> Error:
        if self._failure is not None:
            return self._failure.copy()
        return BusyError("another thread is receiving; one receives at a time", origin=self.local)

    def _check_end(self, count: int) -> None:
        """Nothing after a timeout; at the end of the stream raises the failure, which the end is if there is none yet."""
        if count < 0 and self._failure is None:
            return
        raise self._settle_failure(BrokenError("the peer closed the connection", origin=self.peer))

    def _another_lease(self) -> Lease:
        if self._lease_count >= LEASES:
            raise BusyError(f"all {LEASES} leases are out; release one before the next receive", origin=self.local)
        try:
            lease = Lease(self._leases, memoryview(bytearray(LEASE_BYTES)))
        except MemoryError as error:
            raise BrokenError("this process has no memory for a receive buffer; close something here", origin=self.local) from error
        self._lease_count += 1
        return lease


def _look_at_nothing() -> None:
    """Where nothing looks for bytes, or the primitive does so itself."""


def _taken(tokens: Iterator[None]) -> bool:
    """Take a token; False when it is out."""
    try:
        for _ in tokens:
            return True
    except IndexError:
        return False
    return False
