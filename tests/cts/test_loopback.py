"""D10, H30: the cpu driver passes the HAL suite behind a link inside this process."""

import pytest

from remora.testing.cts.hal import *  # noqa: F403 - the suite's classes are what runs here
from remora.testing.server import SharedServer

#: The same suite over unix and tcp, against other processes, is in every run.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server():
    with SharedServer() as server:
        yield server
