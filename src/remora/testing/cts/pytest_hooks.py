"""What the options of `remora_pytest` do: find out what is tested, say so, and say at the end what was not proved and why."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec

import pytest

import remora
from remora.testing.cts.carrier_factory import CarrierFactory
from remora.testing.cts.choosing import carrier_factory, describe, hal_factory
from remora.testing.cts.hal_factory import HalFactory

__all__ = ["CARRIER", "HAL", "pytest_configure", "pytest_report_header", "pytest_terminal_summary"]

HAL = pytest.StashKey[HalFactory]()
CARRIER = pytest.StashKey[CarrierFactory]()
TOLD = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Look at what is tested, once. Raises UsageError with the reason when it cannot be opened."""
    told = config.stash[TOLD] = []
    for option, take in (("remora_device", _take_device), ("remora_carrier", _take_carrier)):
        subject = config.getoption(option)
        if not subject:
            continue
        try:
            told.append(take(config, subject))
        except remora.Error as error:
            raise pytest.UsageError(f"cannot test {subject}: {error}") from error


def _take_device(config: pytest.Config, uri: str) -> str:
    if find_spec("hypothesis") is None:
        raise pytest.UsageError("the HAL suite needs hypothesis: pip install 'remora[cts]'")
    with remora.open(uri) as device:
        info = device.info
    paths = {sample: config.getoption(f"remora_{sample}") for sample in ("vector", "faults", "special")}
    config.stash[HAL] = hal_factory(info, uri, **paths)
    return f"remora: HAL suite against {uri}: {describe(info)}"


def _take_carrier(config: pytest.Config, address: str) -> str:
    config.stash[CARRIER] = factory = carrier_factory(address)
    able = ", ".join(flag.name or "" for flag in factory.capabilities)
    return f"remora: carrier suite at {address}: {able}"


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Against what the suites run."""
    return config.stash[TOLD]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Why tests were skipped: these promises are not proved by this run."""
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", ()))
    if not reasons:
        return
    terminalreporter.write_sep("=", "not proved")
    for line in config.stash[TOLD]:
        terminalreporter.write_line(line)
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"{count:4} skipped: {reason}")
