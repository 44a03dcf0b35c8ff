"""Servers with limits, in a process of their own."""

import contextlib

import pytest

from remora.testing.server import ServerProcess


@pytest.fixture(params=["processes", "shared"])
def mode(request):
    """A process for each session, or all of them in one."""
    return {"shared": request.param == "shared"}


@pytest.fixture
def serve():
    """serve(*flags, **options) -> a ServerProcess of this test's own."""
    with contextlib.ExitStack() as stack:
        yield lambda *flags, **options: stack.enter_context(ServerProcess(flags=flags, **options))
