"""Conformance suite of the carrier contract (H30). A stranger proves a carrier with it:

    import pytest
    from remora.testing.cts.carrier import *     # brings the Test classes; pytest runs them

    @pytest.fixture
    def factory():
        return CarrierFactory(listen=..., listen_at=..., connect=..., unreachable=...)

Every test makes its own connection. Nothing sleeps: a test waits on events, and each wait has an end. Needs pytest. For readable
failures, say `pytest.register_assert_rewrite("remora.testing.cts")` in conftest.py.
"""

from remora.testing.cts.carrier_bytes import TestBackpressure, TestReliability, TestReservations, TestSendReceive
from remora.testing.cts.carrier_descriptors import TestKeptDescriptors
from remora.testing.cts.carrier_direct import TestDirectAccess
from remora.testing.cts.carrier_factory import CarrierFactory, background, read_exactly
from remora.testing.cts.carrier_life import TestDescriptors, TestErrors, TestFactory, TestLifecycle

__all__ = [
    "CarrierFactory",
    "TestBackpressure",
    "TestDescriptors",
    "TestDirectAccess",
    "TestErrors",
    "TestFactory",
    "TestKeptDescriptors",
    "TestLifecycle",
    "TestReliability",
    "TestReservations",
    "TestSendReceive",
    "background",
    "read_exactly",
]
