"""The cpu driver: native kernels on all cores of this machine (requirement D01). Linux only."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from remora.base.uri import Uri
from remora.errors import UnsupportedError, UsageError
from remora.hal.device import Device

__all__ = ["open_devices", "preload"]

#: The most threads that `?threads=` takes.
MAX_THREADS = 1024


def open_devices(uri: Uri) -> Sequence[Device]:
    """Open the processor as one device. `cpu://?threads=2` runs kernels on two threads instead of one a usable core.

    Raises UsageError for another option, and UnsupportedError where the platform is not Linux or the worker pool was not built.
    """
    threads = threads_of(uri)
    if sys.platform != "linux":
        raise UnsupportedError(
            f"the cpu driver needs Linux (memfd, futex), this is {sys.platform}: open a device on a Linux host, remote-tcp://host:port"
        )
    from remora.drivers.cpu.device import CpuDevice

    return (CpuDevice(str(uri), threads),)


def preload() -> None:
    """See `registry.Driver`."""
    if sys.platform == "linux":
        import_module("remora.drivers.cpu.device")


def threads_of(uri: Uri) -> int | None:
    """The option `threads`, or None. Raises UsageError for anything else in the URI."""
    unknown = sorted(set(uri.query) - {"threads"})
    if uri.place or unknown:
        raise UsageError(f"{uri}: the cpu driver does not know {uri.place or unknown[0]!r}; write cpu or cpu://?threads=2")
    text = uri.query.get("threads")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_THREADS):
        raise UsageError(f"{uri}: threads is a number from 1 to {MAX_THREADS}, not {text!r}")
    return int(text)
