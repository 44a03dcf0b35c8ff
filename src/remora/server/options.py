"""What a server is told at its start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from remora.session.keepalive import HeartbeatOptions

__all__ = ["DEFAULT_BIND", "ServeOptions"]

DEFAULT_BIND = "tcp://0.0.0.0:5000"
DEFAULT_HEARTBEAT = HeartbeatOptions(2.0, 15.0)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How to serve. URIs as `remora.base.uri` has them; times in seconds."""

    devices: tuple[str, ...] = ("cpu",)
    bind: tuple[str, ...] = (DEFAULT_BIND,)
    max_sessions: int = 16
    shared: bool = False
    """All sessions in this process instead of a process each: lighter, but a crashing kernel takes all of them along."""
    command_window: int = 4096
    """Commands that a session may have in flight."""
    heartbeat: HeartbeatOptions = DEFAULT_HEARTBEAT
    """A client that is silent for longer than the deadline has lost its session."""
    log: Callable[[str], None] = lambda _: None
    """Called with one line for each session that begins or ends."""
