"""The bulk lane: payload moves straight between the caller's memory and the socket, beside commands (H02).

One thread sends (chunks of runnable transfers in turn, and what the receiver owes), one receives; both start with the first
transfer. The receiver never sends and never waits for a destination, so two sides that send to each other cannot lock up.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TypeAlias

from remora.carriers.carrier import Carrier
from remora.errors import Error, PeerError
from remora.session.transfers import FREE, ChunkTracker, SendWindow
from remora.wire.bulk import (
    BULK_HEADER,
    COMPLETE,
    CREDIT,
    DATA,
    START,
    BulkHeader,
    decode_abort,
    decode_bulk,
    encode_abort,
    encode_bulk,
)

__all__ = ["BulkLane", "Done"]

#: Transfers whose first bytes may be sent before the receiver has a place for them. It stages them: FREE bytes each.
MAX_STAGED = 4
#: Credits and aborts that may arrive for transfers that have not begun on this side.
MAX_EARLY = 1024

#: Called once, from a bulk thread, with None or why the transfer failed. It must not block.
Done: TypeAlias = Callable[[Error | None], None]


class _Outgoing:
    __slots__ = ("credited", "done", "started", "view", "window")

    def __init__(self, view: memoryview, done: Done) -> None:
        self.view = view
        self.done = done
        self.window = SendWindow(view.nbytes)
        self.started = False
        self.credited = False


class _Incoming:
    """A transfer on its way here. Before `expect` gives a destination, its first FREE bytes are staged."""

    __slots__ = ("complete", "done", "staged", "tracker", "view")

    def __init__(self) -> None:
        self.view: memoryview | None = None
        self.done: Done | None = None
        self.tracker: ChunkTracker | None = None
        self.staged: list[tuple[int, bytearray]] = []
        self.complete = False


class BulkLane:
    """Transfers over one carrier. `broken(error)` is called once when the lane fails by itself. Any thread may call."""

    def __init__(self, carrier: Carrier, broken: Callable[[Error], None], name: str) -> None:
        self._carrier = carrier
        self._broken = broken
        self._name = name
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._owed: deque[bytes] = deque()
        self._outgoing: OrderedDict[int, _Outgoing] = OrderedDict()
        self._incoming: dict[int, _Incoming] = {}
        self._staged_there: set[int] = set()  # sent without credit, so that the receiver stages them
        self._early: dict[int, int | Error] = {}  # credits and aborts that came before `send` or `expect`
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
        """Send all of `view` as this transfer, when its turn comes; it must not change until `done`."""
        with self._lock:
            if self._failure is not None:
                raise self._failure.copy()
            outgoing = _Outgoing(view, done)
            early = self._early.pop(transfer_id, None)
            if isinstance(early, int):
                outgoing.window.credit(early)
                outgoing.credited = True
            if not isinstance(early, Error):
                self._outgoing[transfer_id] = outgoing
                self._start()
                self._work.notify()
        if isinstance(early, Error):
            done(early)

    def expect(self, transfer_id: int, view: memoryview, done: Done) -> None:
        """Receive this transfer into `view`, whose size must be the transfer's. It may have begun to arrive before."""
        finished, error = False, None
        with self._lock:
            if self._failure is not None:
                raise self._failure.copy()
            self._start()
            early = self._early.pop(transfer_id, None)
            if not isinstance(early, Error):
                incoming = self._incoming.setdefault(transfer_id, _Incoming())
                incoming.view, incoming.done = view, done
                self._owed.append(encode_bulk(CREDIT, transfer_id, view.nbytes))
                self._work.notify()
                error = self._settle_destination(transfer_id, incoming)
                finished = self._take_finished(transfer_id, incoming)
        if isinstance(early, Error):
            done(early)
        elif error is not None:
            self._fail(error)
        elif finished:
            done(None)

    def abort(self, transfer_id: int, error: Error) -> None:
        """Give up a transfer in either direction, whether it has begun here or not, and tell the peer."""
        with self._lock:
            if self._failure is not None:
                return
            gone = self._outgoing.pop(transfer_id, None) or self._incoming.pop(transfer_id, None)
            self._start()
            self._owed.append(encode_abort(transfer_id, error))
            self._work.notify()
        if gone is not None and gone.done is not None:
            gone.done(error)

    def fail(self, error: Error) -> None:
        """End the lane: every transfer ends with the cause. The link fails the carrier before, which wakes both threads.

        A thread ends its own transfers when it has left the carrier, so no memory is touched after a transfer's `done`.
        """
        with self._lock:
            if self._failure is not None:
                return
            self._failure = error
            self._work.notify_all()

    def _end_transfers(self, table: dict[int, _Outgoing] | dict[int, _Incoming]) -> None:
        with self._lock:
            dones = [transfer.done for transfer in table.values()]
            table.clear()
            error = self._failure
        for done in dones:
            if done is not None:
                done(error)

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

    # -- sending --------------------------------------------------------------------------------------------------------------

    def _send_loop(self) -> None:
        try:
            while (job := self._next_job()) is not None:
                job()
        except Error as error:
            self._fail(error)
        finally:
            self._end_transfers(self._outgoing)

    def _next_job(self) -> Callable[[], None] | None:
        """What to send next: what is owed first, then one chunk of the next runnable transfer. Sleeps while there is none."""
        with self._lock:
            while self._failure is None:
                if self._owed:
                    frame = self._owed.popleft()
                    return lambda: self._carrier.send_all(frame)
                transfer_id, outgoing = self._next_runnable()
                if outgoing is not None:
                    self._outgoing.move_to_end(transfer_id)
                    return lambda: self._send_chunk(transfer_id, outgoing)
                self._work.wait()
            return None

    def _next_runnable(self) -> tuple[int, _Outgoing | None]:
        """A transfer that may send: one with credit, or one of the few that begin without it. The lock is held."""
        for transfer_id, outgoing in self._outgoing.items():
            if outgoing.started:
                if outgoing.window.next_chunk()[1]:
                    return transfer_id, outgoing
            elif outgoing.credited:
                return transfer_id, outgoing
            elif len(self._staged_there) < MAX_STAGED:
                self._staged_there.add(transfer_id)
                return transfer_id, outgoing
        return 0, None

    def _send_chunk(self, transfer_id: int, outgoing: _Outgoing) -> None:
        window = outgoing.window
        spans: list[bytes | memoryview] = []
        if not outgoing.started:
            outgoing.started = True
            spans.append(encode_bulk(START, transfer_id, window.total))
        offset, size = window.next_chunk()
        if size:
            spans += (encode_bulk(DATA, transfer_id, offset, size), outgoing.view[offset : offset + size])
            window.send(size)
        if window.complete:
            spans.append(encode_bulk(COMPLETE, transfer_id, window.total))
        self._carrier.send_all(*spans)
        if window.complete:
            with self._lock:
                gone = self._outgoing.pop(transfer_id, None)
            if gone is not None:
                outgoing.done(None)

    # -- receiving ------------------------------------------------------------------------------------------------------------

    def _receive_loop(self) -> None:
        header = memoryview(bytearray(BULK_HEADER.size))
        try:
            while self._failure is None:
                self._read(header)
                self._on_frame(decode_bulk(header))
        except Error as error:
            self._fail(error)
        finally:
            self._end_transfers(self._incoming)

    def _read(self, into: memoryview) -> None:
        """Fill `into` from the carrier."""
        while len(into):
            into = into[self._carrier.receive_into(into) :]

    def _on_frame(self, frame: BulkHeader) -> None:
        match frame.kind:
            case 0x40:
                self._on_start(frame)
            case 0x41:
                self._on_data(frame)
            case 0x42:
                self._on_complete(frame)
            case 0x43:
                self._on_abort(frame)
            case 0x44:
                self._on_credit(frame)

    def _on_credit(self, frame: BulkHeader) -> None:
        with self._lock:
            self._staged_there.discard(frame.transfer_id)
            outgoing = self._outgoing.get(frame.transfer_id)
            if outgoing is None:
                self._keep_early(frame.transfer_id, frame.value)
                return
            outgoing.window.credit(frame.value)
            outgoing.credited = True
            self._work.notify()

    def _keep_early(self, transfer_id: int, news: int | Error) -> None:
        """Remember a credit or abort for a transfer that this side has not begun, or has ended. The lock is held."""
        self._early[transfer_id] = news
        if len(self._early) > MAX_EARLY:
            del self._early[next(iter(self._early))]

    def _on_start(self, frame: BulkHeader) -> None:
        with self._lock:
            incoming = self._incoming.setdefault(frame.transfer_id, _Incoming())
            if sum(other.view is None for other in self._incoming.values()) > 2 * MAX_STAGED:
                raise PeerError(f"more than {MAX_STAGED} transfers were sent without credit")
            if incoming.tracker is not None:
                raise PeerError(f"the transfer {frame.transfer_id} started twice")
            incoming.tracker = ChunkTracker(frame.value)
            error = self._settle_destination(frame.transfer_id, incoming)
        if error is not None:
            raise error

    def _settle_destination(self, transfer_id: int, incoming: _Incoming) -> Error | None:
        """With both a START and a destination: move what was staged there. The lock is held."""
        view, tracker = incoming.view, incoming.tracker
        if view is None or tracker is None:
            return None
        if view.nbytes != tracker.total:
            return PeerError(f"the transfer {transfer_id} has {tracker.total} bytes, its command says {view.nbytes}")
        for offset, data in incoming.staged:
            view[offset : offset + len(data)] = data
        incoming.staged.clear()
        tracker.grant_all()
        return None

    def _on_data(self, frame: BulkHeader) -> None:
        with self._lock:
            incoming = self._incoming.get(frame.transfer_id)
            if incoming is not None:
                if incoming.tracker is None:
                    raise PeerError(f"DATA before START in the transfer {frame.transfer_id}")
                incoming.tracker.take(frame.value, frame.rest)
            view = incoming.view if incoming is not None else None
        if view is not None:
            self._read(view[frame.value : frame.value + frame.rest])
            return
        staged = bytearray(min(frame.rest, FREE))
        self._read(memoryview(staged))
        with self._lock:
            if incoming is None:  # given up on this side: what was under way is dropped
                return
            if incoming.view is None:
                incoming.staged.append((frame.value, staged))
            else:
                incoming.view[frame.value : frame.value + frame.rest] = staged

    def _on_complete(self, frame: BulkHeader) -> None:
        with self._lock:
            incoming = self._incoming.get(frame.transfer_id)
            if incoming is None:
                return
            if incoming.tracker is None or not incoming.tracker.complete or frame.value != incoming.tracker.total:
                raise PeerError(f"COMPLETE before the last byte of the transfer {frame.transfer_id}")
            incoming.complete = True
            finished = self._take_finished(frame.transfer_id, incoming)
        if finished and incoming.done is not None:
            incoming.done(None)

    def _take_finished(self, transfer_id: int, incoming: _Incoming) -> bool:
        """Forget the transfer when everything is here and at its destination. The lock is held."""
        if not incoming.complete or incoming.view is None:
            return False
        del self._incoming[transfer_id]
        return True

    def _on_abort(self, frame: BulkHeader) -> None:
        rest = memoryview(bytearray(frame.rest))
        self._read(rest)
        error = decode_abort(rest)
        with self._lock:
            self._staged_there.discard(frame.transfer_id)
            gone = self._outgoing.pop(frame.transfer_id, None) or self._incoming.pop(frame.transfer_id, None)
            if gone is None or gone.done is None:
                self._keep_early(frame.transfer_id, error)
            self._work.notify()
        if gone is not None and gone.done is not None:
            gone.done(error)
