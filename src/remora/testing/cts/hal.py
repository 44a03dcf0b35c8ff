"""Conformance suite of the HAL (D10): what a program may rely on, whatever the device is. A stranger proves a driver with it:

    import pytest
    from remora.testing.cts.hal import *     # brings the Test classes and the fixtures; pytest runs them

    @pytest.fixture
    def factory():
        return HalFactory(open=lambda: remora.open("mine"), vector=..., faults=...)

hal_factory.py says what the factory holds. Every test opens a device of its own and closes it. Nothing sleeps: a test waits on
events, and each wait has an end. Needs pytest and hypothesis; NumPy for the tests of arrays. For readable failures, say
`pytest.register_assert_rewrite("remora.testing.cts")` in conftest.py.
"""

from remora.testing.cts.hal_array import TestArrays, TestTensors
from remora.testing.cts.hal_buffer import TestAllocation, TestContents, TestMappings, TestViews
from remora.testing.cts.hal_command_buffer import (
    TestBindingTables,
    TestEvents,
    TestExecutions,
    TestFailedRecordings,
    TestLifeOfRecordings,
    TestPatches,
    TestRandomRecordings,
    TestRecordedEvents,
    TestRecording,
)
from remora.testing.cts.hal_device import TestClosing, TestFacts, TestStatistics, TestThreads
from remora.testing.cts.hal_executable import TestContracts, TestDispatch, TestLoading
from remora.testing.cts.hal_factory import HalFactory, device, second
from remora.testing.cts.hal_failure import TestFailedKernels, TestFailedQueues, TestFailedWaits
from remora.testing.cts.hal_queue import TestCopy, TestFill, TestOrder, TestUpdateAndRead
from remora.testing.cts.hal_random import TestRandomOperations
from remora.testing.cts.hal_semaphore import TestAwait, TestCallbacks, TestDependencies, TestHostWaits, TestSemaphores

__all__ = [
    "HalFactory",
    "TestAllocation",
    "TestArrays",
    "TestAwait",
    "TestBindingTables",
    "TestCallbacks",
    "TestClosing",
    "TestContents",
    "TestContracts",
    "TestCopy",
    "TestDependencies",
    "TestDispatch",
    "TestEvents",
    "TestExecutions",
    "TestFacts",
    "TestFailedKernels",
    "TestFailedQueues",
    "TestFailedRecordings",
    "TestFailedWaits",
    "TestFill",
    "TestHostWaits",
    "TestLifeOfRecordings",
    "TestLoading",
    "TestMappings",
    "TestOrder",
    "TestPatches",
    "TestRandomOperations",
    "TestRandomRecordings",
    "TestRecordedEvents",
    "TestRecording",
    "TestSemaphores",
    "TestStatistics",
    "TestTensors",
    "TestThreads",
    "TestUpdateAndRead",
    "TestViews",
    "device",
    "second",
]
