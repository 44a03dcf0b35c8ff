"""H32: when a reader looks for bytes before it sleeps. The times are given, so nothing here depends on the machine."""

import os
import socket

import pytest

from remora.carriers.spin import FINDS, LOOK_NS, MOST_REST, QUICK_NS, AdaptiveSpin, FixedSpin, Lookout, spin_for


def waits_until_it_looks(spin):
    """How many short waits it takes until one would look."""
    count = 0
    while not spin.looks:
        spin.slept(QUICK_NS - 1)
        count += 1
        assert count <= MOST_REST + 2
    return count


def test_a_quiet_connection_never_looks():
    spin = AdaptiveSpin()
    for _ in range(1000):
        assert not spin.looks
        spin.slept(QUICK_NS)


def test_a_short_sleep_makes_the_next_wait_look_for_twice_as_long():
    spin = AdaptiveSpin()
    spin.slept(10_000)
    assert spin.looks
    assert spin.look_ns == 20_000
    other = AdaptiveSpin()
    other.slept(QUICK_NS - 1)
    assert other.look_ns == LOOK_NS


def test_looks_go_on_while_they_find():
    spin = AdaptiveSpin()
    spin.slept(10_000)
    for _ in range(1000):
        spin.found(5_000)
        assert spin.looks


def test_each_look_that_does_not_find_doubles_the_rest_up_to_an_end():
    spin, rests = AdaptiveSpin(), []
    waits_until_it_looks(spin)
    for _ in range(14):
        spin.slept(60_000)
        assert not spin.looks
        rests.append(waits_until_it_looks(spin))
    assert rests == [min(1 << step, MOST_REST) + 1 for step in range(14)]


def test_finds_in_a_row_halve_the_rest():
    spin = AdaptiveSpin()
    for _ in range(5):
        waits_until_it_looks(spin)
        spin.slept(60_000)
    waits_until_it_looks(spin)
    for _ in range(FINDS * 2):
        spin.found(5_000)
    spin.slept(60_000)
    assert waits_until_it_looks(spin) == 32 // 4 + 1


def test_bytes_after_a_time_off_the_core_are_no_find():
    """The look itself ended late: somebody else had the core, maybe the peer, which needed it."""
    spin = AdaptiveSpin()
    spin.slept(10_000)
    spin.found(3_000_000)
    assert not spin.looks


def test_a_look_set_by_hand_rests_as_long_each_time():
    spin = FixedSpin(7_000)
    assert spin.looks
    spin.found(3_000_000)
    assert spin.looks
    for _ in range(3):
        spin.slept(10_000_000)
        waits = 1
        while not spin.looks:
            spin.slept(10_000_000)
            waits += 1
        assert waits == 64


@pytest.mark.parametrize(("given", "kind"), [(None, AdaptiveSpin), (20, FixedSpin), (0, type(None))])
def test_the_address_chooses(given, kind, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    assert type(spin_for(given)) is kind
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    assert spin_for(given) is None


class Told(FixedSpin):
    """A policy that notes what it is told."""

    def __init__(self, look_ns):
        super().__init__(look_ns)
        self.told = []

    def found(self, waited_ns):
        self.told.append(("found", waited_ns))

    def slept(self, waited_ns):
        self.told.append(("slept", waited_ns))


@pytest.fixture
def socket_pair():
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()


def test_a_lookout_sees_bytes_and_takes_none(socket_pair):
    here, there = socket_pair
    spin = Told(10**15)
    lookout = Lookout(here.fileno(), spin)
    there.send(b"abc")
    lookout.look()
    lookout.woke()
    assert [what for what, _ in spin.told] == ["found"]
    assert here.recv(10) == b"abc"


def test_a_lookout_sees_the_end_of_the_stream(socket_pair):
    here, there = socket_pair
    spin = Told(10**15)
    there.close()
    Lookout(here.fileno(), spin).look()
    assert [what for what, _ in spin.told] == ["found"]


@pytest.mark.parametrize("looks", [True, False])
def test_a_lookout_tells_of_the_sleep_once_whether_it_looked_or_not(socket_pair, looks):
    spin = Told(1000)
    spin.looks = looks
    lookout = Lookout(socket_pair[0].fileno(), spin)
    lookout.woke()
    assert not spin.told, "there was no receive"
    lookout.look()
    lookout.woke()
    lookout.woke()
    assert [what for what, _ in spin.told] == ["slept"]
    assert spin.told[0][1] >= (1000 if looks else 0)
