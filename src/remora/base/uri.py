"""Addresses: `scheme://place?key=value`.

cpu                       a local device                      cpu://
vulkan:1                  one of several, up to two digits    vulkan://1
tcp://127.0.0.1:5000      a carrier address; IPv6 in brackets: tcp://[::1]:5000
unix:///run/remora.sock   a socket in the file system
loopback://name           inside this process
remote-tcp://host:5000    a device behind a carrier: `remote-` + a carrier address, ?device=1 picks one
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlencode

from remora.errors import UsageError

__all__ = ["Uri", "parse_uri", "split_host_port"]

DEFAULT_PORT = 5000
#: Characters that need no percent-encoding in a place or a query value.
_PLAIN = "/:[]@!$'()*,;"
_NUMBERED = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):([0-9]{1,2})")


@dataclass(frozen=True, slots=True)
class Uri:
    """A parsed address. `place` is what stands between `://` and `?`, percent-decoded."""

    scheme: str
    place: str = ""
    query: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        tail = "?" + urlencode(self.query, safe=_PLAIN, quote_via=quote) if self.query else ""
        return f"{self.scheme}://{quote(self.place, safe=_PLAIN)}{tail}"

    @property
    def carrier(self) -> Uri:
        """The carrier address inside a `remote-` URI, without the query."""
        if not self.scheme.startswith("remote-"):
            raise UsageError(f"{self} is not a remote URI; write remote-tcp://host:port or remote-unix:///path")
        return Uri(self.scheme.removeprefix("remote-"), self.place)


def parse_uri(text: str) -> Uri:
    """Parse an address. Raises UsageError with the forms that are understood."""
    head, _, query = text.strip().partition("?")
    numbered = _NUMBERED.fullmatch(head)
    scheme, place = numbered.groups() if numbered else head.partition("://")[::2]
    if not scheme or not all(char.isalnum() or char in "-+." for char in scheme):
        raise UsageError(f"{text!r} is no device URI; examples: cpu, remote-tcp://host:5000, remote-unix:///run/remora.sock")
    pairs = parse_qsl(query, keep_blank_values=True)
    if len({key for key, _ in pairs}) != len(pairs):
        raise UsageError(f"{text!r} gives a key twice")
    return Uri(scheme.lower(), unquote(place), dict(pairs))


def split_host_port(place: str) -> tuple[str, int]:
    """(host, port) of `host:port`, `[v6]:port` or `host` (port 5000). Raises UsageError when the port is no port."""
    if place.startswith("["):
        host, bracket, tail = place[1:].partition("]")
        if not bracket or (tail and not tail.startswith(":")):
            raise UsageError(f"{place!r}: write an IPv6 address as [::1]:{DEFAULT_PORT}")
        port = tail[1:]
    else:
        host, _, port = place.partition(":")
        if ":" in port:
            raise UsageError(f"{place!r}: put an IPv6 address in brackets, [{place}]:{DEFAULT_PORT}")
    if not port:
        return host, DEFAULT_PORT
    if not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 0xFFFF:
        raise UsageError(f"{place!r}: {port!r} is no port (0 to 65535)")
    return host, int(port)
