"""The bytes of a client's file on their way over bulk: a row of transfers, of which AHEAD at a time have begun here (H23)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from remora.errors import Error
from remora.link.bulk import BulkLane
from remora.link.transfer import Done
from remora.wire.file_commands import AHEAD, FILE_READ, PIECE, FileRange, piece_count

__all__ = ["PieceRow", "refuse_row"]

NOTHING = memoryview(b"")


class PieceRow:
    """One command's transfers, into or out of `memory`. `finished` hears once how it went; then the memory is not touched any more.

    A file that is written is so when the client says it, by one transfer of nothing behind the last piece. Any thread may call.
    """

    def __init__(self, bulk: BulkLane, op: int, body: FileRange, memory: memoryview, finished: Done) -> None:
        self._bulk = bulk
        self._reads = op == FILE_READ
        self._memory = memory
        self._finished = finished
        self._first = body.transfer_id
        self._pieces = piece_count(body.length)
        self._lock = threading.Lock()
        self._next = 0
        self._open: set[int] = set()
        self._error: Error | None = None
        self._over = False

    def start(self) -> None:
        """Its turn has come."""
        if not self._reads:
            with self._lock:
                self._open.add(self._pieces)
            self._begin(self._bulk.expect, self._pieces, NOTHING)
        self._go_on()

    def _go_on(self) -> None:
        begin = self._bulk.expect if self._reads else self._bulk.send
        while (index := self._take()) is not None:
            self._begin(begin, index, self._memory[index * PIECE : (index + 1) * PIECE])

    def _take(self) -> int | None:
        """The piece to begin now, or None when enough have begun."""
        with self._lock:
            if self._error is not None or self._next == self._pieces or len(self._open) >= AHEAD + (not self._reads):
                return None
            index = self._next
            self._next += 1
            self._open.add(index)
            return index

    def _begin(self, begin: Callable[[int, memoryview, Done], None], index: int, view: memoryview) -> None:
        try:
            begin(self._first + 2 * index, view, partial(self._ended, index))
        except Error as error:
            self._ended(index, error)

    def _ended(self, index: int, error: Error | None) -> None:
        with self._lock:
            self._open.discard(index)
            first = error is not None and self._error is None
            if first:
                self._error = error
            rest = (*self._open, *range(self._next, min(self._next + AHEAD, self._pieces))) if first else ()
        for other in rest:
            self._bulk.abort(self._first + 2 * other, self._error or error)  # type: ignore[arg-type]
        if error is None:
            self._go_on()
        with self._lock:
            over = not self._over and not self._open and (self._error is not None or self._next == self._pieces)
            self._over = self._over or over
        if over:
            self._finished(self._error)


def refuse_row(bulk: BulkLane, body: FileRange, error: Error) -> None:
    """The command will not run: the client must not wait with its file."""
    for index in range(min(AHEAD, piece_count(body.length))):
        bulk.abort(body.transfer_id + 2 * index, error)
