"""The part of Vulkan that the driver uses, from the Khronos registry. Written by tools/vulkan_ffi.py: do not edit.

A structure that has an sType sets it itself. Handles are numbers. Commands take pointers as addresses or `byref(...)`, and give
back a VkResult.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import CFUNCTYPE, Structure, c_char, c_float, c_int32, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, ClassVar, Final

VK_ACCESS_HOST_READ_BIT: Final = 8192
VK_ACCESS_HOST_WRITE_BIT: Final = 16384
VK_ACCESS_SHADER_READ_BIT: Final = 32
VK_ACCESS_SHADER_WRITE_BIT: Final = 64
VK_ACCESS_TRANSFER_READ_BIT: Final = 2048
VK_ACCESS_TRANSFER_WRITE_BIT: Final = 4096
VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT: Final = 131072
VK_BUFFER_USAGE_STORAGE_BUFFER_BIT: Final = 32
VK_BUFFER_USAGE_TRANSFER_DST_BIT: Final = 2
VK_BUFFER_USAGE_TRANSFER_SRC_BIT: Final = 1
VK_COMMAND_BUFFER_LEVEL_PRIMARY: Final = 0
VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT: Final = 1
VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT: Final = 2
VK_DESCRIPTOR_TYPE_STORAGE_BUFFER: Final = 7
VK_ERROR_DEVICE_LOST: Final = -4
VK_ERROR_INCOMPATIBLE_DRIVER: Final = -9
VK_ERROR_OUT_OF_DEVICE_MEMORY: Final = -2
VK_ERROR_OUT_OF_HOST_MEMORY: Final = -1
VK_INCOMPLETE: Final = 5
VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT: Final = 2
VK_MEMORY_HEAP_DEVICE_LOCAL_BIT: Final = 1
VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT: Final = 1
VK_MEMORY_PROPERTY_HOST_CACHED_BIT: Final = 8
VK_MEMORY_PROPERTY_HOST_COHERENT_BIT: Final = 4
VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT: Final = 2
VK_PHYSICAL_DEVICE_TYPE_CPU: Final = 4
VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU: Final = 2
VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU: Final = 1
VK_PHYSICAL_DEVICE_TYPE_OTHER: Final = 0
VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU: Final = 3
VK_PIPELINE_BIND_POINT_COMPUTE: Final = 1
VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT: Final = 2048
VK_PIPELINE_STAGE_HOST_BIT: Final = 16384
VK_PIPELINE_STAGE_TRANSFER_BIT: Final = 4096
VK_QUEUE_COMPUTE_BIT: Final = 2
VK_QUEUE_GRAPHICS_BIT: Final = 1
VK_SEMAPHORE_TYPE_TIMELINE: Final = 1
VK_SHADER_STAGE_COMPUTE_BIT: Final = 32


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


class VkApplicationInfo(Chained):
    S_TYPE = 0
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("pApplicationName", c_void_p), ("applicationVersion", c_uint32),
        ("pEngineName", c_void_p), ("engineVersion", c_uint32), ("apiVersion", c_uint32),
    )


class VkInstanceCreateInfo(Chained):
    S_TYPE = 1
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("flags", c_uint32), ("pApplicationInfo", c_void_p),
        ("enabledLayerCount", c_uint32), ("ppEnabledLayerNames", c_void_p), ("enabledExtensionCount", c_uint32),
        ("ppEnabledExtensionNames", c_void_p),
    )


class VkExtensionProperties(Plain):
    _fields_ = (
        ("extensionName", c_char * 256), ("specVersion", c_uint32),
    )


class VkPhysicalDeviceLimits(Plain):
    _fields_ = (
        ("maxImageDimension1D", c_uint32), ("maxImageDimension2D", c_uint32), ("maxImageDimension3D", c_uint32),
        ("maxImageDimensionCube", c_uint32), ("maxImageArrayLayers", c_uint32), ("maxTexelBufferElements", c_uint32),
        ("maxUniformBufferRange", c_uint32), ("maxStorageBufferRange", c_uint32), ("maxPushConstantsSize", c_uint32),
        ("maxMemoryAllocationCount", c_uint32), ("maxSamplerAllocationCount", c_uint32), ("bufferImageGranularity", c_uint64),
        ("sparseAddressSpaceSize", c_uint64), ("maxBoundDescriptorSets", c_uint32), ("maxPerStageDescriptorSamplers", c_uint32),
        ("maxPerStageDescriptorUniformBuffers", c_uint32), ("maxPerStageDescriptorStorageBuffers", c_uint32),
        ("maxPerStageDescriptorSampledImages", c_uint32), ("maxPerStageDescriptorStorageImages", c_uint32),
        ("maxPerStageDescriptorInputAttachments", c_uint32), ("maxPerStageResources", c_uint32),
        ("maxDescriptorSetSamplers", c_uint32), ("maxDescriptorSetUniformBuffers", c_uint32),
        ("maxDescriptorSetUniformBuffersDynamic", c_uint32), ("maxDescriptorSetStorageBuffers", c_uint32),
        ("maxDescriptorSetStorageBuffersDynamic", c_uint32), ("maxDescriptorSetSampledImages", c_uint32),
        ("maxDescriptorSetStorageImages", c_uint32), ("maxDescriptorSetInputAttachments", c_uint32),
        ("maxVertexInputAttributes", c_uint32), ("maxVertexInputBindings", c_uint32), ("maxVertexInputAttributeOffset", c_uint32),
        ("maxVertexInputBindingStride", c_uint32), ("maxVertexOutputComponents", c_uint32),
        ("maxTessellationGenerationLevel", c_uint32), ("maxTessellationPatchSize", c_uint32),
        ("maxTessellationControlPerVertexInputComponents", c_uint32), ("maxTessellationControlPerVertexOutputComponents", c_uint32),
        ("maxTessellationControlPerPatchOutputComponents", c_uint32), ("maxTessellationControlTotalOutputComponents", c_uint32),
        ("maxTessellationEvaluationInputComponents", c_uint32), ("maxTessellationEvaluationOutputComponents", c_uint32),
        ("maxGeometryShaderInvocations", c_uint32), ("maxGeometryInputComponents", c_uint32),
        ("maxGeometryOutputComponents", c_uint32), ("maxGeometryOutputVertices", c_uint32),
        ("maxGeometryTotalOutputComponents", c_uint32), ("maxFragmentInputComponents", c_uint32),
        ("maxFragmentOutputAttachments", c_uint32), ("maxFragmentDualSrcAttachments", c_uint32),
        ("maxFragmentCombinedOutputResources", c_uint32), ("maxComputeSharedMemorySize", c_uint32),
        ("maxComputeWorkGroupCount", c_uint32 * 3), ("maxComputeWorkGroupInvocations", c_uint32),
        ("maxComputeWorkGroupSize", c_uint32 * 3), ("subPixelPrecisionBits", c_uint32), ("subTexelPrecisionBits", c_uint32),
        ("mipmapPrecisionBits", c_uint32), ("maxDrawIndexedIndexValue", c_uint32), ("maxDrawIndirectCount", c_uint32),
        ("maxSamplerLodBias", c_float), ("maxSamplerAnisotropy", c_float), ("maxViewports", c_uint32),
        ("maxViewportDimensions", c_uint32 * 2), ("viewportBoundsRange", c_float * 2), ("viewportSubPixelBits", c_uint32),
        ("minMemoryMapAlignment", c_size_t), ("minTexelBufferOffsetAlignment", c_uint64),
        ("minUniformBufferOffsetAlignment", c_uint64), ("minStorageBufferOffsetAlignment", c_uint64), ("minTexelOffset", c_int32),
        ("maxTexelOffset", c_uint32), ("minTexelGatherOffset", c_int32), ("maxTexelGatherOffset", c_uint32),
        ("minInterpolationOffset", c_float), ("maxInterpolationOffset", c_float), ("subPixelInterpolationOffsetBits", c_uint32),
        ("maxFramebufferWidth", c_uint32), ("maxFramebufferHeight", c_uint32), ("maxFramebufferLayers", c_uint32),
        ("framebufferColorSampleCounts", c_uint32), ("framebufferDepthSampleCounts", c_uint32),
        ("framebufferStencilSampleCounts", c_uint32), ("framebufferNoAttachmentsSampleCounts", c_uint32),
        ("maxColorAttachments", c_uint32), ("sampledImageColorSampleCounts", c_uint32),
        ("sampledImageIntegerSampleCounts", c_uint32), ("sampledImageDepthSampleCounts", c_uint32),
        ("sampledImageStencilSampleCounts", c_uint32), ("storageImageSampleCounts", c_uint32), ("maxSampleMaskWords", c_uint32),
        ("timestampComputeAndGraphics", c_uint32), ("timestampPeriod", c_float), ("maxClipDistances", c_uint32),
        ("maxCullDistances", c_uint32), ("maxCombinedClipAndCullDistances", c_uint32), ("discreteQueuePriorities", c_uint32),
        ("pointSizeRange", c_float * 2), ("lineWidthRange", c_float * 2), ("pointSizeGranularity", c_float),
        ("lineWidthGranularity", c_float), ("strictLines", c_uint32), ("standardSampleLocations", c_uint32),
        ("optimalBufferCopyOffsetAlignment", c_uint64), ("optimalBufferCopyRowPitchAlignment", c_uint64),
        ("nonCoherentAtomSize", c_uint64),
    )


class VkPhysicalDeviceSparseProperties(Plain):
    _fields_ = (
        ("residencyStandard2DBlockShape", c_uint32), ("residencyStandard2DMultisampleBlockShape", c_uint32),
        ("residencyStandard3DBlockShape", c_uint32), ("residencyAlignedMipSize", c_uint32),
        ("residencyNonResidentStrict", c_uint32),
    )


class VkPhysicalDeviceProperties(Plain):
    _fields_ = (
        ("apiVersion", c_uint32), ("driverVersion", c_uint32), ("vendorID", c_uint32), ("deviceID", c_uint32),
        ("deviceType", c_int32), ("deviceName", c_char * 256), ("pipelineCacheUUID", c_uint8 * 16),
        ("limits", VkPhysicalDeviceLimits), ("sparseProperties", VkPhysicalDeviceSparseProperties),
    )


class VkPhysicalDeviceProperties2(Chained):
    S_TYPE = 1000059001
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("properties", VkPhysicalDeviceProperties),
    )


class VkConformanceVersion(Plain):
    _fields_ = (
        ("major", c_uint8), ("minor", c_uint8), ("subminor", c_uint8), ("patch", c_uint8),
    )


class VkPhysicalDeviceDriverProperties(Chained):
    S_TYPE = 1000196000
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("driverID", c_int32), ("driverName", c_char * 256), ("driverInfo", c_char * 256),
        ("conformanceVersion", VkConformanceVersion),
    )


class VkPhysicalDeviceMaintenance3Properties(Chained):
    S_TYPE = 1000168000
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("maxPerSetDescriptors", c_uint32), ("maxMemoryAllocationSize", c_uint64),
    )


class VkPhysicalDeviceFeatures(Plain):
    _fields_ = (
        ("robustBufferAccess", c_uint32), ("fullDrawIndexUint32", c_uint32), ("imageCubeArray", c_uint32),
        ("independentBlend", c_uint32), ("geometryShader", c_uint32), ("tessellationShader", c_uint32),
        ("sampleRateShading", c_uint32), ("dualSrcBlend", c_uint32), ("logicOp", c_uint32), ("multiDrawIndirect", c_uint32),
        ("drawIndirectFirstInstance", c_uint32), ("depthClamp", c_uint32), ("depthBiasClamp", c_uint32),
        ("fillModeNonSolid", c_uint32), ("depthBounds", c_uint32), ("wideLines", c_uint32), ("largePoints", c_uint32),
        ("alphaToOne", c_uint32), ("multiViewport", c_uint32), ("samplerAnisotropy", c_uint32),
        ("textureCompressionETC2", c_uint32), ("textureCompressionASTC_LDR", c_uint32), ("textureCompressionBC", c_uint32),
        ("occlusionQueryPrecise", c_uint32), ("pipelineStatisticsQuery", c_uint32), ("vertexPipelineStoresAndAtomics", c_uint32),
        ("fragmentStoresAndAtomics", c_uint32), ("shaderTessellationAndGeometryPointSize", c_uint32),
        ("shaderImageGatherExtended", c_uint32), ("shaderStorageImageExtendedFormats", c_uint32),
        ("shaderStorageImageMultisample", c_uint32), ("shaderStorageImageReadWithoutFormat", c_uint32),
        ("shaderStorageImageWriteWithoutFormat", c_uint32), ("shaderUniformBufferArrayDynamicIndexing", c_uint32),
        ("shaderSampledImageArrayDynamicIndexing", c_uint32), ("shaderStorageBufferArrayDynamicIndexing", c_uint32),
        ("shaderStorageImageArrayDynamicIndexing", c_uint32), ("shaderClipDistance", c_uint32), ("shaderCullDistance", c_uint32),
        ("shaderFloat64", c_uint32), ("shaderInt64", c_uint32), ("shaderInt16", c_uint32), ("shaderResourceResidency", c_uint32),
        ("shaderResourceMinLod", c_uint32), ("sparseBinding", c_uint32), ("sparseResidencyBuffer", c_uint32),
        ("sparseResidencyImage2D", c_uint32), ("sparseResidencyImage3D", c_uint32), ("sparseResidency2Samples", c_uint32),
        ("sparseResidency4Samples", c_uint32), ("sparseResidency8Samples", c_uint32), ("sparseResidency16Samples", c_uint32),
        ("sparseResidencyAliased", c_uint32), ("variableMultisampleRate", c_uint32), ("inheritedQueries", c_uint32),
    )


class VkPhysicalDeviceFeatures2(Chained):
    S_TYPE = 1000059000
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("features", VkPhysicalDeviceFeatures),
    )


class VkPhysicalDeviceVulkan12Features(Chained):
    S_TYPE = 51
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("samplerMirrorClampToEdge", c_uint32), ("drawIndirectCount", c_uint32),
        ("storageBuffer8BitAccess", c_uint32), ("uniformAndStorageBuffer8BitAccess", c_uint32), ("storagePushConstant8", c_uint32),
        ("shaderBufferInt64Atomics", c_uint32), ("shaderSharedInt64Atomics", c_uint32), ("shaderFloat16", c_uint32),
        ("shaderInt8", c_uint32), ("descriptorIndexing", c_uint32), ("shaderInputAttachmentArrayDynamicIndexing", c_uint32),
        ("shaderUniformTexelBufferArrayDynamicIndexing", c_uint32), ("shaderStorageTexelBufferArrayDynamicIndexing", c_uint32),
        ("shaderUniformBufferArrayNonUniformIndexing", c_uint32), ("shaderSampledImageArrayNonUniformIndexing", c_uint32),
        ("shaderStorageBufferArrayNonUniformIndexing", c_uint32), ("shaderStorageImageArrayNonUniformIndexing", c_uint32),
        ("shaderInputAttachmentArrayNonUniformIndexing", c_uint32), ("shaderUniformTexelBufferArrayNonUniformIndexing", c_uint32),
        ("shaderStorageTexelBufferArrayNonUniformIndexing", c_uint32), ("descriptorBindingUniformBufferUpdateAfterBind", c_uint32),
        ("descriptorBindingSampledImageUpdateAfterBind", c_uint32), ("descriptorBindingStorageImageUpdateAfterBind", c_uint32),
        ("descriptorBindingStorageBufferUpdateAfterBind", c_uint32),
        ("descriptorBindingUniformTexelBufferUpdateAfterBind", c_uint32),
        ("descriptorBindingStorageTexelBufferUpdateAfterBind", c_uint32), ("descriptorBindingUpdateUnusedWhilePending", c_uint32),
        ("descriptorBindingPartiallyBound", c_uint32), ("descriptorBindingVariableDescriptorCount", c_uint32),
        ("runtimeDescriptorArray", c_uint32), ("samplerFilterMinmax", c_uint32), ("scalarBlockLayout", c_uint32),
        ("imagelessFramebuffer", c_uint32), ("uniformBufferStandardLayout", c_uint32), ("shaderSubgroupExtendedTypes", c_uint32),
        ("separateDepthStencilLayouts", c_uint32), ("hostQueryReset", c_uint32), ("timelineSemaphore", c_uint32),
        ("bufferDeviceAddress", c_uint32), ("bufferDeviceAddressCaptureReplay", c_uint32),
        ("bufferDeviceAddressMultiDevice", c_uint32), ("vulkanMemoryModel", c_uint32), ("vulkanMemoryModelDeviceScope", c_uint32),
        ("vulkanMemoryModelAvailabilityVisibilityChains", c_uint32), ("shaderOutputViewportIndex", c_uint32),
        ("shaderOutputLayer", c_uint32), ("subgroupBroadcastDynamicId", c_uint32),
    )


class VkMemoryType(Plain):
    _fields_ = (
        ("propertyFlags", c_uint32), ("heapIndex", c_uint32),
    )


class VkMemoryHeap(Plain):
    _fields_ = (
        ("size", c_uint64), ("flags", c_uint32),
    )


class VkPhysicalDeviceMemoryProperties(Plain):
    _fields_ = (
        ("memoryTypeCount", c_uint32), ("memoryTypes", VkMemoryType * 32), ("memoryHeapCount", c_uint32),
        ("memoryHeaps", VkMemoryHeap * 16),
    )


class VkPhysicalDeviceMemoryProperties2(Chained):
    S_TYPE = 1000059006
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("memoryProperties", VkPhysicalDeviceMemoryProperties),
    )


class VkPhysicalDeviceMemoryBudgetPropertiesEXT(Chained):
    S_TYPE = 1000237000
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("heapBudget", c_uint64 * 16), ("heapUsage", c_uint64 * 16),
    )


class VkExtent3D(Plain):
    _fields_ = (
        ("width", c_uint32), ("height", c_uint32), ("depth", c_uint32),
    )


class VkQueueFamilyProperties(Plain):
    _fields_ = (
        ("queueFlags", c_uint32), ("queueCount", c_uint32), ("timestampValidBits", c_uint32),
        ("minImageTransferGranularity", VkExtent3D),
    )


class VkDeviceQueueCreateInfo(Chained):
    S_TYPE = 2
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("flags", c_uint32), ("queueFamilyIndex", c_uint32), ("queueCount", c_uint32),
        ("pQueuePriorities", c_void_p),
    )


class VkDeviceCreateInfo(Chained):
    S_TYPE = 3
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("flags", c_uint32), ("queueCreateInfoCount", c_uint32),
        ("pQueueCreateInfos", c_void_p), ("enabledLayerCount", c_uint32), ("ppEnabledLayerNames", c_void_p),
        ("enabledExtensionCount", c_uint32), ("ppEnabledExtensionNames", c_void_p), ("pEnabledFeatures", c_void_p),
    )


class VkMemoryAllocateInfo(Chained):
    S_TYPE = 5
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("allocationSize", c_uint64), ("memoryTypeIndex", c_uint32),
    )


class VkMemoryAllocateFlagsInfo(Chained):
    S_TYPE = 1000060000
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("flags", c_uint32), ("deviceMask", c_uint32),
    )


class VkBufferCreateInfo(Chained):
    S_TYPE = 12
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("flags", c_uint32), ("size", c_uint64), ("usage", c_uint32),
        ("sharingMode", c_int32), ("queueFamilyIndexCount", c_uint32), ("pQueueFamilyIndices", c_void_p),
    )


class VkMemoryRequirements(Plain):
    _fields_ = (
        ("size", c_uint64), ("alignment", c_uint64), ("memoryTypeBits", c_uint32),
    )


class VkBufferDeviceAddressInfo(Chained):
    S_TYPE = 1000244001
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("buffer", c_uint64),
    )


class VkSemaphoreTypeCreateInfo(Chained):
    S_TYPE = 1000207002
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("semaphoreType", c_int32), ("initialValue", c_uint64),
    )


class VkSemaphoreCreateInfo(Chained):
    S_TYPE = 9
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("flags", c_uint32),
    )


class VkSemaphoreWaitInfo(Chained):
    S_TYPE = 1000207004
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("flags", c_uint32), ("semaphoreCount", c_uint32), ("pSemaphores", c_void_p),
        ("pValues", c_void_p),
    )


class VkSemaphoreSignalInfo(Chained):
    S_TYPE = 1000207005
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("semaphore", c_uint64), ("value", c_uint64),
    )


class VkTimelineSemaphoreSubmitInfo(Chained):
    S_TYPE = 1000207003
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("waitSemaphoreValueCount", c_uint32), ("pWaitSemaphoreValues", c_void_p),
        ("signalSemaphoreValueCount", c_uint32), ("pSignalSemaphoreValues", c_void_p),
    )


class VkSubmitInfo(Chained):
    S_TYPE = 4
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("waitSemaphoreCount", c_uint32), ("pWaitSemaphores", c_void_p),
        ("pWaitDstStageMask", c_void_p), ("commandBufferCount", c_uint32), ("pCommandBuffers", c_void_p),
        ("signalSemaphoreCount", c_uint32), ("pSignalSemaphores", c_void_p),
    )


class VkCommandPoolCreateInfo(Chained):
    S_TYPE = 39
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("flags", c_uint32), ("queueFamilyIndex", c_uint32),
    )


class VkCommandBufferAllocateInfo(Chained):
    S_TYPE = 40
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("commandPool", c_uint64), ("level", c_int32), ("commandBufferCount", c_uint32),
    )


class VkCommandBufferBeginInfo(Chained):
    S_TYPE = 42
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("flags", c_uint32), ("pInheritanceInfo", c_void_p),
    )


class VkMemoryBarrier(Chained):
    S_TYPE = 46
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("srcAccessMask", c_uint32), ("dstAccessMask", c_uint32),
    )


class VkBufferCopy(Plain):
    _fields_ = (
        ("srcOffset", c_uint64), ("dstOffset", c_uint64), ("size", c_uint64),
    )


class VkShaderModuleCreateInfo(Chained):
    S_TYPE = 16
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("flags", c_uint32), ("codeSize", c_size_t), ("pCode", c_void_p),
    )


class VkDescriptorSetLayoutBinding(Plain):
    _fields_ = (
        ("binding", c_uint32), ("descriptorType", c_int32), ("descriptorCount", c_uint32), ("stageFlags", c_uint32),
        ("pImmutableSamplers", c_void_p),
    )


class VkDescriptorSetLayoutCreateInfo(Chained):
    S_TYPE = 32
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("flags", c_uint32), ("bindingCount", c_uint32), ("pBindings", c_void_p),
    )


class VkDescriptorPoolSize(Plain):
    _fields_ = (
        ("type", c_int32), ("descriptorCount", c_uint32),
    )


class VkDescriptorPoolCreateInfo(Chained):
    S_TYPE = 33
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("flags", c_uint32), ("maxSets", c_uint32), ("poolSizeCount", c_uint32),
        ("pPoolSizes", c_void_p),
    )


class VkDescriptorSetAllocateInfo(Chained):
    S_TYPE = 34
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("descriptorPool", c_uint64), ("descriptorSetCount", c_uint32),
        ("pSetLayouts", c_void_p),
    )


class VkDescriptorBufferInfo(Plain):
    _fields_ = (
        ("buffer", c_uint64), ("offset", c_uint64), ("range", c_uint64),
    )


class VkWriteDescriptorSet(Chained):
    S_TYPE = 35
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("dstSet", c_uint64), ("dstBinding", c_uint32), ("dstArrayElement", c_uint32),
        ("descriptorCount", c_uint32), ("descriptorType", c_int32), ("pImageInfo", c_void_p), ("pBufferInfo", c_void_p),
        ("pTexelBufferView", c_void_p),
    )


class VkPushConstantRange(Plain):
    _fields_ = (
        ("stageFlags", c_uint32), ("offset", c_uint32), ("size", c_uint32),
    )


class VkPipelineLayoutCreateInfo(Chained):
    S_TYPE = 30
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("flags", c_uint32), ("setLayoutCount", c_uint32), ("pSetLayouts", c_void_p),
        ("pushConstantRangeCount", c_uint32), ("pPushConstantRanges", c_void_p),
    )


class VkSpecializationMapEntry(Plain):
    _fields_ = (
        ("constantID", c_uint32), ("offset", c_uint32), ("size", c_size_t),
    )


class VkSpecializationInfo(Plain):
    _fields_ = (
        ("mapEntryCount", c_uint32), ("pMapEntries", c_void_p), ("dataSize", c_size_t), ("pData", c_void_p),
    )


class VkPipelineShaderStageCreateInfo(Chained):
    S_TYPE = 18
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("flags", c_uint32), ("stage", c_uint32), ("module", c_uint64),
        ("pName", c_void_p), ("pSpecializationInfo", c_void_p),
    )


class VkComputePipelineCreateInfo(Chained):
    S_TYPE = 29
    _fields_ = (
        ("sType", c_int32), ("pNext", c_void_p), ("flags", c_uint32), ("stage", VkPipelineShaderStageCreateInfo),
        ("layout", c_uint64), ("basePipelineHandle", c_uint64), ("basePipelineIndex", c_int32),
    )


class GlobalCommands:
    """Commands that need no instance."""

    def __init__(self, find: Callable[[bytes], int]) -> None:
        self.vkEnumerateInstanceVersion = _command(find, b"vkEnumerateInstanceVersion", c_int32, c_void_p)
        self.vkCreateInstance = _command(find, b"vkCreateInstance", c_int32, c_void_p, c_void_p, c_void_p)


class InstanceCommands:
    """Commands of an instance."""

    def __init__(self, find: Callable[[bytes], int]) -> None:
        self.vkDestroyInstance = _command(find, b"vkDestroyInstance", None, c_void_p, c_void_p)
        self.vkEnumeratePhysicalDevices = _command(find, b"vkEnumeratePhysicalDevices", c_int32, c_void_p, c_void_p, c_void_p)
        self.vkGetPhysicalDeviceProperties2 = _command(find, b"vkGetPhysicalDeviceProperties2", None, c_void_p, c_void_p)
        self.vkGetPhysicalDeviceFeatures2 = _command(find, b"vkGetPhysicalDeviceFeatures2", None, c_void_p, c_void_p)
        self.vkGetPhysicalDeviceMemoryProperties2 = _command(
            find, b"vkGetPhysicalDeviceMemoryProperties2", None, c_void_p, c_void_p,
        )
        self.vkGetPhysicalDeviceQueueFamilyProperties = _command(
            find, b"vkGetPhysicalDeviceQueueFamilyProperties", None, c_void_p, c_void_p, c_void_p,
        )
        self.vkEnumerateDeviceExtensionProperties = _command(
            find, b"vkEnumerateDeviceExtensionProperties", c_int32, c_void_p, c_void_p, c_void_p, c_void_p,
        )
        self.vkCreateDevice = _command(find, b"vkCreateDevice", c_int32, c_void_p, c_void_p, c_void_p, c_void_p)


class DeviceCommands:
    """Commands of a device."""

    def __init__(self, find: Callable[[bytes], int]) -> None:
        self.vkDestroyDevice = _command(find, b"vkDestroyDevice", None, c_void_p, c_void_p)
        self.vkGetDeviceQueue = _command(find, b"vkGetDeviceQueue", None, c_void_p, c_uint32, c_uint32, c_void_p)
        self.vkDeviceWaitIdle = _command(find, b"vkDeviceWaitIdle", c_int32, c_void_p)
        self.vkAllocateMemory = _command(find, b"vkAllocateMemory", c_int32, c_void_p, c_void_p, c_void_p, c_void_p)
        self.vkFreeMemory = _command(find, b"vkFreeMemory", None, c_void_p, c_uint64, c_void_p)
        self.vkMapMemory = _command(find, b"vkMapMemory", c_int32, c_void_p, c_uint64, c_uint64, c_uint64, c_uint32, c_void_p)
        self.vkCreateBuffer = _command(find, b"vkCreateBuffer", c_int32, c_void_p, c_void_p, c_void_p, c_void_p)
        self.vkDestroyBuffer = _command(find, b"vkDestroyBuffer", None, c_void_p, c_uint64, c_void_p)
        self.vkGetBufferMemoryRequirements = _command(find, b"vkGetBufferMemoryRequirements", None, c_void_p, c_uint64, c_void_p)
        self.vkBindBufferMemory = _command(find, b"vkBindBufferMemory", c_int32, c_void_p, c_uint64, c_uint64, c_uint64)
        self.vkGetBufferDeviceAddress = _command(find, b"vkGetBufferDeviceAddress", c_uint64, c_void_p, c_void_p)
        self.vkCreateSemaphore = _command(find, b"vkCreateSemaphore", c_int32, c_void_p, c_void_p, c_void_p, c_void_p)
        self.vkDestroySemaphore = _command(find, b"vkDestroySemaphore", None, c_void_p, c_uint64, c_void_p)
        self.vkWaitSemaphores = _command(find, b"vkWaitSemaphores", c_int32, c_void_p, c_void_p, c_uint64)
        self.vkSignalSemaphore = _command(find, b"vkSignalSemaphore", c_int32, c_void_p, c_void_p)
        self.vkGetSemaphoreCounterValue = _command(find, b"vkGetSemaphoreCounterValue", c_int32, c_void_p, c_uint64, c_void_p)
        self.vkQueueSubmit = _command(find, b"vkQueueSubmit", c_int32, c_void_p, c_uint32, c_void_p, c_uint64)
        self.vkCreateCommandPool = _command(find, b"vkCreateCommandPool", c_int32, c_void_p, c_void_p, c_void_p, c_void_p)
        self.vkDestroyCommandPool = _command(find, b"vkDestroyCommandPool", None, c_void_p, c_uint64, c_void_p)
        self.vkAllocateCommandBuffers = _command(find, b"vkAllocateCommandBuffers", c_int32, c_void_p, c_void_p, c_void_p)
        self.vkFreeCommandBuffers = _command(find, b"vkFreeCommandBuffers", None, c_void_p, c_uint64, c_uint32, c_void_p)
        self.vkBeginCommandBuffer = _command(find, b"vkBeginCommandBuffer", c_int32, c_void_p, c_void_p)
        self.vkEndCommandBuffer = _command(find, b"vkEndCommandBuffer", c_int32, c_void_p)
        self.vkCmdBindPipeline = _command(find, b"vkCmdBindPipeline", None, c_void_p, c_int32, c_uint64)
        self.vkCmdBindDescriptorSets = _command(
            find, b"vkCmdBindDescriptorSets", None, c_void_p, c_int32, c_uint64, c_uint32, c_uint32, c_void_p, c_uint32, c_void_p,
        )
        self.vkCmdPushConstants = _command(
            find, b"vkCmdPushConstants", None, c_void_p, c_uint64, c_uint32, c_uint32, c_uint32, c_void_p,
        )
        self.vkCmdDispatch = _command(find, b"vkCmdDispatch", None, c_void_p, c_uint32, c_uint32, c_uint32)
        self.vkCmdPipelineBarrier = _command(
            find, b"vkCmdPipelineBarrier", None, c_void_p, c_uint32, c_uint32, c_uint32, c_uint32, c_void_p, c_uint32, c_void_p,
            c_uint32, c_void_p,
        )
        self.vkCmdCopyBuffer = _command(find, b"vkCmdCopyBuffer", None, c_void_p, c_uint64, c_uint64, c_uint32, c_void_p)
        self.vkCmdFillBuffer = _command(find, b"vkCmdFillBuffer", None, c_void_p, c_uint64, c_uint64, c_uint64, c_uint32)
        self.vkCmdUpdateBuffer = _command(find, b"vkCmdUpdateBuffer", None, c_void_p, c_uint64, c_uint64, c_uint64, c_void_p)
        self.vkCreateShaderModule = _command(find, b"vkCreateShaderModule", c_int32, c_void_p, c_void_p, c_void_p, c_void_p)
        self.vkDestroyShaderModule = _command(find, b"vkDestroyShaderModule", None, c_void_p, c_uint64, c_void_p)
        self.vkCreateDescriptorSetLayout = _command(
            find, b"vkCreateDescriptorSetLayout", c_int32, c_void_p, c_void_p, c_void_p, c_void_p,
        )
        self.vkDestroyDescriptorSetLayout = _command(find, b"vkDestroyDescriptorSetLayout", None, c_void_p, c_uint64, c_void_p)
        self.vkCreateDescriptorPool = _command(find, b"vkCreateDescriptorPool", c_int32, c_void_p, c_void_p, c_void_p, c_void_p)
        self.vkDestroyDescriptorPool = _command(find, b"vkDestroyDescriptorPool", None, c_void_p, c_uint64, c_void_p)
        self.vkAllocateDescriptorSets = _command(find, b"vkAllocateDescriptorSets", c_int32, c_void_p, c_void_p, c_void_p)
        self.vkUpdateDescriptorSets = _command(
            find, b"vkUpdateDescriptorSets", None, c_void_p, c_uint32, c_void_p, c_uint32, c_void_p,
        )
        self.vkCreatePipelineLayout = _command(find, b"vkCreatePipelineLayout", c_int32, c_void_p, c_void_p, c_void_p, c_void_p)
        self.vkDestroyPipelineLayout = _command(find, b"vkDestroyPipelineLayout", None, c_void_p, c_uint64, c_void_p)
        self.vkCreateComputePipelines = _command(
            find, b"vkCreateComputePipelines", c_int32, c_void_p, c_uint64, c_uint32, c_void_p, c_void_p, c_void_p,
        )
        self.vkDestroyPipeline = _command(find, b"vkDestroyPipeline", None, c_void_p, c_uint64, c_void_p)
