"""D06, D10: the null driver passes the HAL suite; its kernels compute nothing, everything else is real."""

import pytest

import remora
from remora import samples
from remora.hal.bundle import Bundle
from remora.hal.target import Target
from remora.testing.cts.hal import *  # noqa: F403 - the suite's classes are what runs here
from remora.testing.cts.hal import HalFactory

VECTOR = Bundle.from_parts("vector", samples.load("vector").kernels, {Target("null", "any"): b"nothing"})


@pytest.fixture
def factory():
    return HalFactory(open=lambda: remora.open("null"), vector=VECTOR, executes=False, checks_artifacts=False)
