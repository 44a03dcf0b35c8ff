"""D03: the Vulkan layer is what its generator writes, and its structures have the sizes of C."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from remora.drivers.vulkan import _ffi as ffi

GENERATOR = Path(__file__).parents[2] / "tools/vulkan_ffi.py"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_d03_the_committed_file_is_what_the_registry_gives():
    pytest.importorskip("vulkan_object", reason="pip install vulkan-object")
    subprocess.run([sys.executable, GENERATOR, "--check"], check=True, timeout=150)


@pytest.mark.parametrize(
    ("structure", "size"),
    [
        (ffi.VkPhysicalDeviceLimits, 504),
        (ffi.VkPhysicalDeviceProperties2, 840),
        (ffi.VkPhysicalDeviceMemoryProperties2, 536),
        (ffi.VkSubmitInfo, 72),
        (ffi.VkComputePipelineCreateInfo, 96),
        (ffi.VkWriteDescriptorSet, 64),
        (ffi.VkBufferCreateInfo, 56),
    ],
)
def test_d03_structures_have_the_sizes_of_c(structure, size):
    assert ctypes.sizeof(structure) == size


def test_d03_a_structure_names_its_type():
    assert ffi.VkSubmitInfo().sType == 4
    assert ffi.VkBufferCopy(size=3).size == 3
