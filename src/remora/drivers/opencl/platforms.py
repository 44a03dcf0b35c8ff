"""Which OpenCL devices there are, and which one an address means. Asking loads the platforms into this process."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyopencl as cl

from remora.errors import NotFoundError, UnsupportedError
from remora.hal.target import Target

__all__ = ["choose", "name_of", "targets_of"]

INSTALL = "install one: apt-get install pocl-opencl-icd runs kernels on the processor, a GPU's comes with its vendor's driver"
#: What a program is built for, and the OpenCL C version that a device must have; in order of preference.
STANDARDS = (("c3.0", (3, 0)), ("c2.0", (2, 0)), ("c1.2", (1, 2)))


def choose(place: str) -> cl.Device:
    """The device at `place`: empty for the first, a number, or a part of a device's or platform's name."""
    devices = list_devices()
    if not place:
        return devices[0]
    if place.isascii() and place.isdigit():
        if int(place) < len(devices):
            return devices[int(place)]
    else:
        for device in devices:
            if place.casefold() in name_of(device).casefold():
                return device
    there = "; ".join(f"opencl:{number} {name_of(device)}" for number, device in enumerate(devices))
    raise NotFoundError(f"there is no OpenCL device {place!r}; there are: {there}")


def list_devices() -> Sequence[cl.Device]:
    """Every usable device, GPUs and accelerators first. Raises UnsupportedError that says what to install when there is none."""
    devices: list[cl.Device] = []
    try:
        platforms = cl.get_platforms()
    except cl.Error:
        platforms = []
    for platform in platforms:
        try:
            devices += platform.get_devices()
        except cl.Error:  # a platform without devices
            continue
    found = [device for device in devices if usable(device)]
    if not found:
        seen = ", ".join(map(name_of, devices)) or ", ".join(platform.name for platform in platforms) or "no platform"
        raise UnsupportedError(f"no OpenCL device that compiles OpenCL C 1.2 (there is {seen}): {INSTALL}")
    return sorted(found, key=lambda device: bool(device.type & cl.device_type.CPU))


def usable(device: cl.Device) -> bool:
    """Whether kernels can be compiled for it."""
    return bool(device.available and device.compiler_available and version_of(device) >= (1, 2))


def version_of(device: cl.Device) -> tuple[int, int]:
    """Its OpenCL C version."""
    found = re.match(r"OpenCL C (\d+)\.(\d+)", device.opencl_c_version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def targets_of(device: cl.Device) -> tuple[Target, ...]:
    """What it compiles, in order of preference."""
    version = version_of(device)
    # A device of OpenCL C 3.0 may lack what 2.0 had; a 2.x device knows no 3.0.
    return tuple(
        Target("opencl", key) for key, least in STANDARDS if version >= least and not (key == "c2.0" and version >= (3, 0))
    )


def name_of(device: cl.Device) -> str:
    """The device and its platform, for people."""
    return f"{' '.join(device.name.split())} ({device.platform.name.strip()})"
