"""The opencl driver: any OpenCL 1.2 device through pyopencl (requirement D02). Read README.md first."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from remora.base.uri import Uri
from remora.errors import UnsupportedError, UsageError
from remora.hal.device import Device

__all__ = ["open_devices", "preload"]


def open_devices(uri: Uri) -> Sequence[Device]:
    """Open one device: `opencl` the first, GPUs before the rest; `opencl:1` by number; `opencl://portable` by a part of its name.

    Raises UsageError for an option, NotFoundError (which lists the devices) for a device that is not there, and UnsupportedError
    that says what to install where pyopencl or an OpenCL platform is missing.
    """
    if uri.query:
        raise UsageError(f"{uri} has options, the opencl driver knows none; write opencl, opencl:1 or opencl://name")
    try:
        _load()
    except ImportError as error:
        raise UnsupportedError(f"the opencl driver needs pyopencl ({error}): pip install 'remora[opencl]'") from None
    from remora.drivers.opencl.device import OpenclDevice
    from remora.drivers.opencl.platforms import choose

    return (OpenclDevice(str(uri), choose(uri.place)),)


def preload() -> None:
    """See `registry.Driver`. This imports pyopencl and loads no platform: platforms start threads."""
    try:
        _load()
        import_module("remora.drivers.opencl.device")
    except ImportError:  # whoever opens a device is told
        return


def _load() -> None:
    """Import pyopencl. NumPy comes with it, whose BLAS starts threads when it is imported unless told not to."""
    name = "OPENBLAS_NUM_THREADS"
    told = os.environ.get(name)
    if told is None and "numpy" not in sys.modules:
        os.environ[name] = "1"
    try:
        import_module("pyopencl")
    finally:
        if told is None:
            os.environ.pop(name, None)
