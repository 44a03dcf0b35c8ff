"""D10: the HAL suite against the device of --remora-device. Collected by `pytest --pyargs remora.testing.cts`."""

from __future__ import annotations

import pytest

from remora.testing.cts.hal import *  # noqa: F403 - the suite's classes are what runs here
from remora.testing.cts.hal import HalFactory
from remora.testing.cts.pytest_hooks import HAL


@pytest.fixture
def factory(pytestconfig: pytest.Config) -> HalFactory:
    """How the suite opens the device."""
    return pytestconfig.stash[HAL]
