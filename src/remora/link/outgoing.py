"""What the bulk lane sends next: a schedule without locks and I/O. The lane holds its lock around every call.

Transfers that have not begun and transfers that go on take turns, chunk by chunk, so a small one passes large ones after at most
one of their chunks, and a flood of small ones takes half of the lane at most.

A lane may have several strands. Strand 0 sends everything but what the others take: chunks of transfers that have begun and have
credit, so that the peer knows where they go whichever comes first.
"""

from __future__ import annotations

from collections import deque

from remora.carriers.carrier import Span
from remora.errors import Error, UsageError
from remora.link.transfer import Done
from remora.session.transfers import FREE, MAX_STAGED, MIN_STAGING, SendWindow
from remora.session.window import EarlyWindow
from remora.wire.bulk import CHUNK, COMPLETE, DATA, START, encode_bulk

__all__ = ["MAX_STAGED", "Outgoing", "SendSchedule"]

#: Owed frames in one send. A chunk goes behind the last of them, so an ABORT is told before what it made room for.
MAX_ALONG = 256


class Outgoing:
    """A transfer on its way out. `error` is why it was given up, `busy` how many strands are sending some of it.

    `placed`: its credit has come.
    """

    __slots__ = ("busy", "done", "error", "gone", "placed", "queued", "started", "transfer_id", "view", "window")

    def __init__(self, transfer_id: int, view: memoryview, done: Done) -> None:
        self.transfer_id = transfer_id
        self.view = view
        self.done = done
        self.window = SendWindow(view.nbytes)
        self.started = self.queued = self.gone = self.placed = False
        self.busy = 0
        self.error: Error | None = None


class SendSchedule:
    """Transfers that go out, and frames that are owed to the peer, which go first.

    `budget`: bytes that the receiver stages for transfers that have begun without credit.
    """

    def __init__(self, budget: int = MIN_STAGING) -> None:
        self.early = EarlyWindow(budget)
        self._spare = budget - MIN_STAGING
        self.owed: deque[bytes] = deque()
        self._table: dict[int, Outgoing] = {}
        self._fresh: deque[Outgoing] = deque()  # may begin
        self._running: deque[Outgoing] = deque()  # have begun and may go on
        self._waiting: dict[int, Outgoing] = {}  # may begin when a place to stage them is free, or with credit
        # Begun without credit: the receiver stages them until it says CREDIT or ABORT. With the bytes taken from `_spare`.
        self._staged: dict[int, int] = {}
        self._fresh_next = True
        self._current: dict[int, tuple[Outgoing, int]] = {}  # what a strand is sending, and bytes of the chunk

    def add(self, transfer_id: int, view: memoryview, done: Done, credit: int | None, *, early: bool = True) -> None:
        """Take a transfer, and the credit that came for it before. Without `early` it begins with credit or is taken by `borrow`.

        Raises UsageError for an id that is under way, PeerError for a credit beyond the total; then the transfer is kept all the
        same, to end with the lane.
        """
        if transfer_id in self._table:
            raise UsageError(f"the transfer {transfer_id} is under way already; an id is used once")
        outgoing = self._table[transfer_id] = Outgoing(transfer_id, view, done)
        if early:
            self._waiting[transfer_id] = outgoing
        if credit is None:
            self._promote()
        else:
            self.credit(transfer_id, credit)

    def borrow(self, transfer_id: int, size: int) -> Outgoing | None:
        """Take a transfer of this size out that was added without `early` and has not begun, to move it otherwise; None without."""
        outgoing = self._table.get(transfer_id)
        if outgoing is None or outgoing.started or outgoing.queued or transfer_id in self._waiting or outgoing.view.nbytes != size:
            return None
        return self._table.pop(transfer_id)

    def put_back(self, outgoing: Outgoing) -> None:
        """It could not be moved otherwise: it begins when its credit comes."""
        self._table[outgoing.transfer_id] = outgoing

    def credit(self, transfer_id: int, granted: int) -> bool:
        """Take a CREDIT; False when no transfer with this id has begun or ended here. Raises PeerError beyond the total."""
        staged = self._unstage(transfer_id)
        outgoing = self._table.get(transfer_id)
        if outgoing is not None:
            outgoing.window.credit(granted)
            outgoing.placed = True
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
            outgoing = self._waiting.pop(transfer_id)
            room = min(self.early.size - FREE, self._spare) // CHUNK * CHUNK
            beyond = self._staged[transfer_id] = outgoing.window.run_ahead(FREE + room)
            self._spare -= beyond
            self._queue(outgoing)

    def _unstage(self, transfer_id: int) -> bool:
        """The receiver stages this transfer no longer; whether it did."""
        beyond = self._staged.pop(transfer_id, None)
        self._spare += beyond or 0
        return beyond is not None

    def remove(self, transfer_id: int, error: Error) -> tuple[bool, Outgoing | None]:
        """Give up a transfer: (whether it began or ended here, it if its end is to be told now).

        While its bytes are being sent, the last `sent` returns it. What is staged there goes with the ABORT, whoever sends it.
        """
        known = self._unstage(transfer_id)
        outgoing = self._table.pop(transfer_id, None)
        if outgoing is not None:
            self._waiting.pop(transfer_id, None)
            outgoing.gone, outgoing.error = True, error
        self._promote()
        if outgoing is None or outgoing.busy:
            return known or outgoing is not None, None
        return True, outgoing

    @property
    def shared(self) -> bool:
        """Whether other strands than the one that just got its spans may have something to send."""
        return bool(self._running or self.owed)

    def next(self, strand: int) -> list[Span]:
        """The spans to send in one go: what is owed, and one chunk of the transfer whose turn it is. Then call `sent`."""
        spans: list[Span] = []
        if strand == 0:
            owed = self.owed
            spans += [owed.popleft() for _ in range(min(len(owed), MAX_ALONG))]
            outgoing = None if owed else self._pick()
        else:
            outgoing = self._pick_placed()
        if outgoing is not None:
            self._cut(strand, outgoing, spans)
        elif not spans and not self._current:
            self.early.pause()
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

    def _pick_placed(self) -> Outgoing | None:
        """The next one that has begun and has its credit; those that have not keep their order."""
        for outgoing in self._running:
            if outgoing.placed and not outgoing.gone:
                self._running.remove(outgoing)
                return outgoing
        return None

    def _cut(self, strand: int, outgoing: Outgoing, spans: list[Span]) -> None:
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
        outgoing.busy += 1
        self._current[strand] = (outgoing, size)
        if window.complete:
            (spans if strand == 0 else self.owed).append(encode_bulk(COMPLETE, transfer_id, window.total))
        else:
            self._queue(outgoing)

    def sent(self, strand: int, now: float) -> Outgoing | None:
        """The spans of `next` have gone by `now`: the transfer that this ended, whose `error` says how."""
        outgoing, size = self._current.pop(strand, (None, 0))
        if outgoing is None:
            return None
        if size:
            self.early.sent(size, now)
        outgoing.busy -= 1
        if outgoing.busy or not (outgoing.gone or outgoing.window.complete):
            return None
        self._table.pop(outgoing.transfer_id, None)
        return outgoing

    def clear(self) -> list[Outgoing]:
        """Forget everything; the transfers whose end nobody has been told."""
        left = list(self._table.values())
        left += {id(outgoing): outgoing for outgoing, _ in self._current.values() if outgoing.gone}.values()
        for line in (self._table, self._waiting, self._staged, self._fresh, self._running, self.owed, self._current):
            line.clear()
        return left
