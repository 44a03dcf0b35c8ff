"""Whether there is an OpenCL device here, and what the runs of the HAL suite on it share."""

import subprocess
import sys
from functools import cache

import pytest

import remora
from remora import samples
from remora.testing.cts.hal_factory import HalFactory

__all__ = ["PATIENCE", "factory_of", "need_opencl"]

#: Seconds in which a process has OpenCL and NumPy loaded, on a machine that is overloaded.
PATIENCE = 150.0

PROBE = """
import remora
try:
    remora.open("opencl").close()
except remora.Error as error:
    print(error)
"""


@cache
def reason():
    """Why there is no OpenCL device here, or nothing. Another process looks: platforms start threads."""
    return subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=PATIENCE, check=True
    ).stdout.strip()


def need_opencl():
    """Skip the test, and say what to install, where there is no OpenCL device."""
    if told := reason():
        pytest.skip(told)


def factory_of(uri):
    """The suite's factory for an OpenCL device at an address."""
    return HalFactory(
        open=lambda: remora.open(uri),
        vector=samples.load("vector"),
        faults=samples.load("faults"),
        special=samples.load("special"),
    )
