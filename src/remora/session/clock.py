"""How far the peer's clock is from ours, judged from exchanges; the times are passed in (H24).

One exchange says: we asked at `sent`, the peer's clock read `peer` some time before we had the answer at `received`. So the offset,
peer minus ours, lies between peer - received and peer - sent; the middle is off by half a round trip at most. Every exchange
narrows the interval, above all the one with the shortest round trip. With time it grows again, because clocks drift apart.
"""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_DRIFT_PPM", "ClockEstimate"]

#: How much faster or slower than ours the peer's clock may run, in millionths: two quartzes of 50 each.
MAX_DRIFT_PPM: Final = 100
_MILLION: Final = 1_000_000


class ClockEstimate:
    """The offset of a peer's clock as an interval that holds the true one. All times in nanoseconds."""

    __slots__ = ("_at", "_high", "_low", "_same")

    def __init__(self) -> None:
        self._low = self._high = self._at = 0
        self._same = False

    @property
    def known(self) -> bool:
        """Whether there was an exchange."""
        return self._at > 0

    def add(self, sent: int, peer: int, received: int, *, same: bool = False) -> None:
        """Take an exchange; `sent` <= `received` are ours. `same` when both sides say that they read one and the same clock.

        That is believed as long as the exchange does not rule it out.
        """
        drift = _drift(received - sent)
        low, high = peer - received - drift, peer - sent + drift
        if self._at:
            grown = _drift(received - self._at)
            narrow = max(low, self._low - grown), min(high, self._high + grown)
            if narrow[0] <= narrow[1]:  # else a clock was set or a machine slept: begin anew
                low, high = narrow
        self._low, self._high, self._at = low, high, received
        self._same = same and low <= 0 <= high

    def offset(self, now: int) -> tuple[int, int]:
        """(offset, how far off that is at most) at the time `now`, not before the last exchange."""
        if self._same:
            return 0, 0
        grown = _drift(now - self._at)
        middle = (self._low + self._high) // 2
        return middle, self._high - middle + grown


def _drift(elapsed: int) -> int:
    return abs(elapsed) * MAX_DRIFT_PPM // _MILLION + 1
