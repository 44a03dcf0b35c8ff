"""D03, D10: the vulkan driver passes the HAL suite where the program does not see the memory of its buffers."""

import pytest

import remora
from remora import samples
from remora.testing.cts.hal import *  # noqa: F403 - the suite's classes are what runs here
from remora.testing.cts.hal import HalFactory

pytestmark = pytest.mark.vulkan


@pytest.fixture
def factory(vulkan):
    return HalFactory(
        open=lambda: remora.open("vulkan://?memory=staged"),
        vector=samples.load("vector"),
        faults=samples.load("faults"),
        special=samples.load("special"),
    )
