"""A carrier that is closed or handed over gives its receive buffers back at once, not when the collector comes by."""

import gc
import os

import pytest

from remora.carriers import connect, listen
from remora.carriers.carrier import Lease

LONG = 10.0


@pytest.fixture
def garbage():
    """garbage(): what only the collector would have freed since the test began."""
    gc.collect()
    gc.disable()

    def found():
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return list(gc.garbage)

    yield found
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()
    gc.collect()


@pytest.mark.parametrize("end", ["close", "detach"])
def test_receive_buffers_go_with_the_carrier(garbage, end):
    with listen("tcp://127.0.0.1:0") as listener, connect(listener.address) as near, listener.accept(LONG) as far:
        near.activate()
        far.activate()
        near.send_all(b"hello", timeout=LONG)
        with far.receive(LONG) as lease:
            assert bytes(lease.view) == b"hello"
        del lease
        if end == "detach":
            os.close(far.detach())
    del near, far
    assert not [each for each in garbage() if isinstance(each, Lease)]
