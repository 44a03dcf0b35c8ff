"""loopback: names of this process."""

import pytest

from remora.carriers import adopt, connect, listen
from remora.errors import BrokenError, UnsupportedError, UsageError

LONG = 20.0


def test_a_listener_without_a_name_gets_a_fresh_one():
    with listen("loopback://") as first, listen("loopback://") as second:
        assert first.address != second.address
        with connect(second.address):
            assert first.accept(0) is None
            second.accept(LONG).close()


def test_a_name_is_taken_once_and_free_again():
    with listen("loopback://one"), pytest.raises(UsageError, match="taken"):
        listen("loopback://one")
    listen("loopback://one").close()


def test_a_full_queue_refuses():
    with listen("loopback://", backlog=1) as listener:
        with connect(listener.address), pytest.raises(BrokenError):
            connect(listener.address)
        listener.accept(LONG).close()


def test_a_client_that_was_never_accepted_sees_the_end():
    with listen("loopback://") as listener, connect(listener.address) as client:
        client.activate()
        listener.close()
        with pytest.raises(BrokenError):
            client.receive(LONG)


def test_it_stays_in_its_process():
    with pytest.raises(UnsupportedError):
        adopt("loopback", 0, "loopback://x")
