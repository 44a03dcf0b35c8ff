"""Is the peer alive? (requirement H08) Judged from the times that are passed in; any byte from the peer counts as a sign of life."""

from __future__ import annotations

from typing import NamedTuple

from remora.errors import UsageError

__all__ = ["Heartbeat", "HeartbeatOptions"]


class HeartbeatOptions(NamedTuple):
    """Seconds: ask after `interval` of silence, give up after `deadline` of it."""

    interval: float = 1.0
    deadline: float = 5.0


class Heartbeat:
    """Decides when to send a PING and when to give up."""

    __slots__ = ("_asked", "_heard_at", "heard", "nonce", "options")

    def __init__(self, options: HeartbeatOptions, now: float) -> None:
        if not 0 < options.interval < options.deadline:
            raise UsageError(f"keepalive needs 0 < interval < deadline, got {options.interval} s and {options.deadline} s")
        self.options = options
        self.heard = False  # set by whoever reads a lane, cleared by the next tick: the hot path asks for no time
        self.nonce = 0
        self._heard_at = now
        self._asked = False

    def due(self, now: float) -> bool:
        """Whether a PING must go out now; True once per silence."""
        if self.heard:
            self.heard = False
            self._asked = False
            self._heard_at = now
            return False
        if self._asked or now < self._heard_at + self.options.interval:
            return False
        self._asked = True
        self.nonce += 1
        return True

    def silence(self, now: float) -> float:
        """Seconds since the last sign of life that a tick has seen."""
        return 0.0 if self.heard else now - self._heard_at

    def next_tick(self) -> float:
        """The time at which `due` or the deadline must be looked at."""
        options = self.options
        return self._heard_at + (options.deadline if self._asked else options.interval)
