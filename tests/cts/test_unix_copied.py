"""H20, H30: what moves memory passes its suites over unix with shared memory switched off: the bytes go over the connection."""

import pytest

import remora
from remora import samples
from remora.testing.cts.hal_buffer import *  # noqa: F403 - the suite's classes are what runs here
from remora.testing.cts.hal_factory import HalFactory, device  # noqa: F401 - a fixture
from remora.testing.cts.hal_mapping import *  # noqa: F403
from remora.testing.cts.hal_queue import *  # noqa: F403
from remora.testing.cts.hal_random import *  # noqa: F403
from remora.testing.server import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(bind=f"unix://{tmp_path_factory.mktemp('unix')}/server") as server:
        yield server


@pytest.fixture
def factory(server):
    return HalFactory(
        open=lambda: remora.open(f"{server.uri}?shared=0"), vector=samples.load("vector"), faults=samples.load("faults")
    )
