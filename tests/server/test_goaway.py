"""H05, H06: a GOAWAY that is faster than the other lanes takes nothing with it that the server had done and answered before."""

import os
import signal
from contextlib import contextmanager

import pytest
from tests.faults.processes import wait_until

import remora
from remora.errors import BrokenError
from remora.testing.cts.compare import same
from remora.testing.proxy import DelayProxy, Direction

LONG = 20.0
SIZE = 1 << 20
#: The connections of a client, in the order in which it makes them.
QUEUE, BULK = 1, 2


@contextmanager
def overtaken(server, proxy, device, lane, size=1):
    """The server answers what is submitted here and ends the session, while a lane holds back `size` bytes of that and more."""
    proxy.hold(lane, Direction.DOWN)
    yield
    device.queue.flush()
    wait_until(lambda: proxy.held_bytes(Direction.DOWN) >= size)
    server.signal(signal.SIGTERM)
    wait_until(lambda: device.host.link.session.dismissed)
    assert proxy.held_bytes(Direction.DOWN) >= size, "the proxy has given up the connection"
    proxy.release(lane, Direction.DOWN)


@pytest.fixture
def far(serve, mode):
    """(server, proxy, device) of a server behind a proxy."""
    server = serve("--drain-timeout=10", **mode)
    with DelayProxy(server.addresses[0], 0) as proxy, remora.open(f"remote-{proxy.address}") as device:
        yield server, proxy, device


def check_end(server, device):
    with pytest.raises(BrokenError, match="ended the session: the server is stopping"):
        device.queue.barrier()
    assert server.wait(LONG) == 0


@pytest.mark.parametrize(("lane", "size"), [(QUEUE, 1), (BULK, SIZE)])
def test_h06_a_download_that_is_slower_than_the_goaway_arrives(far, lane, size):
    server, proxy, device = far
    data, into = os.urandom(SIZE), bytearray(SIZE)
    buffer = device.upload(data)
    device.queue.wait_idle(LONG)
    with overtaken(server, proxy, device, lane, size):
        point = device.queue.read(buffer, into)
    point.wait(LONG)
    assert same(into, data)
    check_end(server, device)


def test_h06_an_answer_that_is_slower_than_the_goaway_arrives(far):
    server, proxy, device = far
    buffer = device.upload(b"here" * 4)
    device.queue.wait_idle(LONG)
    with overtaken(server, proxy, device, QUEUE):  # the bytes and the ADVANCE go in one send
        small = bytearray(16)
        read = device.queue.read(buffer, small)
    read.wait(LONG)
    assert small == b"here" * 4
    check_end(server, device)
