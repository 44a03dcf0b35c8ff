"""What a module may ask of a device: drivers take a module as it is, and crash over one that wants what they do not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remora.errors import UnsupportedError

if TYPE_CHECKING:
    from remora.drivers.vulkan.physical import Physical
    from remora.drivers.vulkan.spirv import Module

__all__ = ["check_capabilities"]

#: SPIR-V capabilities, and the feature that each needs; empty where every device has it.
CAPABILITIES = {
    0: "",  # Matrix
    1: "",  # Shader
    9: "shaderFloat16",
    10: "shaderFloat64",
    11: "shaderInt64",
    22: "shaderInt16",
    39: "shaderInt8",
    61: "",  # GroupNonUniform and its kin: Vulkan 1.1 has basic subgroups everywhere
    62: "",
    63: "",
    64: "",
    65: "",
    66: "",
    67: "",
    68: "",
    4448: "storageBuffer8BitAccess",
    5345: "vulkanMemoryModel",
    5346: "vulkanMemoryModelDeviceScope",
    5347: "bufferDeviceAddress",
}
#: What Vulkan 1.2 takes.
NEWEST = 1, 5


def check_capabilities(module: Module, physical: Physical) -> None:
    """Raise UnsupportedError for a module that is newer than the device, or wants what it lacks."""
    if module.version > NEWEST:
        raise UnsupportedError(
            f"the artifact is SPIR-V {module.version[0]}.{module.version[1]}, {physical.name} takes up to {NEWEST[0]}.{NEWEST[1]}: "
            "build the bundle for an older one"
        )
    for capability in sorted(module.capabilities):
        feature = CAPABILITIES.get(capability)
        if feature is None or (feature and not physical.has(feature)):
            raise UnsupportedError(
                f"the artifact needs the SPIR-V capability {capability}{f' ({feature})' if feature else ''}, which remora does not "
                f"switch on for {physical.name}: build the bundle without it"
            )
