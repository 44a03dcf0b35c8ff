"""unix: `unix:///path/to.sock`, a socket in the file system that only its owner may open. Passes file descriptors."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from remora.carriers.carrier import Keepalive
from remora.carriers.local import LocalCarrier, connect_socket, listen_on
from remora.carriers.spin import spin_of
from remora.carriers.stream import StreamListener

if TYPE_CHECKING:
    from remora.base.uri import Uri

__all__ = ["adopt", "connect", "listen"]


def connect(uri: Uri, *, timeout: float, keepalive: Keepalive) -> LocalCarrier:  # noqa: ARG001 - nothing to keep alive
    """Connect within `timeout` seconds."""
    spin_us = spin_of(uri)
    return LocalCarrier(connect_socket(uri, timeout), f"unix://?pid={os.getpid()}", f"unix://{uri.place}", spin_us)


def listen(uri: Uri, *, keepalive: Keepalive, backlog: int) -> StreamListener:  # noqa: ARG001 - nothing to keep alive
    """Listen on a path that nobody else listens on."""
    spin_us = spin_of(uri)
    return listen_on(uri, backlog, lambda sock, local, peer: LocalCarrier(sock, local, peer, spin_us))


def adopt(fd: int, peer: str, spin_us: int | None = None) -> LocalCarrier:
    """Take over a connected socket."""
    sock = socket.socket(fileno=fd)
    return LocalCarrier(sock, f"unix://{sock.getsockname() or ''}", peer, spin_us)
