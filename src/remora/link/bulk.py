"""The bulk lane: payload moves straight between the caller's memory and the socket, beside commands (H02).

One thread sends (what the receiver owes, and chunks of runnable transfers in turn), one receives; both start with the first
transfer. The receiver never sends and never waits for a destination, so two sides that send to each other cannot lock up.
A transfer's memory is not touched any more when its `done` is called, whoever gave it up.

A lane may have more connections, with two threads each. They carry DATA of transfers that have credit and nothing else: so START,
COMPLETE, ABORT, CREDIT and what is staged keep their order on the first one, and what overtakes it finds its place known.

Where both sides share memory a transfer may move by a loan instead (`borrowing.py`): no bytes of it go over the lane.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from time import monotonic

from remora.carriers.carrier import Carrier
from remora.errors import BrokenError, DeviceError, Error, PeerError
from remora.hal.threads import start_thread
from remora.link.borrowing import Borrowed, Borrower, Loan
from remora.link.incoming import Incoming, ReceiveTable
from remora.link.outgoing import Outgoing, SendSchedule
from remora.link.strand import Strand
from remora.link.transfer import Done
from remora.session.transfers import MIN_STAGING
from remora.wire import bulk as wire
from remora.wire.bulk import BULK_HEADER, CREDIT, DATA, BulkHeader, decode_abort, decode_bulk, encode_abort, encode_bulk

__all__ = ["BulkLane", "Done"]

#: Credits that may come for transfers that have not begun here, and aborts that are remembered for such.
MAX_EARLY_CREDITS = 1 << 16
MAX_EARLY_ABORTS = 1024


class BulkLane:
    """Transfers over one carrier or several. `broken(error)` is called once when the lane fails by itself. Any thread may call.

    `activity()` is a count that small commands beside the transfers move: while it moves, transfers let them go first.
    `stages` bytes may come here before their destination is known, `peer_stages` may go out so. `began()` is called when the
    threads start, by one of them.
    """

    def __init__(
        self,
        carriers: Sequence[Carrier],
        broken: Callable[[Error], None],
        name: str,
        activity: Callable[[], int] = lambda: 0,
        *,
        stages: int = MIN_STAGING,
        peer_stages: int = MIN_STAGING,
        began: Callable[[], None] = lambda: None,
    ) -> None:
        self._strands = [Strand(index, carrier, activity) for index, carrier in enumerate(carriers)]
        self._broken = broken
        self._name = name
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._began = began
        self._loans: dict[int, Loan] = {}  # of memory here to the peer
        self._borrower: Borrower | None = None
        self._forget: Callable[[int], None] = _nobody
        self._outgoing = SendSchedule(peer_stages)
        self._incoming = ReceiveTable(stages, len(self._strands))
        self._credits: dict[int, int] = {}  # that came before `send`
        self._aborts: dict[int, Error] = {}  # that came before `send` or `expect`
        self._ended: deque[tuple[Done, Error]] = deque()  # to be told by the sender's thread
        self._verdict: Error | None = None  # a peer's mistake that a caller's thread found; the sender's thread fails the lane
        self._failure: Error | None = None
        self._threads: list[threading.Thread] = []
        self._running = [0, 0]  # threads that send, and that receive
        self._asleep = False  # whether the first strand's sender waits for something to send

    def start(self) -> None:
        """Start the threads now; otherwise the first transfer does. Safe to repeat.

        Raises BusyError when the system gives no more threads; then a later call tries again.
        """
        with self._lock:
            self._start()

    def borrow_by(self, borrower: Borrower, forget: Callable[[int], None]) -> None:
        """Take loans of the peer's memory; `forget` hears of segments that nothing is in any more. Before the lane starts."""
        self._borrower, self._forget = borrower, forget

    def _start(self) -> None:
        if self._borrower is not None:
            self._borrower.start(self._name, self._on_copied, self._on_uncopied, self._fail)
        for number in range(len(self._threads), 2 * len(self._strands)):
            strand, receives = self._strands[number // 2], number % 2
            run, what = ((self._send_loop, "send"), (self._receive_loop, "receive"))[receives]
            self._threads.append(start_thread(partial(run, strand), f"remora bulk {what} {self._name}"))
            self._running[receives] += 1

    @property
    def started(self) -> bool:
        """Whether the threads run."""
        return bool(self._threads)

    @property
    def bytes_sent(self) -> int:
        """Bytes that this lane has given to its carriers."""
        return sum(strand.carrier.statistics().bytes_sent for strand in self._strands)

    @property
    def bytes_received(self) -> int:
        """Bytes that this lane has from its carriers."""
        return sum(strand.carrier.statistics().bytes_received for strand in self._strands)

    def round_trip(self, seconds: float) -> None:
        """Take a measured round trip: transfers run further ahead of their credit the longer it is."""
        with self._lock:
            self._outgoing.early.round_trip(seconds)

    def send(self, transfer_id: int, view: memoryview, done: Done, *, lent: bool = False) -> None:
        """Send all of `view` as this transfer, when its turn comes; it must not change until `done`.

        With `lent` nothing goes before the peer has lent the memory for it, or given credit.
        Raises UsageError for an id that is under way, and what the lane failed of.
        """
        with self._lock:
            self._begin()
            abort = self._aborts.pop(transfer_id, None)
            credit = self._credits.pop(transfer_id, None)
            if abort is not None:
                self._ended.append((done, abort))
                return
            try:
                self._outgoing.add(transfer_id, view, done, credit, early=not lent)
            except PeerError as error:
                self._verdict = error

    def expect(self, transfer_id: int, view: memoryview, done: Done) -> None:
        """Receive this transfer into `view`, whose size must be the transfer's. It may have begun to arrive before.

        Raises UsageError for an id that is expected, and what the lane failed of.
        """
        finished = False
        with self._lock:
            self._begin()
            abort = self._aborts.pop(transfer_id, None)
            if abort is not None:
                self._ended.append((done, abort))
                return
            try:
                finished = self._incoming.expect(transfer_id, view, done)
            except PeerError as error:
                self._verdict = error
            self._outgoing.owed.append(encode_bulk(CREDIT, transfer_id, view.nbytes))
        if finished:
            done(None)

    def lend(self, transfer_id: int, segment: int, offset: int, loan: Loan) -> None:
        """Have the peer move this transfer by itself: its end here is `loan.size` bytes of a segment that the peer can map.

        Until `loan.done` that memory is the peer's alone. Raises what the lane failed of.
        """
        with self._lock:
            self._check()
            abort = self._aborts.pop(transfer_id, None)
            if abort is not None:
                self._ended.append((loan.done, abort))
                self._work.notify_all()
                return
            self._loans[transfer_id] = loan
            self._say(wire.encode_lend(transfer_id, segment, offset, loan.size))

    def tell_gone(self, segments: Iterable[int]) -> None:
        """Tell the peer that nothing is in these segments any more."""
        with self._lock:
            if self._failure is None:
                self._begin()
                self._outgoing.owed.extend(encode_bulk(wire.GONE, segment, 0) for segment in segments)

    def _begin(self) -> None:
        """Something new: raise the lane's failure, or see to it that the sender looks. The lock is held."""
        self._check()
        self._work.notify_all()

    def _check(self) -> None:
        """Raise the lane's failure, or see to it that the threads run. The lock is held."""
        if self._failure is not None:
            raise self._failure.copy()
        self._start()

    def _say(self, frame: bytes) -> None:
        """Send a frame here and now if the sender sleeps and there is room: a thread less to wake. The lock is held.

        For threads that no signal interrupts: an interruption here could send the frame twice.
        """
        owed = self._outgoing.owed
        owed.append(frame)
        if self._asleep and len(owed) == 1:
            with suppress(Error):  # the sender meets the same failure, and ends the lane with it
                sent = self._strands[0].carrier.send(frame)
                owed.popleft()
                if sent < len(frame):
                    owed.append(frame[sent:])
        if owed:
            self._work.notify_all()

    def abort(self, transfer_id: int, error: Error) -> None:
        """Give up a transfer in either direction, whether it has begun here or not, and tell the peer."""
        with self._lock:
            if self._failure is not None:
                return
            self._begin()
            self._outgoing.owed.append(encode_abort(transfer_id, error))
            began, outgoing = self._outgoing.remove(transfer_id, error)
            incoming, now = self._incoming.remove(transfer_id, error)
            if not began and (incoming is None or not incoming.started):
                self._incoming.refuse(transfer_id)
        if outgoing is not None:
            outgoing.done(error)
        elif now and incoming is not None and incoming.done is not None:
            incoming.done(error)

    def fail(self, error: Error) -> None:
        """End the lane: every transfer ends with the first cause. The link fails the carriers before, which wakes the threads.

        Safe to repeat: Ctrl-C may have cut the first time short.

        The last thread of a direction ends its transfers when it has left the carrier: no memory is touched after `done`.
        """
        with self._lock:
            cause = self._failure = self._failure or error
            self._work.notify_all()
        if self._borrower is not None:
            self._borrower.stop(cause)

    def join(self) -> None:
        """Wait for the threads, after `fail` and the carrier's failure."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        if self._borrower is not None:
            self._borrower.join()

    def _fail(self, error: Error) -> None:
        """The lane failed by itself: tell the link, whose cause wins if it has one, and which fails all carriers."""
        if self._failure is None:
            self._broken(error)
        self.fail(error)

    def _guard(
        self, loop: Callable[[Strand], None], strand: Strand, clear: Callable[[], Iterable[Outgoing | Incoming | Loan]]
    ) -> None:
        """Run a thread's loop until the lane fails, whatever of, and end what is left then."""
        try:
            loop(strand)
        except Error as error:
            self._fail(error.copy())  # without the traceback, whose frames hold the memory of transfers
        except MemoryError:
            self._fail(BrokenError("this process has no memory for a block of a transfer; close something here"))
        except BaseException as error:
            self._fail(DeviceError(f"a callback of a transfer raised {type(error).__name__}: {error}"))
            raise
        finally:
            with self._lock:
                ends = [(left.done, left.error or self._failure) for left in clear()]
            with ExitStack() as stack:  # all are told, even if one raises
                for done, cause in ends:
                    if done is not None:
                        stack.callback(done, cause)

    # -- sending --------------------------------------------------------------------------------------------------------------

    def _send_loop(self, strand: Strand) -> None:
        self._began()
        try:
            self._guard(self._send, strand, self._last_sender_left)
        finally:
            self._tell_ends()

    def _last_sender_left(self) -> list[Outgoing]:
        self._running[0] -= 1
        return [] if self._running[0] else self._outgoing.clear()

    def _send(self, strand: Strand) -> None:
        schedule, lock, index = self._outgoing, self._lock, strand.index
        while True:
            with lock:
                gone = schedule.sent(index, monotonic())
                spans = None if gone is not None or self._ended or self._verdict else schedule.next(index)
                if spans == [] and self._failure is None:
                    self._asleep = index == 0
                    self._work.wait()
                    self._asleep = self._asleep and index != 0
                    continue
                if len(self._strands) > 1 and schedule.shared:
                    self._work.notify_all()
            if self._failure is not None:
                if gone is not None:
                    gone.done(gone.error)
                return
            if spans:
                strand.put(spans)
            elif gone is not None:
                gone.done(gone.error)
            else:
                self._tell_ends()
                if self._verdict is not None:
                    raise self._verdict

    def _tell_ends(self) -> None:
        """Tell what `send` and `expect` must not: their callers may hold locks that `done` needs."""
        while self._ended:
            done, error = self._ended.popleft()
            done(error)

    # -- receiving ------------------------------------------------------------------------------------------------------------

    def _receive_loop(self, strand: Strand) -> None:
        self._guard(self._receive, strand, self._last_receiver_left)

    def _last_receiver_left(self) -> list[Incoming | Loan]:
        self._running[1] -= 1
        if self._running[1]:
            return []
        loans = list(self._loans.values())
        self._loans.clear()
        return [*self._incoming.clear(), *loans]

    def _receive(self, strand: Strand) -> None:
        header = memoryview(bytearray(BULK_HEADER.size))
        actions = {
            wire.START: self._on_start,
            wire.DATA: self._on_data,
            wire.COMPLETE: self._on_complete,
            wire.ABORT: self._on_abort,
            wire.CREDIT: self._on_credit,
            wire.LEND: self._on_lend,
            wire.RETURN: self._on_return,
            wire.GONE: self._on_gone,
        }
        while strand.read_header(header, lambda: self._failure is not None):
            frame = decode_bulk(header)
            if strand.index and frame.kind != DATA:
                raise PeerError(f"a bulk frame {frame.kind:#x} on connection {strand.index}, which carries DATA only")
            actions[frame.kind](strand, frame)

    def _on_credit(self, strand: Strand, frame: BulkHeader) -> None:
        with self._lock:
            if self._outgoing.credit(frame.transfer_id, frame.value):
                self._work.notify_all()
                return
            if len(self._credits) >= MAX_EARLY_CREDITS:
                raise PeerError(f"more than {MAX_EARLY_CREDITS} credits for transfers that did not begin")
            self._credits[frame.transfer_id] = max(frame.value, self._credits.get(frame.transfer_id, 0))

    def _on_start(self, strand: Strand, frame: BulkHeader) -> None:
        with self._lock:
            self._incoming.start(frame)

    def _on_data(self, strand: Strand, frame: BulkHeader) -> None:
        with self._lock:
            incoming, place = self._incoming.data(strand.index, frame)
        strand.read(place)
        with self._lock:
            gone = self._incoming.landed(incoming, frame, place)
        if gone is not None and gone.done is not None:
            gone.done(gone.error)

    def _on_complete(self, strand: Strand, frame: BulkHeader) -> None:
        with self._lock:
            finished = self._incoming.complete(frame)
        if finished is not None and finished.done is not None:
            finished.done(None)

    def _on_abort(self, strand: Strand, frame: BulkHeader) -> None:
        rest = memoryview(bytearray(frame.rest))
        strand.read(rest)
        error = decode_abort(rest)
        with self._lock:
            loan = self._loans.pop(frame.transfer_id, None)
            began, outgoing = self._outgoing.remove(frame.transfer_id, error)
            incoming, now = self._incoming.remove(frame.transfer_id, error)
            if loan is None and not began and (incoming is None or incoming.done is None):
                if len(self._aborts) >= MAX_EARLY_ABORTS:
                    del self._aborts[next(iter(self._aborts))]
                self._aborts[frame.transfer_id] = error
            self._work.notify_all()
        if loan is not None:
            loan.done(error)
        if outgoing is not None:
            outgoing.done(error)
        elif now and incoming is not None and incoming.done is not None:
            incoming.done(error)

    # -- loans ----------------------------------------------------------------------------------------------------------------

    def _on_lend(self, strand: Strand, frame: BulkHeader) -> None:
        rest = memoryview(bytearray(frame.rest))
        strand.read(rest)
        lent, transfer_id, borrower = wire.decode_lend(rest), frame.transfer_id, self._borrower
        if borrower is None:
            raise PeerError("a LEND to a side that borrows nothing")
        with self._lock:
            transfer: Outgoing | Incoming | None = self._outgoing.borrow(transfer_id, lent.size)
            if transfer is None:
                transfer = self._incoming.borrow(transfer_id, lent.size)
        if transfer is None:
            raise PeerError(f"a LEND of {lent.size} bytes for the transfer {transfer_id}, which waits for no such loan")
        borrower.take(Borrowed(transfer_id, transfer, lent, frame.value))

    def _on_copied(self, loan: Borrowed) -> None:
        with self._lock:
            self._check()
            self._say(encode_bulk(wire.RETURN, loan.transfer_id, loan.lent.size))

    def _on_uncopied(self, loan: Borrowed) -> None:
        """The transfer is as before the LEND, and the peer goes on without one. An early CREDIT is kept there."""
        with self._lock:
            self._begin()
            self._outgoing.owed.append(encode_bulk(wire.RETURN, loan.transfer_id, 0))
            if isinstance(loan.transfer, Outgoing):
                self._outgoing.put_back(loan.transfer)
            else:
                self._incoming.put_back(loan.transfer_id, loan.transfer)

    def _on_return(self, strand: Strand, frame: BulkHeader) -> None:
        with self._lock:
            loan = self._loans.get(frame.transfer_id)
            if loan is None or frame.value not in (0, loan.size):
                raise PeerError(f"a RETURN of {frame.value} bytes of the transfer {frame.transfer_id}, which were not lent")
            del self._loans[frame.transfer_id]
            if frame.value:
                self._credits.pop(frame.transfer_id, None)
        if frame.value:
            loan.done(None)
        else:
            loan.declined()

    def _on_gone(self, strand: Strand, frame: BulkHeader) -> None:
        self._forget(frame.transfer_id)


def _nobody(segment: int) -> None:
    """What a side that borrows nothing does with GONE."""
    raise PeerError(f"the segment {segment} is gone, and was never lent")
