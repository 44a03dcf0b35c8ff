"""D01, D10: the cpu driver passes the HAL suite."""

import pytest

import remora
from remora import samples
from remora.testing.cts.hal import *  # noqa: F403 - the suite's classes are what runs here
from remora.testing.cts.hal import HalFactory


@pytest.fixture
def factory():
    return HalFactory(
        open=lambda: remora.open("cpu"),
        vector=samples.load("vector"),
        faults=samples.load("faults"),
        special=samples.load("special"),
    )
