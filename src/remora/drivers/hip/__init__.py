"""The hip driver: AMD GPUs through libamdhip64, the runtime of ROCm (requirement D05).

Nothing of it has run on an AMD GPU: README.md says what was checked instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from remora.base.uri import Uri
from remora.errors import UsageError
from remora.hal.device import Device

__all__ = ["open_devices", "preload"]


def open_devices(uri: Uri) -> Sequence[Device]:
    """Open one GPU: `hip` is the first, `hip://1` the second.

    Raises UnsupportedError where ROCm's runtime is missing, NotFoundError for a GPU that is not there.
    """
    ordinal = ordinal_of(uri)
    from remora.drivers.hip.device import HipDevice

    return (HipDevice(str(uri), ordinal),)


def preload() -> None:
    """See `registry.Driver`. The vendor's library is not loaded: that must happen after the fork."""
    import_module("remora.drivers.hip.device")


def ordinal_of(uri: Uri) -> int:
    """Which GPU the URI names. Raises UsageError for anything but a number."""
    if uri.query:
        raise UsageError(f"{uri}: the hip driver has no option {next(iter(uri.query))!r}; write hip or hip://1")
    if not uri.place:
        return 0
    if not (uri.place.isascii() and uri.place.isdigit()):
        raise UsageError(f"{uri}: {uri.place!r} is no number of a GPU; write hip or hip://1")
    return int(uri.place)
