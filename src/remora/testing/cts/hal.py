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

from remora.testing.cts.hal_array import TestArrays, TestDeviceArrays, TestTensors
from remora.testing.cts.hal_buffer import TestAllocation, TestContents, TestMappings, TestViews
from remora.testing.cts.hal_command_buffer import (
    TestBindingTables,
    TestEvents,
    TestExecutions,
    TestFailedRecordings,
    TestLifeOfRecordings,
    TestPatches,
    TestRandomRecordings,
    TestRecordedBarriers,
    TestRecordedEvents,
    TestRecordedIndirectDispatch,
    TestRecording,
)
from remora.testing.cts.hal_device import TestClosing, TestFacts, TestStatistics, TestThreads
from remora.testing.cts.hal_executable import TestContracts, TestDispatch, TestLoading
from remora.testing.cts.hal_extension import TestExtensions
from remora.testing.cts.hal_factory import HalFactory, device, second
from remora.testing.cts.hal_failure import TestFailedKernels, TestFailedQueues, TestFailedWaits
from remora.testing.cts.hal_file import TestFailedFiles, TestFiles, TestOpenFiles, TestRandomFiles
from remora.testing.cts.hal_host_call import TestFlush, TestHostCalls
from remora.testing.cts.hal_indirect import TestIndirectDispatch
from remora.testing.cts.hal_mapping import TestLiveMappings
from remora.testing.cts.hal_profile import TestProfiles, TestSinks
from remora.testing.cts.hal_queue import TestCopy, TestFill, TestOrder, TestUpdateAndRead
from remora.testing.cts.hal_queue_memory import TestQueueMemory, TestQueueMemoryFailures
from remora.testing.cts.hal_random import TestRandomOperations
from remora.testing.cts.hal_semaphore import TestAwait, TestCallbacks, TestDependencies, TestHostWaits, TestSemaphores
from remora.testing.cts.hal_special import TestGlobals, TestReflection, TestSpecialization
from remora.testing.cts.hal_virtual_memory import (
    TestPageRefusals,
    TestPages,
    TestPagesInFlight,
    TestPagesInUse,
    page,
    space,
)
from remora.testing.cts.hal_virtual_memory_random import TestRandomPages

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
    "TestDeviceArrays",
    "TestDispatch",
    "TestEvents",
    "TestExecutions",
    "TestExtensions",
    "TestFacts",
    "TestFailedFiles",
    "TestFailedKernels",
    "TestFailedQueues",
    "TestFailedRecordings",
    "TestFailedWaits",
    "TestFiles",
    "TestFill",
    "TestFlush",
    "TestGlobals",
    "TestHostCalls",
    "TestHostWaits",
    "TestIndirectDispatch",
    "TestLifeOfRecordings",
    "TestLiveMappings",
    "TestLoading",
    "TestMappings",
    "TestOpenFiles",
    "TestOrder",
    "TestPageRefusals",
    "TestPages",
    "TestPagesInFlight",
    "TestPagesInUse",
    "TestPatches",
    "TestProfiles",
    "TestQueueMemory",
    "TestQueueMemoryFailures",
    "TestRandomFiles",
    "TestRandomOperations",
    "TestRandomPages",
    "TestRandomRecordings",
    "TestRecordedBarriers",
    "TestRecordedEvents",
    "TestRecordedIndirectDispatch",
    "TestRecording",
    "TestReflection",
    "TestSemaphores",
    "TestSinks",
    "TestSpecialization",
    "TestStatistics",
    "TestTensors",
    "TestThreads",
    "TestUpdateAndRead",
    "TestViews",
    "device",
    "page",
    "second",
    "space",
]
