"""Bulk transfers as arithmetic: which bytes have come, which may go. No memory is held here.

A receiver grants credit as it can take bytes: FREE bytes of every transfer may be sent before its destination is known (they are
staged), and everything once it is. So memory stays bounded, no transfer can block another, and a transfer to a waiting
destination costs no extra round trip.
"""

from __future__ import annotations

from typing import Final

from remora.errors import PeerError
from remora.wire.bulk import CHUNK

__all__ = ["FREE", "ChunkTracker", "SendWindow"]

#: Bytes of a transfer that may be sent without credit.
FREE: Final = CHUNK


class ChunkTracker:
    """Which chunks of an incoming transfer arrived. Chunks lie on a fixed grid and may come in any order."""

    __slots__ = ("_early", "_prefix", "granted", "received", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self.received = 0
        self.granted = min(FREE, total)
        self._prefix = 0  # every chunk before this offset is here,
        self._early: set[int] = set()  # and these offsets behind it: as many as chunks came, whatever the total

    def take(self, offset: int, size: int) -> None:
        """Take one chunk. Raises PeerError off the grid, of a wrong size, twice, or beyond the credit."""
        if offset >= self.total or size != min(CHUNK, self.total - offset) or offset % CHUNK:
            raise PeerError(f"a chunk of {size} bytes at {offset} does not fit a transfer of {self.total} bytes")
        if offset < self._prefix or offset in self._early:
            raise PeerError(f"the chunk at {offset} came twice")
        if self.received + size > self.granted:
            raise PeerError(f"{self.received + size} bytes came under a credit of {self.granted}")
        self.received += size
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
