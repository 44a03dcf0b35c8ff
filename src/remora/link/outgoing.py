"""What the bulk lane sends next: a schedule without locks and I/O. The lane holds its lock around every call.

Transfers that have not begun and transfers that go on take turns, chunk by chunk, so a small one passes large ones after at most
one of their chunks, and a flood of small ones takes half of the lane at most.
"""

from __future__ import annotations

from collections import deque

from remora.carriers.carrier import Span
from remora.errors import Error, UsageError
from remora.link.transfer import Done
from remora.session.transfers import SendWindow
from remora.wire.bulk import COMPLETE, DATA, START, encode_bulk

__all__ = ["MAX_STAGED", "Outgoing", "SendSchedule"]

#: Transfers whose first bytes may be sent before the receiver has a place for them. It stages them: FREE bytes each.
MAX_STAGED = 4
#: Owed frames in one send. A chunk goes behind the last of them, so an ABORT is told before what it made room for.
MAX_ALONG = 256


class Outgoing:
    """A transfer on its way out. `error` is why it was given up."""

    __slots__ = ("done", "error", "gone", "queued", "started", "transfer_id", "view", "window")

    def __init__(self, transfer_id: int, view: memoryview, done: Done) -> None:
        self.transfer_id = transfer_id
        self.view = view
        self.done = done
        self.window = SendWindow(view.nbytes)
        self.started = self.queued = self.gone = False
        self.error: Error | None = None


class SendSchedule:
    """Transfers that go out, and frames that are owed to the peer, which go first."""

    def __init__(self) -> None:
        self.owed: deque[bytes] = deque()
        self._table: dict[int, Outgoing] = {}
        self._fresh: deque[Outgoing] = deque()  # may begin
        self._running: deque[Outgoing] = deque()  # have begun and may go on
        self._waiting: dict[int, Outgoing] = {}  # may begin when a place to stage them is free, or with credit
        self._staged: set[int] = set()  # begun without credit: the receiver stages them until it says CREDIT or ABORT
        self._fresh_next = True
        self._current: Outgoing | None = None

    def add(self, transfer_id: int, view: memoryview, done: Done, credit: int | None) -> None:
        """Take a transfer, and the credit that came for it before.

        Raises UsageError for an id that is under way, PeerError for a credit beyond the total; then the transfer is kept all the
        same, to end with the lane.
        """
        if transfer_id in self._table:
            raise UsageError(f"the transfer {transfer_id} is under way already; an id is used once")
        outgoing = self._table[transfer_id] = Outgoing(transfer_id, view, done)
        self._waiting[transfer_id] = outgoing
        if credit is None:
            self._promote()
        else:
            self.credit(transfer_id, credit)

    def credit(self, transfer_id: int, granted: int) -> bool:
        """Take a CREDIT; False when no transfer with this id has begun or ended here. Raises PeerError beyond the total."""
        staged = transfer_id in self._staged
        self._staged.discard(transfer_id)
        outgoing = self._table.get(transfer_id)
        if outgoing is not None:
            outgoing.window.credit(granted)
            self._waiting.pop(transfer_id, None)
            if not outgoing.queued:
                self._queue(outgoing)
        self._promote()
        return staged or outgoing is not None

    def _queue(self, outgoing: Outgoing) -> None:
        """Put a transfer in line, if it has something to send now."""
        if outgoing.started and not outgoing.window.next_chunk()[1]:
            return
        outgoing.queued = True
        (self._running if outgoing.started else self._fresh).append(outgoing)

    def _promote(self) -> None:
        """Let transfers begin without credit while there are places to stage them."""
        while self._waiting and len(self._staged) < MAX_STAGED:
            transfer_id = next(iter(self._waiting))
            self._staged.add(transfer_id)
            self._queue(self._waiting.pop(transfer_id))

    def remove(self, transfer_id: int, error: Error) -> tuple[bool, Outgoing | None]:
        """Give up a transfer: (whether it began or ended here, it if its end is to be told now).

        While its bytes are being sent, `sent` returns it later. What is staged there goes with the ABORT, whoever sends it.
        """
        known = transfer_id in self._staged
        self._staged.discard(transfer_id)
        outgoing = self._table.pop(transfer_id, None)
        if outgoing is not None:
            self._waiting.pop(transfer_id, None)
            outgoing.gone, outgoing.error = True, error
        self._promote()
        if outgoing is None or outgoing is self._current:
            return known or outgoing is not None, None
        return True, outgoing

    def next(self) -> list[Span]:
        """The spans to send in one go: what is owed, and one chunk of the transfer whose turn it is. Then call `sent`."""
        owed = self.owed
        spans: list[Span] = [owed.popleft() for _ in range(min(len(owed), MAX_ALONG))]
        outgoing = self._current = None if owed else self._pick()
        if outgoing is not None:
            self._cut(outgoing, spans)
        return spans

    def _pick(self) -> Outgoing | None:
        lines = (self._fresh, self._running) if self._fresh_next else (self._running, self._fresh)
        for line in lines:
            while line:
                outgoing = line.popleft()
                if not outgoing.gone:
                    self._fresh_next = line is self._running
                    return outgoing
        return None

    def _cut(self, outgoing: Outgoing, spans: list[Span]) -> None:
        """Add the transfer's next chunk, with START before the first and COMPLETE after the last."""
        window, transfer_id = outgoing.window, outgoing.transfer_id
        outgoing.queued = False
        if not outgoing.started:
            outgoing.started = True
            spans.append(encode_bulk(START, transfer_id, window.total))
        offset, size = window.next_chunk()
        if size:
            spans += (encode_bulk(DATA, transfer_id, offset, size), outgoing.view[offset : offset + size])
            window.send(size)
        if window.complete:
            spans.append(encode_bulk(COMPLETE, transfer_id, window.total))
        else:
            self._queue(outgoing)

    def sent(self) -> Outgoing | None:
        """The spans of `next` have gone: the transfer that this ended, whose `error` says how."""
        outgoing, self._current = self._current, None
        if outgoing is None or not (outgoing.gone or outgoing.window.complete):
            return None
        self._table.pop(outgoing.transfer_id, None)
        return outgoing

    def clear(self) -> list[Outgoing]:
        """Forget everything; the transfers whose end nobody has been told."""
        left = list(self._table.values())
        if self._current is not None and self._current.gone:
            left.append(self._current)
        self._current = None
        for line in (self._table, self._waiting, self._staged, self._fresh, self._running, self.owed):
            line.clear()
        return left
