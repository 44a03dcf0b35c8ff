"""The front door: `open` gives a device, `connect` a host with all of its devices (H09, H10)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType

from remora.base.uri import Uri, parse_uri
from remora.errors import BrokenError, BusyError, NotFoundError, OutOfMemoryError, UsageError
from remora.hal.device import Device
from remora.hal.registry import open_devices

__all__ = ["Host", "connect", "open"]

#: Who hears of every device that is opened, with the URI it was opened by: a trace that follows the program.
WATCHERS: list[Callable[[str, Device], None]] = []
#: Seconds between two tries of `open(..., retry=)`.
RETRY_EVERY = 0.1


class Host:
    """What a URI leads to: one or several devices. Made by `remora.connect`; `close()` or `with` closes them all.

    Example: `with remora.connect("remote-tcp://host:5000") as host: print(host.devices)`.
    """

    def __init__(self, uri: str, devices: Sequence[Device]) -> None:
        self.uri = uri
        self.devices = tuple(devices)

    def __repr__(self) -> str:
        return f"<Host {self.uri}: {len(self.devices)} devices>"

    def close(self) -> None:
        """Close every device. Safe to repeat."""
        for device in self.devices:
            device.close()

    def __enter__(self) -> Host:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def connect(uri: str, *, retry: float = 0.0) -> Host:
    """All devices behind a URI. `retry` is how many seconds to keep trying while the server is unreachable or full, or the
    device has no memory left for one more program.

    Raises UsageError for a URI that is none, NotFoundError for an unknown scheme, BrokenError when nobody answers there.
    Example: `with remora.connect("remote-unix:///run/remora.sock") as host: device = host.devices[0]`.
    """
    parsed = parse_uri(uri)
    if "device" in parsed.query:
        raise UsageError("connect gives all devices: leave ?device= out, or use remora.open")
    devices = _open(parsed, retry)
    try:
        return Host(uri, _watched(uri, devices))
    except BaseException:
        _close(devices)
        raise


def open(uri: str, *, retry: float = 0.0) -> Device:  # noqa: A001  (read as remora.open)
    """One device: the first behind the URI, or `?device=N`. For `retry` and the errors see `connect`.

    Example: `device = remora.open("remote-tcp://host:5000?device=1", retry=10)`.
    """
    parsed = parse_uri(uri)
    query = dict(parsed.query)
    text = query.pop("device", "0")
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"device={text}: give a device's number, 0 for the first")
    wanted, address = int(text), Uri(parsed.scheme, parsed.place, query)
    devices = _open(address, retry)
    try:
        return _choose(uri, devices, wanted)
    except BaseException:
        _close(devices)
        raise


def _choose(uri: str, devices: Sequence[Device], wanted: int) -> Device:
    """Device number `wanted`; the others are closed."""
    for number, device in enumerate(devices):
        if number != wanted:
            device.close()
    if wanted >= len(devices):
        raise NotFoundError(f"{uri}: there are {len(devices)} devices, numbered from 0")
    return _watched(uri, [devices[wanted]])[0]


def _close(devices: Sequence[Device]) -> None:
    for device in devices:
        device.close()


def _watched(uri: str, devices: Sequence[Device]) -> Sequence[Device]:
    for watcher in tuple(WATCHERS):
        for device in devices:
            watcher(uri, device)
    return devices


def _open(uri: Uri, retry: float) -> Sequence[Device]:
    deadline = time.monotonic() + retry
    while True:
        try:
            return open_devices(uri)
        except (BrokenError, BusyError, OutOfMemoryError):
            if time.monotonic() + RETRY_EVERY > deadline:
                raise
            time.sleep(RETRY_EVERY)
