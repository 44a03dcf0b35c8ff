"""What a VkResult means for whoever called."""

from __future__ import annotations

from remora.drivers.vulkan import _ffi as ffi
from remora.errors import DeviceError, DeviceLostError, Error, OutOfMemoryError

__all__ = ["check", "error_of"]


def check(result: int, doing: str) -> None:
    """Raise what a negative result stands for; `doing` says what was being done."""
    if result < 0:
        raise error_of(result, doing)


def error_of(result: int, doing: str) -> Error:
    """The error of a negative result."""
    match result:
        case ffi.VK_ERROR_DEVICE_LOST:
            return DeviceLostError(
                f"{doing}: the device is lost (VK_ERROR_DEVICE_LOST). A kernel went out of bounds or ran for too long for the "
                "driver; what its buffers held is gone. Close the device and open it again"
            )
        case ffi.VK_ERROR_OUT_OF_DEVICE_MEMORY:
            return OutOfMemoryError(f"{doing}: the driver has no device memory left for it; close buffers or executables")
        case ffi.VK_ERROR_OUT_OF_HOST_MEMORY:
            return OutOfMemoryError(f"{doing}: the driver has no host memory left for it")
    return DeviceError(f"{doing}: the Vulkan driver says {result} (a VkResult)")
