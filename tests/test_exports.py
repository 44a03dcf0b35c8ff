"""The public names: which there are, and that each explains itself with an example."""

import inspect

import pytest

import remora

NAMES = [
    *(
        "Access",
        "BrokenError",
        "Buffer",
        "BufferView",
        "Bundle",
        "BusyError",
        "ClosedError",
        "CommandBuffer",
        "DeadlineError",
        "Device",
        "DeviceError",
    ),
    *(
        "DeviceInfo",
        "DeviceLostError",
        "DeviceStatistics",
        "Error",
        "Event",
        "Executable",
        "Host",
        "Kernel",
        "LinkStatistics",
        "Mapping",
    ),
    *(
        "NotFoundError",
        "OutOfMemoryError",
        "Patch",
        "PeerError",
        "Queue",
        "Semaphore",
        "Slot",
        "Target",
        "Timepoint",
        "UnsupportedError",
        "UsageError",
    ),
    *("connect", "open"),
]


def test_the_public_names_are_these():
    assert remora.__all__ == NAMES
    assert all(hasattr(remora, name) for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_has_a_docstring_with_an_example(name):
    told = getattr(remora, name).__doc__
    assert told
    assert "Example:" in told
    example = inspect.cleandoc(told).split("Example:", 1)[1]
    assert "`" in example or "\n    " in example


@pytest.mark.parametrize("name", [name for name in NAMES if inspect.isclass(getattr(remora, name))])
def test_every_public_method_has_a_docstring(name):
    kind = getattr(remora, name)
    own = {key: value for key, value in vars(kind).items() if not key.startswith("_") and kind.__module__.startswith("remora.")}
    callables = {key: value for key, value in own.items() if callable(value) or isinstance(value, property | classmethod)}
    assert [key for key, value in callables.items() if not inspect.getdoc(value)] == []
