"""The Vulkan loader of the system, and an instance: the way to the devices. Loaded when the first device is opened."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_uint32, c_void_p
from functools import cache

from remora.drivers.vulkan import _ffi as ffi
from remora.drivers.vulkan.result import check
from remora.errors import UnsupportedError

__all__ = ["INSTALL", "Instance"]

INSTALL = "install both: apt-get install libvulkan1 mesa-vulkan-drivers (its lavapipe runs on any processor)"
LIBRARY = "libvulkan.so.1"
#: Timeline semaphores and buffer device addresses are part of Vulkan from here on.
LEAST = 1, 2


def version(major: int, minor: int) -> int:
    """A version as Vulkan writes it."""
    return major << 22 | minor << 12


@cache
def library() -> ctypes.CDLL:
    """The loader. Raises UnsupportedError that says what to install."""
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise UnsupportedError(f"there is no Vulkan loader ({error}) and so no driver: {INSTALL}") from None


class Instance:
    """A Vulkan instance. `close` it after everything made from it."""

    def __init__(self) -> None:
        look_up = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_char_p)(("vkGetInstanceProcAddr", library()))

        def find(name: bytes) -> int:
            address: int | None = look_up(self.handle, name)
            if not address:
                raise UnsupportedError(
                    f"the Vulkan loader has no {name.decode()}: remora needs Vulkan {LEAST[0]}.{LEAST[1]}; update it"
                )
            return address

        self.find = find
        self.handle: int | None = None
        commands = ffi.GlobalCommands(find)
        offered = c_uint32()
        commands.vkEnumerateInstanceVersion(byref(offered))
        self.version = offered.value
        if self.version < version(*LEAST):
            raise UnsupportedError(f"the Vulkan loader is older than {LEAST[0]}.{LEAST[1]}: update it ({INSTALL})")
        self.handle = self._create(commands)
        self.vk = ffi.InstanceCommands(find)

    def _create(self, commands: ffi.GlobalCommands) -> int:
        name = ctypes.create_string_buffer(b"remora")
        application = ffi.VkApplicationInfo(
            pApplicationName=ctypes.addressof(name), pEngineName=ctypes.addressof(name), apiVersion=self.version
        )
        info = ffi.VkInstanceCreateInfo(pApplicationInfo=ctypes.addressof(application))
        handle = c_void_p()
        result = commands.vkCreateInstance(byref(info), None, byref(handle))
        if result == ffi.VK_ERROR_INCOMPATIBLE_DRIVER:
            raise UnsupportedError(f"the Vulkan loader finds no driver: {INSTALL}")
        check(result, "making a Vulkan instance")
        assert handle.value is not None
        return handle.value

    def physical_devices(self) -> list[int]:
        """Handles of what the drivers offer, in the loader's order."""
        count = c_uint32()
        check(self.vk.vkEnumeratePhysicalDevices(self.handle, byref(count), None), "looking for Vulkan devices")
        handles = (c_void_p * count.value)()
        check(self.vk.vkEnumeratePhysicalDevices(self.handle, byref(count), handles), "looking for Vulkan devices")
        return [handle for handle in handles[: count.value] if handle]

    def close(self) -> None:
        """Destroy it. Safe to repeat."""
        handle, self.handle = self.handle, None
        if handle:
            self.vk.vkDestroyInstance(handle, None)
