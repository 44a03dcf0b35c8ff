"""Servers for what is special about a remote device."""

import contextlib

import pytest
from tests.remote.raw import raw_client

import remora
from remora.testing.server import ServerProcess


@pytest.fixture(scope="module")
def server():
    """A cpu server in another process, for every test of a module."""
    with ServerProcess() as server:
        yield server


@pytest.fixture
def device(server):
    with remora.open(server.uri) as device:
        yield device


@pytest.fixture
def only_who_waits_reads(device, monkeypatch):
    """The link's thread takes no answers in: each wait for one is a round trip, however late the program comes to it."""
    monkeypatch.setattr(device.host.pump, "poll", lambda: None)


@pytest.fixture
def raw(server):
    """A client that writes its own frames."""
    with raw_client(server.uri) as client:
        yield client


@pytest.fixture
def serve():
    """serve(**options) -> a ServerProcess of this test's own."""
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(ServerProcess(**options))
