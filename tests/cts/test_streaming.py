"""A driver whose device works by itself passes the HAL suite: `hal.stream_queue` keeps every promise of a queue."""

import pytest
from tests.hal.streaming import StreamingDevice

from remora import samples
from remora.hal.bundle import Bundle
from remora.hal.target import Target
from remora.testing.cts.hal import *  # noqa: F403 - the suite's classes are what runs here
from remora.testing.cts.hal import HalFactory

VECTOR = Bundle.from_parts("vector", samples.load("vector").kernels, {Target("null", "any"): b"nothing"})


@pytest.fixture
def factory():
    return HalFactory(open=StreamingDevice, vector=VECTOR, executes=False, checks_artifacts=False)
