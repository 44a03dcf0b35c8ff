"""What `pytest --pyargs remora.testing.cts` collects: the suites that the options of `remora_pytest` ask for, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS = {"test_hal.py": "remora_device", "test_carrier.py": "remora_carrier"}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a suite that was not asked for, if another one was."""
    option = OPTIONS.get(collection_path.name)
    asked = [name for name in OPTIONS.values() if config.getoption(name, None)]
    return True if option and asked and option not in asked else None


def pytest_collection_modifyitems(config: pytest.Config) -> None:
    """End a run that asks for no suite: one that proves nothing must not pass. Raises UsageError."""
    if not any(config.getoption(name, None) for name in OPTIONS.values()):
        raise pytest.UsageError("say what to test: --remora-device=URI for a device, --remora-carrier=ADDRESS for a carrier")
