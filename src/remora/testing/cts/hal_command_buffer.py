"""HAL conformance: command buffers and events (H18, H21). `from remora.testing.cts.hal_command_buffer import *` brings all of it.

The factory is that of hal.py; see hal_factory.py.
"""

from remora.testing.cts.hal_command_barrier import TestRecordedBarriers
from remora.testing.cts.hal_command_execution import TestBindingTables, TestExecutions
from remora.testing.cts.hal_command_indirect import TestRecordedIndirectDispatch
from remora.testing.cts.hal_command_life import TestFailedRecordings, TestLifeOfRecordings, TestPatches
from remora.testing.cts.hal_command_random import TestRandomRecordings
from remora.testing.cts.hal_command_recording import TestRecording
from remora.testing.cts.hal_event import TestEvents, TestRecordedEvents
from remora.testing.cts.hal_factory import HalFactory, device, second

__all__ = [
    "HalFactory",
    "TestBindingTables",
    "TestEvents",
    "TestExecutions",
    "TestFailedRecordings",
    "TestLifeOfRecordings",
    "TestPatches",
    "TestRandomRecordings",
    "TestRecordedBarriers",
    "TestRecordedEvents",
    "TestRecordedIndirectDispatch",
    "TestRecording",
    "device",
    "second",
]
