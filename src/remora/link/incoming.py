"""What arrives on the bulk lane and where it goes: tables without locks and I/O. The lane holds its lock around every call.

A transfer becomes known here by its START or by `expect`, whichever is first. Without a destination it is staged, which is bounded
in number and bytes. A transfer that was refused here before its START came is dropped when it comes.
"""

from __future__ import annotations

from remora.errors import Error, PeerError, UsageError
from remora.link.outgoing import MAX_STAGED
from remora.link.transfer import Done
from remora.session.transfers import FREE, ChunkTracker
from remora.wire.bulk import BulkHeader

__all__ = ["Incoming", "ReceiveTable"]

#: Transfers that were refused here and may still be on their way.
MAX_REFUSED = 1024
#: Staging blocks that are kept for the next transfer.
MAX_POOL = 2


class Incoming:
    """A transfer on its way here. `error` is why it was given up while its bytes were being received."""

    __slots__ = ("complete", "done", "error", "staged", "tracker", "view")

    def __init__(self) -> None:
        self.view: memoryview | None = None
        self.done: Done | None = None
        self.tracker: ChunkTracker | None = None
        self.staged: list[tuple[int, memoryview]] = []
        self.complete = False
        self.error: Error | None = None


class ReceiveTable:
    """Transfers that come in."""

    def __init__(self) -> None:
        self._table: dict[int, Incoming] = {}
        self._unplaced: set[int] = set()
        self._refused: dict[int, None] = {}
        self._pool: list[memoryview] = []
        self._current: Incoming | None = None

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
        self._settle(transfer_id, incoming)
        return self._finished(transfer_id, incoming)

    def _settle(self, transfer_id: int, incoming: Incoming) -> None:
        """With both a START and a destination: move what was staged there."""
        view, tracker = incoming.view, incoming.tracker
        if view is None or tracker is None:
            return
        if view.nbytes != tracker.total:
            raise PeerError(f"the transfer {transfer_id} has {tracker.total} bytes, its command says {view.nbytes}")
        for offset, data in incoming.staged:
            view[offset : offset + len(data)] = data
        self._give_back(incoming)
        tracker.grant_all()

    def _give_back(self, incoming: Incoming) -> None:
        """Keep the staging blocks for others."""
        for _, block in incoming.staged:
            self._recycle(block)
        incoming.staged.clear()

    def _recycle(self, block: memoryview) -> None:
        if len(block) == FREE and len(self._pool) < MAX_POOL:
            self._pool.append(block)

    def _finished(self, transfer_id: int, incoming: Incoming) -> bool:
        """Forget the transfer when everything is here and at its destination."""
        if not incoming.complete or incoming.view is None:
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
        elif incoming.tracker is not None:
            raise PeerError(f"the transfer {transfer_id} started twice")
        incoming.tracker = ChunkTracker(frame.value)
        self._settle(transfer_id, incoming)

    def data(self, frame: BulkHeader) -> memoryview:
        """Where the chunk of a DATA goes; when it is there, call `landed`. Raises PeerError for one that may not come."""
        incoming = self._current = self._table.get(frame.transfer_id)
        if incoming is None:  # given up on this side: what was under way is dropped
            return self._block(frame.rest)
        if incoming.tracker is None:
            raise PeerError(f"DATA before START in the transfer {frame.transfer_id}")
        incoming.tracker.take(frame.value, frame.rest)
        if incoming.view is not None:
            return incoming.view[frame.value : frame.value + frame.rest]
        return self._block(frame.rest)

    def _block(self, size: int) -> memoryview:
        if size == FREE and self._pool:
            return self._pool.pop()
        return memoryview(bytearray(size))

    def landed(self, frame: BulkHeader, place: memoryview) -> Incoming | None:
        """The chunk is at its `place`: the transfer that was given up meanwhile, whose `error` says why."""
        incoming, self._current = self._current, None
        if incoming is None:
            self._recycle(place)
        elif incoming.error is not None:
            return incoming
        elif incoming.view is None:
            incoming.staged.append((frame.value, place))
        elif place.obj is not incoming.view.obj:  # the destination came while the chunk did
            incoming.view[frame.value : frame.value + frame.rest] = place
            self._recycle(place)
        return None

    def complete(self, frame: BulkHeader) -> Incoming | None:
        """A COMPLETE: the transfer if that ended it. Raises PeerError when bytes are missing."""
        incoming = self._table.get(frame.transfer_id)
        if incoming is None:
            return None
        if incoming.tracker is None or not incoming.tracker.complete or frame.value != incoming.tracker.total:
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
        return incoming, incoming is not self._current

    def clear(self) -> list[Incoming]:
        """Forget everything; the transfers whose end nobody has been told."""
        left = list(self._table.values())
        if self._current is not None and self._current.error is not None:
            left.append(self._current)
        self._current = None
        for line in (self._table, self._unplaced, self._refused, self._pool):
            line.clear()
        return left
