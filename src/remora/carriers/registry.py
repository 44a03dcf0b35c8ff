"""Which module carries which scheme. A carrier is named by module path and imported when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

from remora.base.uri import Uri, parse_uri
from remora.carriers.carrier import Carrier, Keepalive, Listener
from remora.errors import NotFoundError

__all__ = ["CARRIERS", "CarrierModule", "adopt", "connect", "find_carrier", "listen"]

#: Scheme -> module with the functions of CarrierModule.
CARRIERS: dict[str, str] = {
    "loopback": "remora.carriers.loopback",
    "shm": "remora.carriers.shm",
    "tcp": "remora.carriers.tcp",
    "unix": "remora.carriers.unix",
}
#: Entry-point group where other packages register carriers: `name = "package.module"` gives the scheme `name`.
ENTRY_POINTS = "remora.carriers"

DEFAULT_KEEPALIVE = Keepalive()


class CarrierModule(Protocol):
    """What a carrier module offers."""

    def connect(self, uri: Uri, *, timeout: float, keepalive: Keepalive) -> Carrier:
        """A carrier to a listening peer."""

    def listen(self, uri: Uri, *, keepalive: Keepalive, backlog: int) -> Listener:
        """A listener that is ready for connections."""

    def adopt(self, fd: int, peer: str, spin_us: int | None = None) -> Carrier:
        """A carrier over a descriptor that `detach` gave up, maybe in another process."""


def find_carrier(scheme: str) -> CarrierModule:
    """The carrier module for a scheme. Raises NotFoundError that lists the known ones."""
    path = CARRIERS.get(scheme) or _entry_point(scheme)
    if path is None:
        raise NotFoundError(
            f"no carrier for {scheme!r}; known: {', '.join(CARRIERS)}. A package adds one by the entry point group {ENTRY_POINTS!r}"
        )
    module: CarrierModule = import_module(path)
    return module


def _entry_point(scheme: str) -> str | None:
    from importlib.metadata import entry_points

    return next((entry.value for entry in entry_points(group=ENTRY_POINTS, name=scheme)), None)


def connect(uri: Uri | str, *, timeout: float = 30.0, keepalive: Keepalive = DEFAULT_KEEPALIVE) -> Carrier:
    """Connect to a listening peer within `timeout` seconds. The carrier is CREATED: activate it.

    Raises BrokenError (names the address and the cause: refused, no answer, no route) and UsageError for a wrong address.
    """
    parsed = parse_uri(uri) if isinstance(uri, str) else uri
    return find_carrier(parsed.scheme).connect(parsed, timeout=timeout, keepalive=keepalive)


def listen(uri: Uri | str, *, keepalive: Keepalive = DEFAULT_KEEPALIVE, backlog: int = 128) -> Listener:
    """Listen on an address; `Listener.address` is what was really bound. Raises UsageError when that cannot be."""
    parsed = parse_uri(uri) if isinstance(uri, str) else uri
    return find_carrier(parsed.scheme).listen(parsed, keepalive=keepalive, backlog=backlog)


def adopt(scheme: str, fd: int, peer: str, spin_us: int | None = None) -> Carrier:
    """Take over a descriptor that `Carrier.detach` gave up; the carrier owns it from here.

    `peer` is a URI for messages, `spin_us` as in `Carrier`.
    """
    return find_carrier(scheme).adopt(fd, peer, spin_us)
