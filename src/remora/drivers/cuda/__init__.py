"""The cuda driver: NVIDIA GPUs through cuda-bindings (requirement D04)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from remora.base.uri import Uri
from remora.errors import UnsupportedError, UsageError
from remora.hal.device import Device

__all__ = ["open_devices", "preload"]


def open_devices(uri: Uri) -> Sequence[Device]:
    """Open one GPU: `cuda` is the first, `cuda://1` the second.

    Raises UnsupportedError where cuda-bindings or the driver is missing, NotFoundError for a GPU that is not there.
    """
    ordinal = ordinal_of(uri)
    need_bindings()
    from remora.drivers.cuda.device import CudaDevice

    return (CudaDevice(str(uri), ordinal),)


def preload() -> None:
    """See `registry.Driver`. Nothing of the vendor's driver is initialized: that must happen after the fork."""
    if find_spec("cuda") is not None and find_spec("cuda.bindings") is not None:
        import_module("remora.drivers.cuda.device")


def need_bindings() -> None:
    """Raise UnsupportedError, which says what to install, unless cuda-bindings is there."""
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        raise UnsupportedError("the cuda driver needs cuda-bindings: pip install 'remora[cuda]'")


def ordinal_of(uri: Uri) -> int:
    """Which GPU the URI names. Raises UsageError for anything but a number."""
    if uri.query:
        raise UsageError(f"{uri}: the cuda driver has no option {next(iter(uri.query))!r}; write cuda or cuda://1")
    if not uri.place:
        return 0
    if not (uri.place.isascii() and uri.place.isdigit()):
        raise UsageError(f"{uri}: {uri.place!r} is no number of a GPU; write cuda or cuda://1")
    return int(uri.place)
