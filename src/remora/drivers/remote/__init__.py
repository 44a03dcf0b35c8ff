"""Devices behind a link. The only driver that sees wire, session and link. Read ../README.md first."""

from __future__ import annotations

from collections.abc import Sequence

from remora.base.uri import Uri
from remora.drivers.remote.host import open_devices as _open
from remora.hal.device import Device

__all__ = ["open_devices", "preload"]


def open_devices(uri: Uri) -> Sequence[Device]:
    """Connect and open every device of the server. Closing the last one ends the connection."""
    return _open(uri)


def preload() -> None:
    """See `registry.Driver`: this module has imported everything."""
