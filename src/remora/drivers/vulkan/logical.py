"""The opened device: its commands and its queues, and the last to go, after everything that was made from it."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from ctypes import CFUNCTYPE, addressof, byref, c_char_p, c_float, c_uint64, c_void_p
from typing import TYPE_CHECKING

from remora.drivers.vulkan import _ffi as ffi
from remora.drivers.vulkan.physical import BUDGET, Physical
from remora.drivers.vulkan.result import check
from remora.errors import ClosedError, UnsupportedError

if TYPE_CHECKING:
    from remora.drivers.vulkan.loader import Instance

__all__ = ["BUFFER_USAGE", "Logical", "VulkanLane"]

BUFFER_USAGE = (
    ffi.VK_BUFFER_USAGE_TRANSFER_SRC_BIT
    | ffi.VK_BUFFER_USAGE_TRANSFER_DST_BIT
    | ffi.VK_BUFFER_USAGE_STORAGE_BUFFER_BIT
    | ffi.VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT
)
#: Features that are switched on where they are: kernels may use them.
CORE_FEATURES = ("shaderInt64", "shaderFloat64", "shaderInt16")
NEW_FEATURES = (
    "timelineSemaphore",
    "bufferDeviceAddress",
    "shaderFloat16",
    "shaderInt8",
    "scalarBlockLayout",
    "storageBuffer8BitAccess",
    "vulkanMemoryModel",
    "vulkanMemoryModelDeviceScope",
)
MOST_LANES = 4


class VulkanLane:
    """A queue of the device, which several of ours may share; whoever submits holds the lock."""

    __slots__ = ("handle", "lock")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.lock = threading.Lock()


class Logical:
    """Whatever is made from it calls `hold` first and `let_go` when it was destroyed; after `end` the last one closes the door."""

    def __init__(self, instance: Instance, physical: Physical) -> None:
        self._instance = instance
        self.physical = physical
        self.family, count = physical.compute_family()
        self.handle = self._create(min(count, MOST_LANES))
        look_up = CFUNCTYPE(c_void_p, c_void_p, c_char_p)(instance.find(b"vkGetDeviceProcAddr"))

        def find(name: bytes) -> int:
            address: int | None = look_up(self.handle, name)
            if not address:
                raise UnsupportedError(f"{physical.name} has no {name.decode()}: update its driver")
            return address

        self.vk = ffi.DeviceCommands(find)
        self.lanes = [self._lane(index) for index in range(min(count, MOST_LANES))]
        self._lock = threading.RLock()  # the garbage collector may let go of something while this thread holds something
        self._held = 1

    def hold(self) -> Logical:
        """Something is about to be made. Raises ClosedError when everything is gone already."""
        with self._lock:
            if not self._held:
                raise ClosedError(f"the device {self.physical.name} was closed; open it again")
            self._held += 1
        return self

    def let_go(self) -> None:
        """Something was destroyed."""
        with self._lock:
            self._held -= 1
            last = self._held == 0
        if last:
            self.vk.vkDestroyDevice(self.handle, None)
            self._instance.close()

    def end(self) -> None:
        """Nothing more is made. To be called once."""
        self.let_go()

    def idle(self) -> None:
        """Wait until nothing runs, such as what an operation left behind that an interrupt ended."""
        with ExitStack() as stack:
            for lane in self.lanes:
                stack.enter_context(lane.lock)
            self.vk.vkDeviceWaitIdle(self.handle)

    def new_buffer(self, size: int) -> int:
        """A VkBuffer without memory."""
        info = ffi.VkBufferCreateInfo(size=size, usage=BUFFER_USAGE)
        handle = c_uint64()
        check(self.vk.vkCreateBuffer(self.handle, byref(info), None, byref(handle)), f"making a buffer of {size:,} bytes")
        return handle.value

    def memory_types(self) -> int:
        """The mask of memory types that buffers may be in."""
        buffer = self.new_buffer(64)
        needs = ffi.VkMemoryRequirements()
        self.vk.vkGetBufferMemoryRequirements(self.handle, buffer, byref(needs))
        self.vk.vkDestroyBuffer(self.handle, buffer, None)
        return int(needs.memoryTypeBits)

    def _lane(self, index: int) -> VulkanLane:
        handle = c_void_p()
        self.vk.vkGetDeviceQueue(self.handle, self.family, index, byref(handle))
        return VulkanLane(handle.value or 0)

    def _create(self, queues: int) -> int:
        priorities = (c_float * queues)(*([1.0] * queues))
        queue = ffi.VkDeviceQueueCreateInfo(queueFamilyIndex=self.family, queueCount=queues, pQueuePriorities=addressof(priorities))
        wanted = ffi.VkPhysicalDeviceVulkan12Features(**{name: 1 for name in NEW_FEATURES if self.physical.has(name)})
        core = ffi.VkPhysicalDeviceFeatures(**{name: 1 for name in CORE_FEATURES if self.physical.has(name)})
        features = ffi.VkPhysicalDeviceFeatures2(pNext=addressof(wanted), features=core)
        names = [name for name in (BUDGET,) if name in self.physical.extensions]
        extensions = (c_char_p * len(names))(*names)
        info = ffi.VkDeviceCreateInfo(
            pNext=addressof(features),
            queueCreateInfoCount=1,
            pQueueCreateInfos=addressof(queue),
            enabledExtensionCount=len(names),
            ppEnabledExtensionNames=addressof(extensions) if names else None,
        )
        handle = c_void_p()
        result = self._instance.vk.vkCreateDevice(self.physical.handle, byref(info), None, byref(handle))
        check(result, f"opening {self.physical.name}")
        return handle.value or 0
