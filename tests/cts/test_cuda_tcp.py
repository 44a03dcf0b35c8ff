"""D04, D10, H30: the cuda driver passes the HAL suite in another process, over tcp."""

import pytest
from tests.cuda_device import factory_of, need_cuda

from remora.testing.cts.hal import *  # noqa: F403 - the suite's classes are what runs here
from remora.testing.server import ServerProcess

pytestmark = pytest.mark.cuda


@pytest.fixture(scope="module")
def server():
    need_cuda()
    with ServerProcess(device="cuda", bind="tcp://127.0.0.1:0") as server:
        yield server


@pytest.fixture
def factory(server):
    return factory_of(server.uri)
