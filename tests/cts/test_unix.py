"""D10, H30: the cpu driver passes the HAL suite in another process, over unix."""

import pytest

from remora.testing.cts.hal import *  # noqa: F403 - the suite's classes are what runs here
from remora.testing.server import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(bind=f"unix://{tmp_path_factory.mktemp('unix')}/server") as server:
        yield server
