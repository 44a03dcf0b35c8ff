"""What a server is told at its start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from remora.server.grants import FileGrant
from remora.session.keepalive import HeartbeatOptions
from remora.session.transfers import MIN_STAGING
from remora.wire.bootstrap import MAX_BULK

__all__ = ["DEFAULT_BIND", "ServeOptions", "SessionLimits"]

DEFAULT_BIND = "tcp://0.0.0.0:5000"
#: Bytes of uploads that a session stages at most: what a link of 4 Gbit/s holds in 50 ms.
STAGING = 24 << 20
DEFAULT_HEARTBEAT = HeartbeatOptions(2.0, 15.0)


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What one session may have (H07); None sets no limit. Its window of commands is in `ServeOptions.command_window`."""

    memory: int | None = None
    """Bytes of its buffers on all devices together, as they were asked for."""
    transfers: int | None = None
    """Uploads and downloads over bulk that are submitted and not done."""
    executables: int | None = None
    """Executables that are loaded or being loaded."""
    resources: int = 1 << 16
    """Buffers, executables, command buffers, events and files together."""
    idle_timeout: float | None = None
    """Seconds without a command or request, and with nothing in flight, after which it is ended."""
    files: tuple[FileGrant, ...] = ()
    """The server's files that it may open, by name (H23)."""

    bulk: int = MAX_BULK
    """Connections of its bulk lane: a client that asks for more gets these."""
    recordings: int = 1 << 14
    """Command buffers that it may have stored (H18)."""
    recording_bytes: int = 1 << 30
    """Bytes of them, as they were uploaded."""

    @property
    def staging(self) -> int:
        """Bytes that uploads without a ready destination may hold: what every session needs, and within its quota of memory."""
        return max(MIN_STAGING, STAGING if self.memory is None else min(STAGING, self.memory))


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
    limits: SessionLimits = SessionLimits()
    """What each session may have."""
    drain_timeout: float = 5.0
    """What sessions have in flight when the server stops has this long to finish."""
    cache: int = 256 << 20
    """Bytes of executables that the server keeps, so that no other session has to upload them; 0 keeps none."""
