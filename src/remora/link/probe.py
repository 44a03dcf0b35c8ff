"""Measures the round trip while transfers go out, so that they know how far to run ahead of their credit.

The bulk lane cannot tell it: a credit comes when the destination is ready, which may be long after the round trip. A PING on the
control lane is answered at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from remora.link.bulk import BulkLane
from remora.session.session import Session

__all__ = ["INTERVAL", "Probe"]

#: Seconds between two measurements while transfers go on. Without transfers there are none.
INTERVAL = 1.0


class Probe:
    """`look` is a chore of the link's thread; `ask()` sends a PING and returns its nonce, 0 when the session has ended."""

    def __init__(self, session: Session, bulk: BulkLane, ask: Callable[[], int]) -> None:
        self._session = session
        self._bulk = bulk
        self._ask = ask
        self._nonce = 0
        self._asked_at = -math.inf
        self._sent = -1

    def look(self, now: float) -> float:
        """Take the answer that has come, or ask when transfers have gone out since the last time; when to look again."""
        if self._nonce:
            if self._session.heartbeat.answered(self._nonce):
                self._bulk.round_trip(now - self._asked_at)
                self._nonce = 0
            return math.inf  # the answer wakes the thread
        sent = self._bulk.bytes_sent
        if sent == self._sent or not self._bulk.started:
            return math.inf
        if now < self._asked_at + INTERVAL:
            return self._asked_at + INTERVAL
        self._sent, self._asked_at = sent, now
        self._nonce = self._ask()
        return math.inf
