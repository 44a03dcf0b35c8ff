"""tcp: `tcp://host:port`, IPv6 in brackets, port 0 for any free port. Plaintext; no Nagle on either side (H31)."""

from __future__ import annotations

import math
import socket
from typing import Any

from remora.base.uri import Uri, split_host_port
from remora.carriers.carrier import Capability, Keepalive
from remora.carriers.causes import refused
from remora.carriers.spin import spin_of
from remora.carriers.stream import StreamCarrier, StreamListener, open_socket
from remora.errors import BrokenError, Error, UsageError

__all__ = ["adopt", "connect", "listen"]


def connect(uri: Uri, *, timeout: float, keepalive: Keepalive) -> StreamCarrier:
    """Connect within `timeout` seconds (the time for the name look-up not counted), trying every address of the host."""
    spin_us = spin_of(uri)
    host, port = split_host_port(uri.place)
    if not host or not port:
        raise UsageError(f"{uri}: connect needs a host and a port, tcp://host:5000")
    peer = f"tcp://{uri.place}"
    failure: Error | None = None
    for family, kind, protocol, _, address in _resolve(uri, host, port):
        sock = open_socket(peer, family, kind, protocol)
        try:
            sock.settimeout(max(timeout, 0.001))
            sock.connect(address)
            return _carrier(sock, _uri_of(sock.getsockname()), peer, keepalive, spin_us)
        except TimeoutError as error:
            failure = BrokenError(f"no answer within {timeout:g} s: check the address, or give more time", origin=peer)
            failure.__cause__ = error
        except OSError as error:
            failure = refused(peer, error)
        sock.close()
    raise failure or BrokenError("the host has no address", origin=peer)


def listen(uri: Uri, *, keepalive: Keepalive, backlog: int) -> StreamListener:
    """Listen; `tcp://:5000` means every address of this machine. Raises UsageError when the address cannot be bound."""
    spin_us = spin_of(uri)
    host, port = split_host_port(uri.place)
    family, kind, protocol, _, address = _resolve(uri, host or "0.0.0.0", port)[0]
    sock = open_socket(str(uri), family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        raise UsageError(f"cannot listen on {uri}: {error.strerror}; choose another port, or 0 for any") from error
    bound = _uri_of(sock.getsockname())
    return StreamListener(sock, bound, lambda accepted, peer: _carrier(accepted, bound, _uri_of(peer), keepalive, spin_us))


def adopt(fd: int, peer: str, spin_us: int | None = None) -> StreamCarrier:
    """Take over a connected socket, with the options that it has."""
    sock = socket.socket(fileno=fd)
    return StreamCarrier(sock, _uri_of(sock.getsockname()), peer, Capability(0), spin_us)


def _resolve(uri: Uri, host: str, port: int) -> list[Any]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        if isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN:
            raise BrokenError(
                f"no name server answers for {host!r}: try again, or give a numeric address", origin=str(uri)
            ) from error
        raise UsageError(f"{uri}: no host is called {host!r}; check the spelling, or give a numeric address") from error


def _uri_of(address: Any) -> str:
    host, port = address[:2]
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _carrier(sock: socket.socket, local: str, peer: str, keepalive: Keepalive, spin_us: int | None) -> StreamCarrier:
    """Probes cover an idle connection, the user timeout one with bytes under way; each alone leaves a gap (H08)."""
    idle = math.ceil(keepalive.interval)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, idle)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, max(1, round(keepalive.deadline / idle) - 1))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, math.ceil(keepalive.deadline * 1000))
    return StreamCarrier(sock, local, peer, Capability(0), spin_us)
