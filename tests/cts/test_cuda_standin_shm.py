"""D04, D10, H30: the cuda driver's logic passes the HAL suite in another process, over shared memory. There is no GPU."""

import pytest
from tests.cuda_device import factory_of
from tests.cuda_standin import standin_library, standin_module  # noqa: F401 - fixtures

from remora.testing.cts.hal import *  # noqa: F403 - the suite's classes are what runs here
from remora.testing.server import ServerProcess

#: The same suite over shm, against servers of other devices, is in every run; so is the driver without a server.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(standin_module, tmp_path_factory):  # noqa: F811 - the fixture
    with ServerProcess(device="cuda", bind=f"shm://{tmp_path_factory.mktemp('shm')}/server") as server:
        yield server


@pytest.fixture
def factory(server):
    return factory_of(server.uri)
