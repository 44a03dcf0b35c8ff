"""Real servers, devices and raw clients for the invariants."""

import pytest
from tests.remote.conftest import raw, serve, server  # noqa: F401 - fixtures

import remora


@pytest.fixture
def device(server):  # noqa: F811 - the fixture
    with remora.open(server.uri) as device:
        device.queue.wait_idle(20)
        yield device
