"""D03, D10, H30, H32: the vulkan driver passes the HAL suite in another process, over shared memory."""

import pytest

from remora.testing.cts.hal import *  # noqa: F403 - the suite's classes are what runs here
from remora.testing.server import ServerProcess

pytestmark = pytest.mark.vulkan


@pytest.fixture(scope="module")
def server(vulkan, tmp_path_factory):
    with ServerProcess(["vulkan"], bind=f"shm://{tmp_path_factory.mktemp('shm')}/server") as server:
        yield server
