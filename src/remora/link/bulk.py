"""The bulk lane: payload moves straight between the caller's memory and the socket, beside commands (H02).

One thread sends (what the receiver owes, and chunks of runnable transfers in turn), one receives; both start with the first
transfer. The receiver never sends and never waits for a destination, so two sides that send to each other cannot lock up.
A transfer's memory is not touched any more when its `done` is called, whoever gave it up.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack

from remora.carriers.carrier import Carrier
from remora.errors import DeviceError, Error, PeerError
from remora.link.incoming import Incoming, ReceiveTable
from remora.link.outgoing import MAX_STAGED, Outgoing, SendSchedule
from remora.link.transfer import Done
from remora.wire.bulk import BULK_HEADER, CREDIT, BulkHeader, decode_abort, decode_bulk, encode_abort, encode_bulk

__all__ = ["MAX_STAGED", "BulkLane", "Done"]

#: Credits that may come for transfers that have not begun here, and aborts that are remembered for such.
MAX_EARLY_CREDITS = 1 << 16
MAX_EARLY_ABORTS = 1024
#: Seconds that the receiver waits for a header before it looks around.
LOOK = 0.1


class BulkLane:
    """Transfers over one carrier. `broken(error)` is called once when the lane fails by itself. Any thread may call."""

    def __init__(self, carrier: Carrier, broken: Callable[[Error], None], name: str) -> None:
        self._carrier = carrier
        self._broken = broken
        self._name = name
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._outgoing = SendSchedule()
        self._incoming = ReceiveTable()
        self._credits: dict[int, int] = {}  # that came before `send`
        self._aborts: dict[int, Error] = {}  # that came before `send` or `expect`
        self._ended: deque[tuple[Done, Error]] = deque()  # to be told by the sender's thread
        self._verdict: Error | None = None  # a peer's mistake that a caller's thread found; the sender's thread fails the lane
        self._failure: Error | None = None
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start both threads now; otherwise the first transfer does. Safe to repeat."""
        with self._lock:
            self._start()

    def _start(self) -> None:
        if not self._threads:
            for run, what in ((self._send_loop, "send"), (self._receive_loop, "receive")):
                thread = threading.Thread(target=run, name=f"remora bulk {what} {self._name}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def send(self, transfer_id: int, view: memoryview, done: Done) -> None:
        """Send all of `view` as this transfer, when its turn comes; it must not change until `done`.

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
                self._outgoing.add(transfer_id, view, done, credit)
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

    def _begin(self) -> None:
        """Something new: raise the lane's failure, or see to it that the sender looks. The lock is held."""
        if self._failure is not None:
            raise self._failure.copy()
        self._start()
        self._work.notify()

    def abort(self, transfer_id: int, error: Error) -> None:
        """Give up a transfer in either direction, whether it has begun here or not, and tell the peer."""
        with self._lock:
            if self._failure is not None:
                return
            self._begin()
            self._outgoing.owed.append(encode_abort(transfer_id, error))
            began, outgoing = self._outgoing.remove(transfer_id, error)
            incoming, now = self._incoming.remove(transfer_id, error)
            if not began and (incoming is None or incoming.tracker is None):
                self._incoming.refuse(transfer_id)
        if outgoing is not None:
            outgoing.done(error)
        elif now and incoming is not None and incoming.done is not None:
            incoming.done(error)

    def fail(self, error: Error) -> None:
        """End the lane: every transfer ends with the cause. The link fails the carrier before, which wakes both threads.

        A thread ends its own transfers when it has left the carrier, so no memory is touched after a transfer's `done`.
        """
        with self._lock:
            if self._failure is not None:
                return
            self._failure = error
            self._work.notify_all()

    def join(self) -> None:
        """Wait for the threads, after `fail` and the carrier's failure."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _fail(self, error: Error) -> None:
        """The lane failed by itself: tell the link, whose cause wins if it has one."""
        if self._failure is None:
            self._broken(error)
        self.fail(error)

    def _guard(self, loop: Callable[[], None], clear: Callable[[], Iterable[Outgoing | Incoming]]) -> None:
        """Run a thread's loop until the lane fails, whatever of, and end what is left then."""
        try:
            loop()
        except Error as error:
            self._fail(error)
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

    def _send_loop(self) -> None:
        try:
            self._guard(self._send, self._outgoing.clear)
        finally:
            self._tell_ends()

    def _send(self) -> None:
        schedule, lock, send_all = self._outgoing, self._lock, self._carrier.send_all
        while True:
            with lock:
                gone = schedule.sent()
                spans = None if gone is not None or self._ended or self._verdict else schedule.next()
                if spans == [] and self._failure is None:
                    self._work.wait()
                    continue
            if self._failure is not None:
                if gone is not None:
                    gone.done(gone.error)
                return
            if spans:
                send_all(*spans)
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

    def _receive_loop(self) -> None:
        self._guard(self._receive, self._incoming.clear)

    def _receive(self) -> None:
        header = memoryview(bytearray(BULK_HEADER.size))
        actions = {0x40: self._on_start, 0x41: self._on_data, 0x42: self._on_complete, 0x43: self._on_abort, 0x44: self._on_credit}
        while self._read_header(header):
            frame = decode_bulk(header)
            actions[frame.kind](frame)

    def _read_header(self, header: memoryview) -> bool:
        """Fill `header`; False when the lane has failed.

        Between frames this polls. A thread asleep in recv on a unix socket is woken whenever the peer reads what this side sends.
        """
        receive_into, rest = self._carrier.receive_into, header
        while len(rest):
            if self._failure is not None:
                return False
            rest = rest[receive_into(rest, 0) or receive_into(rest, LOOK) :]
        return True

    def _read(self, into: memoryview) -> None:
        """Fill `into` from the carrier."""
        while len(into):
            into = into[self._carrier.receive_into(into) :]

    def _on_credit(self, frame: BulkHeader) -> None:
        with self._lock:
            if self._outgoing.credit(frame.transfer_id, frame.value):
                self._work.notify()
                return
            if len(self._credits) >= MAX_EARLY_CREDITS:
                raise PeerError(f"more than {MAX_EARLY_CREDITS} credits for transfers that did not begin")
            self._credits[frame.transfer_id] = frame.value

    def _on_start(self, frame: BulkHeader) -> None:
        with self._lock:
            self._incoming.start(frame)

    def _on_data(self, frame: BulkHeader) -> None:
        with self._lock:
            place = self._incoming.data(frame)
        self._read(place)
        with self._lock:
            gone = self._incoming.landed(frame, place)
        if gone is not None and gone.done is not None:
            gone.done(gone.error)

    def _on_complete(self, frame: BulkHeader) -> None:
        with self._lock:
            finished = self._incoming.complete(frame)
        if finished is not None and finished.done is not None:
            finished.done(None)

    def _on_abort(self, frame: BulkHeader) -> None:
        rest = memoryview(bytearray(frame.rest))
        self._read(rest)
        error = decode_abort(rest)
        with self._lock:
            began, outgoing = self._outgoing.remove(frame.transfer_id, error)
            incoming, _ = self._incoming.remove(frame.transfer_id, error)
            if not began and (incoming is None or incoming.done is None):
                if len(self._aborts) >= MAX_EARLY_ABORTS:
                    del self._aborts[next(iter(self._aborts))]
                self._aborts[frame.transfer_id] = error
            self._work.notify()
        if outgoing is not None:
            outgoing.done(error)
        elif incoming is not None and incoming.done is not None:
            incoming.done(error)
