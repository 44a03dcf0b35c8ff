"""The null driver: memory works, kernels are checked and do nothing. A skeleton to copy (requirement D06)."""

from __future__ import annotations

from collections.abc import Sequence

from remora.base.uri import Uri
from remora.drivers.null.device import NullDevice
from remora.errors import UsageError

__all__ = ["open_devices", "preload"]


def open_devices(uri: Uri) -> Sequence[NullDevice]:
    """Open the one null device. A driver reads its options from the URI here; this one has none, and says so."""
    if uri.place or uri.query:
        raise UsageError(f"{uri} has options that the null driver does not know; write null://")
    return (NullDevice(str(uri)),)


def preload() -> None:
    """See `registry.Driver`: this module has imported everything."""
