"""The injector fails exactly what it is told to, and only in remora's own calls."""

import os
import socket
import threading
from pathlib import Path

import pytest

from remora.carriers import connect, listen
from remora.errors import BrokenError, BusyError, UsageError
from remora.testing.injected import injected
from remora.testing.injection import Injector

LONG = 10.0


@pytest.fixture
def injector():
    with Injector() as injector, injected(injector):
        yield injector


def visit():
    with listen("tcp://127.0.0.1:0") as listener, connect(listener.address) as near, listener.accept(LONG) as far:
        near.activate()
        far.activate()
        near.send_all(b"hello", timeout=LONG)
        with far.receive(LONG) as lease:
            return bytes(lease.view)


def point_of(injector, primitive):
    injector.record()
    assert visit() == b"hello"
    return next(point for point in injector.points() if point.primitive == primitive)


def test_one_pass_of_one_point_fails(injector):
    point = point_of(injector, "connect")
    injector.arm(point, "ECONNREFUSED")
    with pytest.raises(BrokenError, match="refused"):
        visit()
    assert injector.fired == 1
    assert visit() == b"hello"


def test_a_later_pass_fails_and_not_the_first_ones(injector):
    injector.arm(point_of(injector, "socket"), "EMFILE", 3)
    assert visit() == b"hello"
    with pytest.raises(BusyError, match="Too many open files"):
        visit()


def test_a_point_names_the_lines_that_lead_to_it(injector):
    assert "carriers/tcp.py" in point_of(injector, "connect").name


def test_an_impossible_failure_is_refused(injector):
    with pytest.raises(UsageError, match="connect can fail with ECONNREFUSED, not ENOENT"):
        injector.arm(point_of(injector, "connect"), "ENOENT")


def test_a_cut_ends_every_socket_after_so_many_bytes(injector):
    injector.cut(7)
    assert visit() == b"hello"[:2]  # five bytes were sent, and two of them received
    assert injector.cut_off
    with pytest.raises(BrokenError, match="reset"):
        visit()


def test_calls_of_others_pass(injector):
    injector.cut(0)
    one, other = socket.socketpair()
    with one, other:
        one.send(b"x")
        assert other.recv(1) == b"x"


def test_everything_is_as_before_afterwards():
    before = os.eventfd, socket.socket.send, socket.socket.__init__, threading.Thread.start
    with Injector() as injector, injected(injector):
        assert os.eventfd is not before[0]
    assert (os.eventfd, socket.socket.send, socket.socket.__init__, threading.Thread.start) == before
    assert "send" not in vars(socket.socket)
    assert not Path(injector.path).exists()
