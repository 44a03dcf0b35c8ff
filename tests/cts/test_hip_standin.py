"""D05, D10: the hip driver's logic passes the HAL suite over a stand-in for ROCm's runtime, which has no GPU."""

import pytest
from tests.hip_standin import standin, standin_library  # noqa: F401 - fixtures

import remora
from remora import samples
from remora.testing.cts.hal import *  # noqa: F403 - the suite's classes are what runs here
from remora.testing.cts.hal_factory import HalFactory


@pytest.fixture
def factory(standin):  # noqa: F811 - the fixture
    return HalFactory(open=lambda: remora.open("hip"), vector=samples.load("vector"), special=samples.load("special"))
