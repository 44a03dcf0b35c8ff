"""D02, D10: the opencl driver passes the HAL suite."""

import pytest
from tests.opencl_device import PATIENCE, factory_of, need_opencl

from remora.testing.cts.hal import *  # noqa: F403 - the suite's classes are what runs here

pytestmark = [pytest.mark.opencl, pytest.mark.timeout(2 * PATIENCE)]


@pytest.fixture
def factory():
    need_opencl()
    return factory_of("opencl")
