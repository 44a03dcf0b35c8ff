"""D04, D10: the cuda driver passes the HAL suite."""

import pytest
from tests.cuda_device import factory_of, need_cuda

from remora.testing.cts.hal import *  # noqa: F403 - the suite's classes are what runs here

pytestmark = pytest.mark.cuda


@pytest.fixture
def factory():
    need_cuda()
    return factory_of("cuda")
