"""A device as a driver describes it: what it is called, what code it takes, which memory and queues it has."""

from __future__ import annotations

from ctypes import addressof, byref, c_uint32, sizeof
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from remora.drivers.vulkan import _ffi as ffi
from remora.drivers.vulkan.loader import INSTALL, Instance, version
from remora.errors import NotFoundError, UnsupportedError
from remora.hal.target import Target

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MemoryKind", "Physical", "choose"]

#: Versions of SPIR-V that Vulkan 1.2 takes, and compilers write.
SPIRV = ("1.5", "1.3")
#: What a target's key may ask for beyond the addresses, with the feature behind it.
EXTRAS = (("f16", "shaderFloat16"), ("f64", "shaderFloat64"), ("i64", "shaderInt64"))
#: Which kind of device is best, as a number.
RANK = {
    ffi.VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU: 0,
    ffi.VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU: 1,
    ffi.VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU: 2,
    ffi.VK_PHYSICAL_DEVICE_TYPE_OTHER: 3,
    ffi.VK_PHYSICAL_DEVICE_TYPE_CPU: 4,
}
BUDGET = b"VK_EXT_memory_budget"
LOCAL = ffi.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT
COHERENT = ffi.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | ffi.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
CACHED = ffi.VK_MEMORY_PROPERTY_HOST_CACHED_BIT


@dataclass(frozen=True, slots=True)
class MemoryKind:
    """A memory type: its index, the heap it is of, and whether the host sees it."""

    index: int
    heap: int
    mapped: bool


class Physical:
    """The facts of one device of an instance."""

    def __init__(self, instance: Instance, handle: int) -> None:
        self._vk = instance.vk
        self.handle = handle
        self.features = ffi.VkPhysicalDeviceVulkan12Features()
        self._maintenance = ffi.VkPhysicalDeviceMaintenance3Properties()
        self._properties = ffi.VkPhysicalDeviceProperties2(pNext=addressof(self._maintenance))
        instance.vk.vkGetPhysicalDeviceProperties2(handle, byref(self._properties))
        told = self._properties.properties
        self.limits = told.limits
        self.name: str = told.deviceName.decode(errors="replace")
        self.version = min(told.apiVersion, instance.version)
        self.rank = RANK.get(told.deviceType, len(RANK))
        features = ffi.VkPhysicalDeviceFeatures2()
        if self.version >= version(1, 2):
            features.pNext = addressof(self.features)
        instance.vk.vkGetPhysicalDeviceFeatures2(handle, byref(features))
        self.core = features.features
        self.extensions = self._extensions()
        self.memory = self._memory()

    @property
    def usable(self) -> bool:
        """Whether it has what remora needs: Vulkan 1.2 with timeline semaphores and buffer device addresses."""
        return self.version >= version(1, 2) and bool(self.features.timelineSemaphore and self.features.bufferDeviceAddress)

    @property
    def max_allocation(self) -> int:
        """The most bytes of one piece of memory."""
        return int(self._maintenance.maxMemoryAllocationSize)

    def has(self, feature: str) -> bool:
        """Whether a feature, by its name in Vulkan, is there."""
        return bool(getattr(self.features, feature, 0) or getattr(self.core, feature, 0))

    def targets(self) -> tuple[Target, ...]:
        """The code that it takes: the newest SPIR-V first, and of each version what asks for most first."""
        there = [key for key, feature in EXTRAS if self.has(feature)]
        chosen = sorted(product((True, False), repeat=len(there)), key=sum, reverse=True)
        return tuple(
            Target("vulkan", "+".join([f"spirv{spirv}", "bda", *(key for key, taken in zip(there, each, strict=True) if taken)]))
            for spirv in SPIRV
            for each in chosen
        )

    def compute_family(self) -> tuple[int, int]:
        """(family, queues in it) for compute; one without graphics if there is such. Raises UnsupportedError."""
        count = c_uint32()
        self._vk.vkGetPhysicalDeviceQueueFamilyProperties(self.handle, byref(count), None)
        families = (ffi.VkQueueFamilyProperties * count.value)()
        self._vk.vkGetPhysicalDeviceQueueFamilyProperties(self.handle, byref(count), families)
        able = [index for index, family in enumerate(families) if family.queueFlags & ffi.VK_QUEUE_COMPUTE_BIT]
        if not able:
            raise UnsupportedError(f"{self.name} has no queue for compute: open another device")
        best = min(able, key=lambda index: families[index].queueFlags & ffi.VK_QUEUE_GRAPHICS_BIT)
        return best, int(families[best].queueCount)

    def heap_size(self, heap: int) -> int:
        """The bytes of a heap."""
        return int(self.memory.memoryHeaps[heap].size)

    def device_kind(self, types: int, *, staged: bool) -> MemoryKind:
        """The memory for buffers, of the types in a mask: the largest heap of the device, seen by the host if that is no detour."""
        able = [index for index in self._types(types) if self._flags(index) & LOCAL] or self._types(types)
        heap = max((self._heap(index) for index in able), key=self.heap_size)
        within = [index for index in able if self._heap(index) == heap]
        seen = [index for index in within if self._flags(index) & (COHERENT | CACHED) == COHERENT | CACHED]
        if seen and not staged:
            return MemoryKind(seen[0], heap, mapped=True)
        return MemoryKind(within[0], heap, mapped=False)

    def host_kind(self, types: int) -> MemoryKind:
        """The memory through which bytes come and go, which the host sees; cached if possible."""
        able = [index for index in self._types(types) if self._flags(index) & COHERENT == COHERENT]
        best = min(able, key=lambda index: (not self._flags(index) & CACHED, bool(self._flags(index) & LOCAL)))
        return MemoryKind(best, self._heap(best), mapped=True)

    def free_bytes(self, heap: int) -> int | None:
        """What the driver would still give this process of a heap; None when it does not tell."""
        if BUDGET not in self.extensions:
            return None
        budget = ffi.VkPhysicalDeviceMemoryBudgetPropertiesEXT()
        memory = ffi.VkPhysicalDeviceMemoryProperties2(pNext=addressof(budget))
        self._vk.vkGetPhysicalDeviceMemoryProperties2(self.handle, byref(memory))
        return max(0, int(budget.heapBudget[heap]) - int(budget.heapUsage[heap]))

    def _types(self, mask: int) -> list[int]:
        return [index for index in range(self.memory.memoryTypeCount) if mask >> index & 1]

    def _flags(self, index: int) -> int:
        return int(self.memory.memoryTypes[index].propertyFlags)

    def _heap(self, index: int) -> int:
        return int(self.memory.memoryTypes[index].heapIndex)

    def _memory(self) -> ffi.VkPhysicalDeviceMemoryProperties:
        memory = ffi.VkPhysicalDeviceMemoryProperties2()
        self._vk.vkGetPhysicalDeviceMemoryProperties2(self.handle, byref(memory))
        held: ffi.VkPhysicalDeviceMemoryProperties = memory.memoryProperties
        return held

    def _extensions(self) -> frozenset[bytes]:
        count = c_uint32()
        self._vk.vkEnumerateDeviceExtensionProperties(self.handle, None, byref(count), None)
        found = (ffi.VkExtensionProperties * count.value)()
        self._vk.vkEnumerateDeviceExtensionProperties(self.handle, None, byref(count), found)
        return frozenset(each.extensionName for each in found[: count.value])


def choose(instance: Instance, place: str) -> Physical:
    """The device of a URI's place: "" the best, a number, or a part of a name. Raises NotFoundError that lists what there is."""
    there = sorted((Physical(instance, handle) for handle in instance.physical_devices()), key=lambda each: each.rank)
    if not there:
        raise UnsupportedError(f"the Vulkan loader finds no device: {INSTALL}")
    if place.isascii() and place.isdigit():
        found = there[int(place) : int(place) + 1]
    else:
        found = [each for each in there if place.lower() in each.name.lower()]
    if not found:
        raise NotFoundError(f"there is no Vulkan device {place!r}; there are {listed(there)}")
    usable = [each for each in found if each.usable]
    if not usable:
        raise UnsupportedError(
            f"{listed(found)}: remora needs Vulkan 1.2 with timeline semaphores and buffer device addresses; update the driver, "
            "or open another device"
        )
    return usable[0]


def listed(devices: Sequence[Physical]) -> str:
    """Devices for a message."""
    return ", ".join(f"vulkan:{number} ({device.name})" for number, device in enumerate(devices))


assert sizeof(ffi.VkPhysicalDeviceProperties2) == 840  # as the C headers have it: the registry's arrays were understood
