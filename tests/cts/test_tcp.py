"""D10, H30: the cpu driver passes the HAL suite in another process, over tcp."""

import pytest

from remora.testing.cts.hal import *  # noqa: F403 - the suite's classes are what runs here
from remora.testing.server import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(bind="tcp://127.0.0.1:0") as server:
        yield server
