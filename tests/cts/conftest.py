"""Where the HAL suite runs in another process: on what the module's `server` serves."""

import pytest

import remora
from remora import samples
from remora.testing.cts.hal import HalFactory


@pytest.fixture
def factory(server):
    return HalFactory(
        open=lambda: remora.open(server.uri),
        vector=samples.load("vector"),
        faults=samples.load("faults"),
        special=samples.load("special"),
    )
