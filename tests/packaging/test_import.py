"""What `import remora` brings with it."""

import subprocess
import sys

import pytest

THIRD_PARTY = ("rich", "numpy", "hypothesis", "pytest")


@pytest.mark.parametrize(
    "module",
    [
        "remora",
        "remora.hal.registry",
        "remora.drivers.cpu",
        "remora.drivers.null",
        "remora.drivers.opencl",
        "remora.drivers.vulkan",
    ],
)
def test_importing_needs_no_third_party_module(module):
    code = f"import sys, {module}; print([name for name in {THIRD_PARTY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("driver", ["cpu", "vulkan"])
def test_naming_a_driver_loads_no_foreign_function_interface(driver):
    code = f"import sys, remora.drivers.{driver}; print('ctypes' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout.strip() == "False"
