"""D10, H30: the cpu driver passes the HAL suite behind a link inside this process."""

import pytest

import remora
from remora import samples
from remora.testing.cts.hal import *  # noqa: F403 - the suite's classes are what runs here
from remora.testing.cts.hal import HalFactory
from remora.testing.server import SharedServer


@pytest.fixture(scope="module")
def server():
    with SharedServer() as server:
        yield server


@pytest.fixture
def factory(server):
    return HalFactory(open=lambda: remora.open(server.uri), vector=samples.load("vector"), faults=samples.load("faults"))
