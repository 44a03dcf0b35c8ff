"""What arrives on the bulk lane and where it goes: tables without locks and I/O. The lane holds its lock around every call.

A transfer becomes known here by its START or by `expect`, whichever is first. Without a destination it is staged, which is bounded
in number and bytes. A transfer that was refused here before its START came is dropped when it comes.

A lane may have several strands. On strand 0 a transfer's frames come in order, without a destination only there. DATA on another
strand may overtake its START and come after its COMPLETE: a transfer ends when all bytes have landed as well.
"""

from __future__ import annotations

from remora.errors import Error, PeerError, UsageError
from remora.link.transfer import Done
from remora.session.transfers import FREE, MAX_STAGED, MIN_STAGING, ChunkTracker
from remora.wire.bulk import BulkHeader

__all__ = ["Incoming", "ReceiveTable"]

#: Transfers that were refused here and may still be on their way.
MAX_REFUSED = 1024
#: Staging blocks that are kept for the next transfer.
MAX_POOL = 8


class Incoming:
    """A transfer on its way here. `error` is why it was given up while its bytes were being received.

    `beyond`: bytes that were staged beyond FREE. `landing`: chunks that are being received.
    """

    __slots__ = ("beyond", "complete", "done", "error", "landing", "staged", "started", "tracker", "view")

    def __init__(self) -> None:
        self.view: memoryview | None = None
        self.done: Done | None = None
        self.tracker: ChunkTracker | None = None
        self.staged: list[tuple[int, memoryview]] = []
        self.beyond = self.landing = 0
        self.started = self.complete = False
        self.error: Error | None = None


class ReceiveTable:
    """Transfers that come in. `budget`: bytes that are staged for transfers without a destination, at least MIN_STAGING."""

    def __init__(self, budget: int = MIN_STAGING, strands: int = 1) -> None:
        self._strands = strands
        self._spare = budget - MIN_STAGING
        self._table: dict[int, Incoming] = {}
        self._unplaced: set[int] = set()
        self._refused: dict[int, None] = {}
        self._pool: list[memoryview] = []
        self._leaving: set[Incoming] = set()  # given up while they land

    def expect(self, transfer_id: int, view: memoryview, done: Done) -> bool:
        """Give a transfer its destination; True when everything was here before.

        Raises UsageError for an id that has one, PeerError when its START told another size; then the transfer is kept all the
        same, to end with the lane.
        """
        incoming = self._table.get(transfer_id)
        if incoming is None:
            incoming = self._table[transfer_id] = Incoming()
        elif incoming.view is not None:
            raise UsageError(f"the transfer {transfer_id} is expected already; an id is used once")
        self._unplaced.discard(transfer_id)
        incoming.view, incoming.done = view, done
        tracker = incoming.tracker = incoming.tracker or ChunkTracker(view.nbytes)
        if view.nbytes != tracker.total:
            raise PeerError(_other_size(transfer_id, tracker.total, view.nbytes))
        for offset, data in incoming.staged:
            view[offset : offset + len(data)] = data
        self._give_back(incoming)
        tracker.grant_all()
        return self._finished(transfer_id, incoming)

    def borrow(self, transfer_id: int, size: int) -> Incoming | None:
        """Take a transfer of this size out that is expected and has not begun, to move it otherwise; None without one."""
        incoming = self._table.get(transfer_id)
        if incoming is None or incoming.view is None or incoming.started or incoming.landing or incoming.view.nbytes != size:
            return None
        return self._table.pop(transfer_id)

    def put_back(self, transfer_id: int, incoming: Incoming) -> None:
        """It could not be moved otherwise: it comes as bytes."""
        self._table[transfer_id] = incoming

    def _give_back(self, incoming: Incoming) -> None:
        """The transfer is not staged any more: keep its blocks for others."""
        self._spare += incoming.beyond
        incoming.beyond = 0
        for _, block in incoming.staged:
            self._recycle(block)
        incoming.staged.clear()

    def _recycle(self, block: memoryview) -> None:
        if len(block) == FREE and len(self._pool) < MAX_POOL:
            self._pool.append(block)

    def _finished(self, transfer_id: int, incoming: Incoming) -> bool:
        """Forget the transfer when everything is here and at its destination."""
        tracker = incoming.tracker
        if not incoming.complete or incoming.view is None or incoming.landing or tracker is None or not tracker.complete:
            return False
        del self._table[transfer_id]
        return True

    def start(self, frame: BulkHeader) -> None:
        """A START. Raises PeerError for a second one, or when too many come without credit."""
        transfer_id = frame.transfer_id
        if transfer_id in self._refused:
            del self._refused[transfer_id]
            return
        incoming = self._table.get(transfer_id)
        if incoming is None:
            if len(self._unplaced) >= 2 * MAX_STAGED:
                raise PeerError(f"more than {MAX_STAGED} transfers were sent without credit")
            self._unplaced.add(transfer_id)
            incoming = self._table[transfer_id] = Incoming()
        elif incoming.started:
            raise PeerError(f"the transfer {transfer_id} started twice")
        incoming.started = True
        if incoming.tracker is None:
            incoming.tracker = ChunkTracker(frame.value)
        elif incoming.tracker.total != frame.value:
            raise PeerError(_other_size(transfer_id, frame.value, incoming.tracker.total))

    def data(self, strand: int, frame: BulkHeader) -> tuple[Incoming | None, memoryview]:
        """Whose chunk a DATA has and where it goes; when it is there, call `landed`. Raises PeerError for one that may not come."""
        incoming = self._table.get(frame.transfer_id)
        if incoming is None:  # given up on this side: what was under way is dropped
            return None, self._block(frame.rest)
        tracker = incoming.tracker
        if tracker is None or not (incoming.started or strand):
            raise PeerError(f"DATA before START in the transfer {frame.transfer_id}")
        if incoming.view is not None:
            tracker.take(frame.value, frame.rest)
            place = incoming.view[frame.value : frame.value + frame.rest]
        elif strand:
            raise PeerError(f"DATA without credit in the transfer {frame.transfer_id}, on connection {strand}")
        else:
            beyond = tracker.take(frame.value, frame.rest, self._spare)
            incoming.beyond += beyond
            self._spare -= beyond
            place = self._block(frame.rest)
        incoming.landing += 1
        return incoming, place

    def _block(self, size: int) -> memoryview:
        if size == FREE and self._pool:
            return self._pool.pop()
        return memoryview(bytearray(size))

    def landed(self, incoming: Incoming | None, frame: BulkHeader, place: memoryview) -> Incoming | None:
        """The chunk is at its `place`: the transfer that ended with it, whose `error` says how."""
        if incoming is None:
            self._recycle(place)
            return None
        incoming.landing -= 1
        if incoming.error is not None:
            if incoming.landing:
                return None
            self._leaving.discard(incoming)
            return incoming
        if incoming.view is None:
            incoming.staged.append((frame.value, place))
        elif place.obj is not incoming.view.obj:  # the destination came while the chunk did
            incoming.view[frame.value : frame.value + frame.rest] = place
            self._recycle(place)
        return incoming if self._finished(frame.transfer_id, incoming) else None

    def complete(self, frame: BulkHeader) -> Incoming | None:
        """A COMPLETE: the transfer if that ended it. Raises PeerError when bytes are missing that cannot come any more."""
        incoming = self._table.get(frame.transfer_id)
        if incoming is None:
            return None
        tracker = incoming.tracker
        here = tracker is not None and incoming.started and frame.value == tracker.total
        if tracker is None or not here or incoming.complete or not (tracker.complete or self._strands > 1):
            raise PeerError(f"COMPLETE before the last byte of the transfer {frame.transfer_id}")
        incoming.complete = True
        return incoming if self._finished(frame.transfer_id, incoming) else None

    def refuse(self, transfer_id: int) -> None:
        """Drop the transfer when its START comes: this side has given it up before."""
        if len(self._refused) >= MAX_REFUSED:
            del self._refused[next(iter(self._refused))]
        self._refused[transfer_id] = None

    def remove(self, transfer_id: int, error: Error) -> tuple[Incoming | None, bool]:
        """Give up a transfer: (it if it was known, whether its end is to be told now; else `landed` returns it later)."""
        incoming = self._table.pop(transfer_id, None)
        self._unplaced.discard(transfer_id)
        if incoming is None:
            return None, False
        incoming.error = error
        self._give_back(incoming)
        if incoming.landing:
            self._leaving.add(incoming)
        return incoming, not incoming.landing

    def clear(self) -> list[Incoming]:
        """Forget everything; the transfers whose end nobody has been told."""
        left = [*self._table.values(), *self._leaving]
        for line in (self._table, self._unplaced, self._refused, self._pool, self._leaving):
            line.clear()
        return left


def _other_size(transfer_id: int, total: int, expected: int) -> str:
    return f"the transfer {transfer_id} has {total} bytes, its command says {expected}"
