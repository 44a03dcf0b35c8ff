"""D03, D10, H30: the vulkan driver passes the HAL suite in another process, over tcp."""

import pytest

from remora.testing.cts.hal import *  # noqa: F403 - the suite's classes are what runs here
from remora.testing.server import ServerProcess

pytestmark = pytest.mark.vulkan


@pytest.fixture(scope="module")
def server(vulkan):
    with ServerProcess(["vulkan"], bind="tcp://127.0.0.1:0") as server:
        yield server
