"""How far a transfer may run ahead of its credit: as far as the link takes it in the round trip that the credit needs.

A receiver without a destination stages what comes, so the window is bounded by the staging budget that the receiver has named. On a
short link it is one chunk: the credit is there before that has gone. On a long one it is bandwidth x delay, so the link does not
fall silent while the credit is on its way (64 MiB at 0.6 GB/s and 50 ms: 110 ms instead of 160).
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

from remora.session.transfers import FREE, MAX_STAGED, MIN_STAGING
from remora.wire.bulk import CHUNK

__all__ = ["SAMPLE", "EarlyWindow"]

#: Bytes sent without a pause that make one sample of the bandwidth: more than the system's buffers hold.
SAMPLE: Final = 8 * CHUNK
#: Samples that are looked at: the median of the last bandwidths, and the least of the last round trips.
RATES: Final = 5
ROUND_TRIPS: Final = 8


class EarlyWindow:
    """`size` is how many bytes of a transfer may go without credit. Until both are measured, and never below, FREE."""

    __slots__ = ("_bytes", "_most", "_rates", "_round_trips", "_since", "size")

    def __init__(self, budget: int = MIN_STAGING) -> None:
        """`budget`: bytes that the receiver stages for all transfers together; each of MAX_STAGED may have FREE of them."""
        self.size = FREE
        self._most = FREE + max(0, budget - MAX_STAGED * FREE)
        self._round_trips: deque[float] = deque(maxlen=ROUND_TRIPS)
        self._rates: deque[float] = deque(maxlen=RATES)
        self._since: float | None = None
        self._bytes = 0

    def round_trip(self, seconds: float) -> None:
        """Take a measured round trip."""
        self._round_trips.append(seconds)
        self._measure()

    def sent(self, size: int, now: float) -> None:
        """A chunk has gone. Chunks between two `pause` went one right after the other."""
        if self._since is None:
            self._since, self._bytes = now, 0
            return
        self._bytes += size
        if self._bytes >= SAMPLE and now > self._since:
            self._rates.append(self._bytes / (now - self._since))
            self._since, self._bytes = now, 0
            self._measure()

    def pause(self) -> None:
        """There is nothing that may be sent: the time from here on says nothing about the link."""
        self._since = None

    def _measure(self) -> None:
        if self._round_trips and self._rates:
            chunks = int(min(self._round_trips) * median(self._rates)) // CHUNK
            self.size = min(FREE + chunks * CHUNK, self._most // CHUNK * CHUNK)
