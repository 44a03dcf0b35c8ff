"""Writes src/remora/drivers/vulkan/_ffi.py from the Khronos registry: `python tools/vulkan_ffi.py`.

Needs `pip install vulkan-object`, and nothing of it at run time. The lists below are what the driver uses; the rest of Vulkan is
left out. `--check` writes nothing and exits with 1 when the file is not what would be written.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

PATH = Path(__file__).resolve().parents[1] / "src/remora/drivers/vulkan/_ffi.py"

GLOBAL = "vkEnumerateInstanceVersion vkCreateInstance"
INSTANCE = """vkDestroyInstance vkEnumeratePhysicalDevices vkGetPhysicalDeviceProperties2 vkGetPhysicalDeviceFeatures2
vkGetPhysicalDeviceMemoryProperties2 vkGetPhysicalDeviceQueueFamilyProperties vkEnumerateDeviceExtensionProperties
vkCreateDevice"""
DEVICE = """vkDestroyDevice vkGetDeviceQueue vkDeviceWaitIdle vkAllocateMemory vkFreeMemory vkMapMemory vkCreateBuffer
vkDestroyBuffer vkGetBufferMemoryRequirements vkBindBufferMemory vkGetBufferDeviceAddress vkCreateSemaphore vkDestroySemaphore
vkWaitSemaphores vkSignalSemaphore vkGetSemaphoreCounterValue vkQueueSubmit vkCreateCommandPool vkDestroyCommandPool
vkAllocateCommandBuffers vkFreeCommandBuffers vkBeginCommandBuffer vkEndCommandBuffer vkCmdBindPipeline vkCmdBindDescriptorSets
vkCmdPushConstants vkCmdDispatch vkCmdPipelineBarrier vkCmdCopyBuffer vkCmdFillBuffer vkCmdUpdateBuffer vkCreateShaderModule
vkDestroyShaderModule vkCreateDescriptorSetLayout vkDestroyDescriptorSetLayout vkCreateDescriptorPool vkDestroyDescriptorPool
vkAllocateDescriptorSets vkUpdateDescriptorSets vkCreatePipelineLayout vkDestroyPipelineLayout vkCreateComputePipelines
vkDestroyPipeline"""
STRUCTS = """VkApplicationInfo VkInstanceCreateInfo VkExtensionProperties VkPhysicalDeviceProperties2
VkPhysicalDeviceDriverProperties VkPhysicalDeviceMaintenance3Properties VkPhysicalDeviceFeatures2 VkPhysicalDeviceVulkan12Features
VkPhysicalDeviceMemoryProperties2 VkPhysicalDeviceMemoryBudgetPropertiesEXT VkQueueFamilyProperties VkDeviceQueueCreateInfo
VkDeviceCreateInfo VkMemoryAllocateInfo VkMemoryAllocateFlagsInfo VkBufferCreateInfo VkMemoryRequirements
VkBufferDeviceAddressInfo VkSemaphoreTypeCreateInfo VkSemaphoreCreateInfo VkSemaphoreWaitInfo VkSemaphoreSignalInfo
VkTimelineSemaphoreSubmitInfo VkSubmitInfo VkCommandPoolCreateInfo VkCommandBufferAllocateInfo VkCommandBufferBeginInfo
VkMemoryBarrier VkBufferCopy VkShaderModuleCreateInfo VkDescriptorSetLayoutBinding VkDescriptorSetLayoutCreateInfo
VkDescriptorPoolSize VkDescriptorPoolCreateInfo VkDescriptorSetAllocateInfo VkDescriptorBufferInfo VkWriteDescriptorSet
VkPushConstantRange VkPipelineLayoutCreateInfo VkSpecializationMapEntry VkSpecializationInfo VkPipelineShaderStageCreateInfo
VkComputePipelineCreateInfo"""
VALUES = """VK_ERROR_OUT_OF_HOST_MEMORY VK_ERROR_OUT_OF_DEVICE_MEMORY VK_ERROR_DEVICE_LOST VK_INCOMPLETE
VK_ERROR_INCOMPATIBLE_DRIVER VK_PHYSICAL_DEVICE_TYPE_OTHER VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU
VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU VK_PHYSICAL_DEVICE_TYPE_CPU VK_QUEUE_GRAPHICS_BIT
VK_QUEUE_COMPUTE_BIT VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
VK_MEMORY_PROPERTY_HOST_CACHED_BIT VK_MEMORY_HEAP_DEVICE_LOCAL_BIT VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT
VK_BUFFER_USAGE_TRANSFER_SRC_BIT VK_BUFFER_USAGE_TRANSFER_DST_BIT VK_BUFFER_USAGE_STORAGE_BUFFER_BIT
VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT VK_SEMAPHORE_TYPE_TIMELINE VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT
VK_COMMAND_BUFFER_LEVEL_PRIMARY VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT VK_PIPELINE_BIND_POINT_COMPUTE
VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT VK_PIPELINE_STAGE_TRANSFER_BIT VK_PIPELINE_STAGE_HOST_BIT VK_ACCESS_SHADER_READ_BIT
VK_ACCESS_SHADER_WRITE_BIT VK_ACCESS_TRANSFER_READ_BIT VK_ACCESS_TRANSFER_WRITE_BIT VK_ACCESS_HOST_READ_BIT
VK_ACCESS_HOST_WRITE_BIT VK_DESCRIPTOR_TYPE_STORAGE_BUFFER VK_SHADER_STAGE_COMPUTE_BIT"""

SCALARS = {
    "uint8_t": "c_uint8",
    "int32_t": "c_int32",
    "uint32_t": "c_uint32",
    "uint64_t": "c_uint64",
    "float": "c_float",
    "char": "c_char",
    "size_t": "c_size_t",
    "VkBool32": "c_uint32",
    "VkDeviceSize": "c_uint64",
    "VkDeviceAddress": "c_uint64",
}
WIDTH = 132

HEAD = '''"""The part of Vulkan that the driver uses, from the Khronos registry. Written by tools/vulkan_ffi.py: do not edit.

A structure that has an sType sets it itself. Handles are numbers. Commands take pointers as addresses or `byref(...)`, and give
back a VkResult.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import CFUNCTYPE, Structure, c_char, c_float, c_int32, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, ClassVar, Final

'''
BASE = '''

class Plain(Structure):
    """A structure. What its fields are stands in `_fields_`."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...


class Chained(Plain):
    """A structure that begins with sType and pNext; sType is set when it is made."""

    S_TYPE: ClassVar[int]

    def __init__(self, **fields: Any) -> None:
        super().__init__(sType=self.S_TYPE, **fields)


def _command(find: Callable[[bytes], int], name: bytes, result: Any, *arguments: Any) -> Callable[..., Any]:
    return CFUNCTYPE(result, *arguments)(find(name))
'''


class Writer:
    """Turns registry objects into Python text."""

    def __init__(self, registry: Any) -> None:
        self.registry = registry
        self.values = {
            field.name: field
            for group in (*registry.enums.values(), *registry.bitmasks.values())
            for field in (getattr(group, "fields", None) or getattr(group, "flags", None) or [])
        }
        self.done: dict[str, str] = {}

    def number(self, name: str) -> int:
        """A named constant, or a plain number."""
        if name.isdigit():
            return int(name)
        if name in self.registry.constants:
            return int(self.registry.constants[name].value)
        return int(self.values[name].value)

    def plain(self, kind: str) -> str:
        """The ctypes name of a type that is no pointer."""
        if kind in SCALARS:
            return SCALARS[kind]
        if kind in self.registry.handles:
            return "c_void_p" if self.registry.handles[kind].dispatchable else "c_uint64"
        if kind in self.registry.enums:
            return "c_int32"
        if kind in self.registry.flags or kind in self.registry.bitmasks:
            flags = self.registry.flags.get(kind)
            return "c_uint64" if flags is not None and flags.bitWidth == 64 else "c_uint32"
        self.struct(kind)
        return kind

    def field(self, member: Any) -> str:
        """The ctypes expression of a structure's member."""
        if member.pointer or member.type.startswith("PFN_"):
            return "c_void_p"
        text = self.plain(member.type)
        for length in reversed(member.fixedSizeArray):
            text = f"{text} * {self.number(length)}"
        return text

    def struct(self, name: str) -> None:
        """Write a structure, after those that it holds."""
        if name in self.done:
            return
        registered = self.registry.structs[name]
        fields = [f'("{member.name}", {self.field(member)})' for member in registered.members]
        chained = registered.sType is not None
        lines = [f"class {name}({'Chained' if chained else 'Plain'}):"]
        if chained:
            lines.append(f"    S_TYPE = {self.number(registered.sType)}")
        self.done[name] = "\n".join([*lines, "    _fields_ = (", *packed(fields, " " * 8), "    )"])

    def commands(self, name: str, about: str, commands: str) -> str:
        """A class whose attributes are commands."""
        lines = [f"class {name}:", f'    """{about}"""', "", "    def __init__(self, find: Callable[[bytes], int]) -> None:"]
        for command in commands.split():
            registered = self.registry.commands[command]
            arguments = ["c_void_p" if each.pointer else self.argument(each) for each in registered.params]
            result = "None" if registered.returnType == "void" else self.result(registered.returnType)
            line = f'        self.{command} = _command(find, b"{command}", {", ".join([result, *arguments])})'
            if len(line) > WIDTH:
                arguments = [f'find, b"{command}", {result}', *arguments]
                line = "\n".join([f"        self.{command} = _command(", *packed(arguments, " " * 12), "        )"])
            lines.append(line)
        return "\n".join(lines)

    def argument(self, parameter: Any) -> str:
        return "c_void_p" if parameter.fixedSizeArray else self.plain(parameter.type)

    def result(self, kind: str) -> str:
        return "c_void_p" if kind.startswith("PFN_") else self.plain(kind)

    def text(self) -> str:
        """The whole file."""
        for name in STRUCTS.split():
            self.struct(name)
        values = [f"{name}: Final = {self.number(name)}" for name in sorted(VALUES.split())]
        classes = [
            self.commands("GlobalCommands", "Commands that need no instance.", GLOBAL),
            self.commands("InstanceCommands", "Commands of an instance.", INSTANCE),
            self.commands("DeviceCommands", "Commands of a device.", DEVICE),
        ]
        return HEAD + "\n".join(values) + "\n" + BASE + "\n\n" + "\n\n\n".join([*self.done.values(), *classes]) + "\n"


def packed(items: list[str], indent: str) -> list[str]:
    """Items with commas, as many on a line as fit."""
    lines = [indent + items[0] + ","]
    for item in items[1:]:
        if len(lines[-1]) + len(item) + 2 <= WIDTH:
            lines[-1] += f" {item},"
        else:
            lines.append(f"{indent}{item},")
    return lines


def main() -> None:
    """Write the file, or check it."""
    import vulkan_object

    parser = argparse.ArgumentParser(description="Write the Vulkan layer of the driver.")
    parser.add_argument("--check", action="store_true", help="write nothing, exit with 1 when the file would change")
    check = parser.parse_args().check
    text = Writer(vulkan_object.get_vulkan_object()).text()
    if check:
        sys.exit(0 if PATH.read_text() == text else f"{PATH} is not what tools/vulkan_ffi.py writes: run it")
    PATH.write_text(text)


if __name__ == "__main__":
    main()
