"""Bulk transfers as arithmetic: which bytes have come, which may go. No memory is held here.

A receiver grants credit as it can take bytes: everything once the destination of a transfer is known. Before that its bytes are
staged: at most MAX_STAGED transfers may have begun so, each has FREE bytes for sure, and what the receiver's budget holds beyond
that goes to whoever comes first. So memory stays bounded, no transfer can block another, and a transfer to a waiting destination
costs no extra round trip.
"""

from __future__ import annotations

from typing import Final

from remora.errors import PeerError
from remora.wire.bulk import CHUNK, MAX_STAGED, MIN_STAGING

__all__ = ["FREE", "MAX_STAGED", "MIN_STAGING", "ChunkTracker", "SendWindow"]

#: Bytes of each staged transfer that may always be sent without credit.
FREE: Final = MIN_STAGING // MAX_STAGED


class ChunkTracker:
    """Which chunks of an incoming transfer arrived. Chunks lie on a fixed grid and may come in any order."""

    __slots__ = ("_early", "_prefix", "granted", "received", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self.received = 0
        self.granted = min(FREE, total)
        self._prefix = 0  # every chunk before this offset is here,
        self._early: set[int] = set()  # and these offsets behind it: as many as chunks came, whatever the total

    def take(self, offset: int, size: int, spare: int = 0) -> int:
        """Take one chunk; how many bytes it lies beyond the credit, of the `spare` that it may.

        Raises PeerError off the grid, of a wrong size, twice, or beyond both.
        """
        if offset >= self.total or size != min(CHUNK, self.total - offset) or offset % CHUNK:
            raise PeerError(f"a chunk of {size} bytes at {offset} does not fit a transfer of {self.total} bytes")
        if offset < self._prefix or offset in self._early:
            raise PeerError(f"the chunk at {offset} came twice")
        self.received += size
        beyond = max(0, self.received - self.granted)
        if beyond > spare:
            raise PeerError(f"{self.received} bytes came under a credit of {self.granted}")
        self.granted += beyond
        self._mark(offset)
        return beyond

    def _mark(self, offset: int) -> None:
        if offset != self._prefix:
            self._early.add(offset)
            return
        self._prefix += CHUNK
        while self._prefix in self._early:
            self._early.remove(self._prefix)
            self._prefix += CHUNK

    def grant_all(self) -> bool:
        """Allow the rest; True when a CREDIT has to say so."""
        before, self.granted = self.granted, self.total
        return before < self.total

    @property
    def complete(self) -> bool:
        """Whether every byte is here."""
        return self.received == self.total


class SendWindow:
    """How much of an outgoing transfer has gone and may go."""

    __slots__ = ("granted", "sent", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self.sent = 0
        self.granted = min(FREE, total)

    def run_ahead(self, size: int) -> int:
        """Allow the first `size` bytes without credit; how many of them lie beyond FREE."""
        self.granted = max(self.granted, min(size, self.total))
        return max(0, self.granted - FREE)

    def credit(self, granted: int) -> None:
        """Take a CREDIT: cumulative, so an old or repeated one changes nothing. Raises PeerError beyond the total."""
        if granted > self.total:
            raise PeerError(f"a credit of {granted} bytes for a transfer of {self.total}")
        self.granted = max(self.granted, granted)

    def next_chunk(self) -> tuple[int, int]:
        """(offset, size) of the chunk to send now; size 0 when all has gone or credit is missing."""
        size = min(CHUNK, self.total - self.sent)
        if size > self.granted - self.sent:
            return self.sent, 0
        return self.sent, size

    def send(self, size: int) -> None:
        """Note that the chunk has gone."""
        self.sent += size

    @property
    def complete(self) -> bool:
        """Whether every byte has gone."""
        return self.sent == self.total
