"""Code on the device: a shader module, the memory that it owns in descriptor set 0, and a pipeline for each kernel."""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from ctypes import addressof, byref, c_char, c_uint32, c_uint64, create_string_buffer, sizeof
from typing import TYPE_CHECKING

from remora.drivers.vulkan import _ffi as ffi
from remora.drivers.vulkan.memory import Segment
from remora.drivers.vulkan.result import check

if TYPE_CHECKING:
    from remora.drivers.vulkan.logical import Logical
    from remora.drivers.vulkan.physical import MemoryKind
    from remora.drivers.vulkan.spirv import Owned
    from remora.hal.executable import Grid, Kernel

__all__ = ["Code", "Program", "Report"]

#: The storage buffer in which a kernel reports an error: it stores a code that is not 0 into the first word.
STATUS = "remora_status"
STAGE = ffi.VK_SHADER_STAGE_COMPUTE_BIT


class Report:
    """Where the kernels of a module report errors. One of them runs at a time, so that it is known which it was."""

    __slots__ = ("_segment", "lock")

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self.lock = threading.Lock()

    def clear(self) -> None:
        """Before a kernel runs."""
        self._segment.view(0, 4)[:] = bytes(4)

    def code(self) -> int:
        """What it reported; 0 is success."""
        return int.from_bytes(self._segment.view(0, 4), "little", signed=True)


class Program:
    """One kernel, ready to be recorded. Holds its code."""

    __slots__ = ("_code", "_layout", "_logical", "_pipeline", "_push", "name", "report")

    def __init__(self, code: Code, name: str, export: str, push: struct.Struct) -> None:
        self._logical: Logical | None = None
        self._logical = code.logical.hold()  # by itself: the garbage collector finalizes what hangs together in any order
        self._code = code
        self.name = name
        self.report = code.report
        self._push = push
        self._layout = self._pipeline = 0
        self._layout = code.new_layout(push.size)
        self._pipeline = code.new_pipeline(export, self._layout)

    def record(self, commands: int, grid: Grid, addresses: Sequence[int], constants: bytes) -> None:
        """Write a dispatch."""
        code = self._code
        vk = code.logical.vk
        vk.vkCmdBindPipeline(commands, ffi.VK_PIPELINE_BIND_POINT_COMPUTE, self._pipeline)
        if code.descriptor_set:
            sets = c_uint64(code.descriptor_set)
            vk.vkCmdBindDescriptorSets(commands, ffi.VK_PIPELINE_BIND_POINT_COMPUTE, self._layout, 0, 1, byref(sets), 0, None)
        if self._push.size:
            packed = self._push.pack(*addresses, constants)
            vk.vkCmdPushConstants(commands, self._layout, STAGE, 0, self._push.size, packed)
        vk.vkCmdDispatch(commands, *grid)

    def __del__(self) -> None:
        logical = self._logical
        if logical is None:
            return
        logical.vk.vkDestroyPipeline(logical.handle, self._pipeline, None)
        logical.vk.vkDestroyPipelineLayout(logical.handle, self._layout, None)
        logical.let_go()


class Code:
    """A module on the device. `segments` are its memory by binding. Goes with its last program."""

    def __init__(
        self,
        logical: Logical,
        data: memoryview,
        owned: Sequence[Owned],
        kind: MemoryKind,
        host_kind: MemoryKind,
        constants: Sequence[int],
    ) -> None:
        self._module = self._set_layout = self._pool = self.descriptor_set = 0
        self.segments: dict[int, Segment] = {}
        self._held: Logical | None = None
        self.logical = self._held = logical.hold()
        self.segments |= {
            each.binding: Segment(logical, -(-each.size // 256) * 256, host_kind if each.name == STATUS else kind) for each in owned
        }
        self.report = next((Report(self.segments[each.binding]) for each in owned if each.name == STATUS), None)
        self._module = self._new_module(data)
        self._constants = (c_uint32 * len(constants))(*constants)
        if owned:
            self._bind_memory()

    def program(self, kernel: Kernel) -> Program:
        """A kernel of the manifest."""
        push = struct.Struct(f"<{len(kernel.info.bindings)}Q{-(-kernel.constant_bytes // 4) * 4}s")
        return Program(self, kernel.name, kernel.info.export or kernel.name, push)

    def bare_program(self, export: str) -> Program:
        """An entry point that is handed nothing."""
        return Program(self, export, export, struct.Struct("<0s"))

    def new_layout(self, push_bytes: int) -> int:
        """A pipeline layout for so many bytes of push constants."""
        pushed = ffi.VkPushConstantRange(stageFlags=STAGE, offset=0, size=push_bytes)
        sets, layout = c_uint64(self._set_layout), c_uint64()
        info = ffi.VkPipelineLayoutCreateInfo(
            setLayoutCount=1 if self._set_layout else 0,
            pSetLayouts=addressof(sets),
            pushConstantRangeCount=1 if push_bytes else 0,
            pPushConstantRanges=addressof(pushed),
        )
        result = self.logical.vk.vkCreatePipelineLayout(self.logical.handle, byref(info), None, byref(layout))
        check(result, "making a pipeline layout")
        return layout.value

    def new_pipeline(self, export: str, layout: int) -> int:
        """A pipeline for an entry point, specialized."""
        words, name = self._constants, create_string_buffer(export.encode())
        entries = (ffi.VkSpecializationMapEntry * len(words))(
            *(ffi.VkSpecializationMapEntry(constantID=index, offset=4 * index, size=4) for index in range(len(words)))
        )
        special = ffi.VkSpecializationInfo(
            mapEntryCount=len(words), pMapEntries=addressof(entries), dataSize=sizeof(words), pData=addressof(words)
        )
        stage = ffi.VkPipelineShaderStageCreateInfo(
            stage=STAGE, module=self._module, pName=addressof(name), pSpecializationInfo=addressof(special) if words else None
        )
        info, pipeline = ffi.VkComputePipelineCreateInfo(stage=stage, layout=layout, basePipelineIndex=-1), c_uint64()
        result = self.logical.vk.vkCreateComputePipelines(self.logical.handle, 0, 1, byref(info), None, byref(pipeline))
        check(result, f"compiling {export}")
        return pipeline.value

    def _new_module(self, data: memoryview) -> int:
        words = (c_char * data.nbytes).from_buffer_copy(data)
        info, module = ffi.VkShaderModuleCreateInfo(codeSize=data.nbytes, pCode=addressof(words)), c_uint64()
        check(self.logical.vk.vkCreateShaderModule(self.logical.handle, byref(info), None, byref(module)), "loading the artifact")
        return module.value

    def _bind_memory(self) -> None:
        """Make descriptor set 0, which never changes."""
        vk, handle, storage = self.logical.vk, self.logical.handle, ffi.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER
        count = len(self.segments)
        slots = (ffi.VkDescriptorSetLayoutBinding * count)(
            *(
                ffi.VkDescriptorSetLayoutBinding(binding=each, descriptorType=storage, descriptorCount=1, stageFlags=STAGE)
                for each in self.segments
            )
        )
        layout, pool, descriptors = c_uint64(), c_uint64(), c_uint64()
        wanted = ffi.VkDescriptorSetLayoutCreateInfo(bindingCount=count, pBindings=addressof(slots))
        check(vk.vkCreateDescriptorSetLayout(handle, byref(wanted), None, byref(layout)), "making a descriptor set layout")
        self._set_layout = layout.value
        size = ffi.VkDescriptorPoolSize(type=storage, descriptorCount=count)
        room = ffi.VkDescriptorPoolCreateInfo(maxSets=1, poolSizeCount=1, pPoolSizes=addressof(size))
        check(vk.vkCreateDescriptorPool(handle, byref(room), None, byref(pool)), "making a descriptor pool")
        self._pool = pool.value
        taken = ffi.VkDescriptorSetAllocateInfo(descriptorPool=pool.value, descriptorSetCount=1, pSetLayouts=addressof(layout))
        check(vk.vkAllocateDescriptorSets(handle, byref(taken), byref(descriptors)), "making a descriptor set")
        self.descriptor_set = descriptors.value
        places = [ffi.VkDescriptorBufferInfo(buffer=each.buffer, offset=0, range=each.size) for each in self.segments.values()]
        writes = (ffi.VkWriteDescriptorSet * count)(
            *(
                ffi.VkWriteDescriptorSet(
                    dstSet=descriptors.value,
                    dstBinding=binding,
                    descriptorCount=1,
                    descriptorType=storage,
                    pBufferInfo=addressof(place),
                )
                for binding, place in zip(self.segments, places, strict=True)
            )
        )
        vk.vkUpdateDescriptorSets(handle, count, writes, 0, None)

    def __del__(self) -> None:
        if self._held is None:
            return
        vk, handle = self._held.vk, self._held.handle
        vk.vkDestroyDescriptorPool(handle, self._pool, None)
        vk.vkDestroyDescriptorSetLayout(handle, self._set_layout, None)
        vk.vkDestroyShaderModule(handle, self._module, None)
        self.segments.clear()
        self._held.let_go()
