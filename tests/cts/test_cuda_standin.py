"""D04, D10: the cuda driver's logic passes the HAL suite over a stand-in for NVIDIA's driver, which has no GPU."""

import pytest
from tests.cuda_device import factory_of
from tests.cuda_standin import standin, standin_library, standin_module  # noqa: F401 - fixtures

from remora.testing.cts.hal import *  # noqa: F403 - the suite's classes are what runs here


@pytest.fixture
def factory(standin):  # noqa: F811 - the fixture
    return factory_of("cuda")
