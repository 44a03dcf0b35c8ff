"""H30: the carrier suite at the address of --remora-carrier. Collected by `pytest --pyargs remora.testing.cts`."""

from __future__ import annotations

import pytest

from remora.testing.cts.carrier import *  # noqa: F403 - the suite's classes are what runs here
from remora.testing.cts.carrier import CarrierFactory
from remora.testing.cts.pytest_hooks import CARRIER


@pytest.fixture
def factory(pytestconfig: pytest.Config) -> CarrierFactory:
    """How the suite makes listeners and carriers."""
    return pytestconfig.stash[CARRIER]
