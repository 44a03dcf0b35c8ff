"""D10, H30, H32: the cpu driver passes the HAL suite in another process, over shared memory."""

import pytest

import remora
from remora import samples
from remora.testing.cts.hal import *  # noqa: F403 - the suite's classes are what runs here
from remora.testing.cts.hal import HalFactory
from remora.testing.server import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(bind=f"shm://{tmp_path_factory.mktemp('shm')}/server") as server:
        yield server


@pytest.fixture
def factory(server):
    return HalFactory(open=lambda: remora.open(server.uri), vector=samples.load("vector"), faults=samples.load("faults"))
