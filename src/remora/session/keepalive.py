"""Is the peer alive? (H08) Judged from the times that are passed in; any byte from the peer is a sign of life.

Who reads a lane only sets a flag, for the hot path asks for no time. So a tick knows that a sign came after the tick before it, and
counts from there: with two ticks an interval, a peer that died is noticed no later than `deadline` after its last byte.
"""

from __future__ import annotations

from typing import NamedTuple

from remora.errors import PeerError, UsageError

__all__ = ["Heartbeat", "HeartbeatOptions"]


class HeartbeatOptions(NamedTuple):
    """Seconds: ask within `interval` of silence, give up after `deadline` of it."""

    interval: float = 1.0
    deadline: float = 5.0


class Heartbeat:
    """Decides when to send a PING and when to give up."""

    __slots__ = ("_answered", "_asked_at", "_heard_at", "_ticked_at", "heard", "nonce", "options")

    def __init__(self, options: HeartbeatOptions, now: float) -> None:
        if not 0 < options.interval < options.deadline:
            raise UsageError(f"keepalive needs 0 < interval < deadline, got {options.interval} s and {options.deadline} s")
        self.options = options
        self.heard = False
        """Set by whoever reads a lane, cleared by the next tick."""
        self.nonce = 0
        """Of the last PING."""
        self._answered = 0
        self._heard_at = now
        self._ticked_at = now
        self._asked_at: float | None = None

    def due(self, now: float) -> bool:
        """Take a tick; whether a PING must go out now, which it must once per silence."""
        before, self._ticked_at = self._ticked_at, now
        if self.heard:
            self.heard = False
            self._heard_at = before
            self._asked_at = None
        elif now - before >= self.options.deadline:
            self._asked_at = None  # this side slept itself and has not read the answer yet: ask again
        if self._asked_at is not None or now < self._heard_at + self.options.interval:
            return False
        self._asked_at = now
        self.nonce += 1
        return True

    def expired(self, now: float) -> bool:
        """Whether the peer had its time to answer and did not."""
        return not self.heard and self._asked_at is not None and now >= self._give_up_at(self._asked_at)

    def ask(self) -> int:
        """The nonce of a PING that goes out whatever was heard."""
        self.nonce += 1
        return self.nonce

    def answered(self, nonce: int) -> bool:
        """Whether the peer has answered this PING or a later one."""
        return self._answered >= nonce

    def answer(self, nonce: int) -> None:
        """Take a PONG. Raises PeerError when that PING was never sent, or is answered already."""
        if not self._answered < nonce <= self.nonce:
            raise PeerError(f"PONG {nonce} was not asked for")
        self._answered = nonce

    def next_tick(self) -> float:
        """The time of the next tick: half an interval after the last one, or earlier when it is time to ask or to give up."""
        soon = self._ticked_at + self.options.interval / 2
        return min(soon, self._heard_at + self.options.interval if self._asked_at is None else self._give_up_at(self._asked_at))

    def _give_up_at(self, asked_at: float) -> float:
        return asked_at + self.options.deadline - self.options.interval
