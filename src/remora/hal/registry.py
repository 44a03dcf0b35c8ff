"""Which driver opens which URI. Drivers are named by module path and imported only when their device is opened."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from remora.base.uri import Uri, parse_uri
from remora.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remora.hal.device import Device

__all__ = ["DRIVERS", "Driver", "find_driver", "open_devices"]

#: Scheme -> module with `open_devices(uri)`. `remote-` schemes all belong to drivers.remote.
DRIVERS: dict[str, str] = {
    "cpu": "remora.drivers.cpu",
    "cuda": "remora.drivers.cuda",
    "hip": "remora.drivers.hip",
    "null": "remora.drivers.null",
    "opencl": "remora.drivers.opencl",
    "vulkan": "remora.drivers.vulkan",
}
REMOTE = "remora.drivers.remote"
#: Entry-point group where other packages register drivers: `name = "package.module"` gives the scheme `name`.
ENTRY_POINTS = "remora.drivers"


class Driver(Protocol):
    """What a driver module offers."""

    def open_devices(self, uri: Uri) -> Sequence[Device]:
        """Open what the URI names: one local device, or all devices of a host."""

    def preload(self) -> None:
        """Import what opening needs, and open nothing, start no thread: a server forks its sessions after this."""


def find_driver(scheme: str) -> Driver:
    """The driver module for a scheme. Raises NotFoundError that lists the known schemes."""
    path = REMOTE if scheme.startswith("remote-") else DRIVERS.get(scheme) or _entry_point(scheme)
    if path is None:
        known = ", ".join([*DRIVERS, "remote-tcp", "remote-unix", "remote-shm", "remote-loopback"])
        raise NotFoundError(
            f"no driver for {scheme!r}; known: {known}. A package adds one by the entry point group {ENTRY_POINTS!r}"
        )
    driver: Driver = import_module(path)
    return driver


def _entry_point(scheme: str) -> str | None:
    from importlib.metadata import entry_points

    return next((entry.value for entry in entry_points(group=ENTRY_POINTS, name=scheme)), None)


def open_devices(uri: str | Uri) -> Sequence[Device]:
    """Open every device that the URI names; the caller closes them."""
    parsed = parse_uri(uri) if isinstance(uri, str) else uri
    return find_driver(parsed.scheme).open_devices(parsed)
