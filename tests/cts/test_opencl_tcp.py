"""D02, D10, H30: the opencl driver passes the HAL suite in another process, over tcp."""

import pytest
from tests.opencl_device import PATIENCE, factory_of, need_opencl

from remora.testing.cts.hal import *  # noqa: F403 - the suite's classes are what runs here
from remora.testing.server import ServerProcess

pytestmark = [pytest.mark.opencl, pytest.mark.timeout(2 * PATIENCE)]


@pytest.fixture(scope="module")
def server():
    need_opencl()
    with ServerProcess(device="opencl", timeout=PATIENCE, bind="tcp://127.0.0.1:0") as server:
        yield server


@pytest.fixture
def factory(server):
    return factory_of(server.uri)
