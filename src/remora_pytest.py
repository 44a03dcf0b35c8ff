"""The pytest plugin of remora: options that run its conformance suites against any device or carrier.

    pytest --pyargs remora.testing.cts --remora-device=URI
    pytest --pyargs remora.testing.cts --remora-carrier=ADDRESS

It stands beside the package, so that a pytest run that does not ask for a suite imports nothing of remora. What the options do
is in `remora.testing.cts.pytest_hooks`.
"""

from __future__ import annotations

import pytest

__all__ = ["pytest_addoption", "pytest_configure"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options. Every one of them begins with --remora."""
    group = parser.getgroup("remora", "conformance suites of remora: pytest --pyargs remora.testing.cts")
    group.addoption("--remora-device", metavar="URI", help="run the HAL suite on this device: cpu, remote-tcp://host:5000, yours")
    group.addoption("--remora-vector", metavar="FILE", help="a bundle with the kernels of the sample `vector` for the device")
    group.addoption("--remora-faults", metavar="FILE", help="a bundle with the kernel `fail` of the sample `faults` for the device")
    group.addoption("--remora-special", metavar="FILE", help="a bundle with what the sample `special` has, for the device")
    group.addoption(
        "--remora-carrier",
        metavar="ADDRESS",
        help="run the carrier suite on listeners at this address, such as tcp://127.0.0.1:0; {n} in it becomes a fresh number",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Bring in the hooks, if a suite is asked for."""
    if config.getoption("remora_device") or config.getoption("remora_carrier"):
        pytest.register_assert_rewrite("remora.testing.cts")
        config.pluginmanager.import_plugin("remora.testing.cts.pytest_hooks")
