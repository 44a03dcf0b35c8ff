"""The vulkan driver: compute on whatever a Vulkan loader finds (requirement D03)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from remora.base.uri import Uri
from remora.errors import UsageError
from remora.hal.device import Device

__all__ = ["open_devices", "preload"]


def open_devices(uri: Uri) -> Sequence[Device]:
    """Open one device: `vulkan` the best one, `vulkan:0` by number, `vulkan://llvmpipe` by a part of its name.

    `?memory=staged` keeps buffers out of the host's reach, as most cards do anyway. Raises UsageError for another option,
    NotFoundError when there is no such device, and UnsupportedError, which says what to install, when there is none at all.
    """
    unknown = sorted(set(uri.query) - {"memory"})
    if unknown:
        raise UsageError(
            f"{uri}: the vulkan driver does not know {unknown[0]!r}; write vulkan, vulkan:0 or vulkan://?memory=staged"
        )
    memory = uri.query.get("memory", "mapped")
    if memory not in {"mapped", "staged"}:
        raise UsageError(f"{uri}: memory is mapped or staged, not {memory!r}")
    from remora.drivers.vulkan.device import VulkanDevice

    return (VulkanDevice(str(uri), uri.place, staged=memory == "staged"),)


def preload() -> None:
    """See `registry.Driver`: nothing of Vulkan itself is loaded here."""
    import_module("remora.drivers.vulkan.device")
