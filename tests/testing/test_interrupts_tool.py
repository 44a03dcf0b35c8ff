"""Ctrl-C is raised where CPython looks for signals, and nowhere else; nothing of the job is held afterwards."""

import dis
import socket
import weakref

import pytest

from remora.carriers.carrier import Capability
from remora.carriers.stream import StreamCarrier
from remora.hal.buffer import check_range
from remora.testing.interrupts import Interrupts


class Job:
    """Closes a carrier whose socket was never connected: its shutdown raises, which the carrier expects."""

    def __call__(self):
        StreamCarrier(socket.socket(), "here", "there", Capability.RELIABLE).close()


def test_a_call_that_raised_is_no_place():
    calls = [each.offset for each in dis.get_instructions(StreamCarrier._interrupt) if each.opname == "CALL"]
    suppress, shutdown, leave = calls
    seen = {place.offset for place in Interrupts().places(Job()) if place.name.endswith("StreamCarrier._interrupt")}
    assert suppress in seen
    assert not seen & {shutdown, leave}


def test_one_pass_of_one_place_is_struck():
    interrupts = Interrupts()
    job = lambda: [check_range(number, None, 4) for number in range(3)]  # noqa: E731
    (place, passes), *_ = interrupts.places(job).items()
    assert passes == 3
    for nth in (1, 3):
        with pytest.raises(KeyboardInterrupt):
            interrupts.strike(place, job, nth)
    assert interrupts.strike(place, job, 4) is False


def test_nothing_of_the_job_is_held_afterwards():
    interrupts, job = Interrupts(), Job()
    interrupts.places(job)
    held = weakref.ref(job)
    del job
    assert held() is None
