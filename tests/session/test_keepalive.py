"""A dead peer is noticed within the deadline, a living one never mistaken for dead (H08). Time is a number in the test's hand."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.session.pair import Pair, plain_failure

from remora.errors import BrokenError, ClosedError, PeerError, UsageError
from remora.session.keepalive import Heartbeat, HeartbeatOptions
from remora.session.session import Session
from remora.session.state import Lane, Role
from remora.wire.control import Ping, decode_control


def start(now=0.0, interval=1.0, deadline=5.0):
    return Heartbeat(HeartbeatOptions(interval, deadline), now)


@pytest.mark.parametrize("options", [(0, 1), (-1, 1), (1, 1), (2, 1)])
def test_options_that_make_no_sense(options):
    with pytest.raises(UsageError, match="0 < interval < deadline"):
        start(0.0, *options)


def test_h08_silence_is_asked_about_once():
    beat = start()
    assert not beat.due(0.5)
    assert beat.due(1.0)
    assert beat.nonce == 1
    assert not beat.due(1.5)
    assert not beat.expired(4.9)
    assert beat.expired(5.0)


def test_h08_a_sign_of_life_ends_the_silence():
    beat = start()
    assert beat.due(1.0)
    beat.heard = True
    assert not beat.expired(99.0)
    assert not beat.due(1.5)
    assert not beat.expired(5.0)
    assert beat.due(2.0)
    assert beat.nonce == 2


def test_h08_a_busy_peer_is_not_asked():
    beat = start()
    for step in range(1, 100):
        beat.heard = True
        assert not beat.due(step / 2)
    assert beat.nonce == 0


def test_h08_after_its_own_sleep_a_side_asks_again_before_it_judges():
    beat = start()
    assert beat.due(1.0)
    assert beat.due(60.0)
    assert not beat.expired(60.0)
    assert beat.expired(64.0)


def test_answers_are_matched():
    beat = start()
    with pytest.raises(PeerError, match="PONG 1"):
        beat.answer(1)
    beat.due(1.0)
    beat.answer(1)
    with pytest.raises(PeerError, match="PONG 1"):
        beat.answer(1)
    with pytest.raises(PeerError, match="PONG 0"):
        beat.answer(0)


@settings(deadline=None, max_examples=200)
@given(
    interval=st.floats(0.1, 2.0),
    ratio=st.floats(1.5, 8.0),
    signs=st.lists(st.floats(0.0, 3.0), max_size=12),
)
def test_h08_death_is_noticed_within_the_deadline_of_the_last_byte(interval, ratio, signs):
    """Oracle: the peer sends at some times and then never again; ticks come when they are asked for."""
    deadline = interval * ratio
    beat = start(0.0, interval, deadline)
    times, at = [], 0.0
    for gap in signs:
        at += min(gap, deadline - interval) * 0.99
        times.append(at)
    last = at
    now = 0.0
    while not beat.expired(now):
        now = beat.next_tick()
        while times and times[0] <= now:
            times.pop(0)
            beat.heard = True
        beat.due(now)
        assert now <= last + deadline + 1e-6
    assert not times
    assert now >= last


def test_h08_both_sides_keep_an_idle_session_alive():
    pair = Pair.up()
    for session in (pair.client, pair.server):
        session.tick(0.0)
    for step in range(1, 200):
        now = step / 2
        for session in (pair.client, pair.server):
            assert session.tick(now) == []
            assert session.next_tick() > now
        for session in (pair.client, pair.server, pair.client, pair.server):
            assert pair.move(session) == []
    assert pair.client.heartbeat.nonce > 50


def test_h08_a_silent_peer_fails_the_session_within_the_deadline_and_is_named():
    pair = Pair.up()
    pair.client.tick(10.0)
    now = 10.0
    events = []
    while not events:
        now = pair.client.next_tick()
        events = pair.client.tick(now)
    assert now <= 15.0
    assert plain_failure(events) == (
        BrokenError,
        "tcp://server:5000 gave no sign of life for 5 s: its process is stopped or the network between is cut",
    )
    assert pair.client.failure.origin == "tcp://server:5000"
    assert isinstance(decode_control(memoryview(pair.client.take(Lane.CONTROL))[:16]), Ping)


def test_h06_a_side_may_ask_at_any_time_and_sees_the_answer():
    pair = Pair.up()
    nonce = pair.server.ask()
    assert pair.server.ask() == nonce + 1
    assert not pair.server.heartbeat.answered(nonce)
    pair.move(pair.server)
    assert pair.move(pair.client) == []
    assert pair.server.heartbeat.answered(nonce + 1)
    pair.server.close("enough")
    with pytest.raises(ClosedError):
        pair.server.ask()


def test_no_tick_is_asked_for_outside_of_operation():
    session = Session(Role.CLIENT, "tcp://server", 0.0)
    assert session.next_tick() == math.inf
    assert session.tick(1e9) == []
    pair = Pair.up()
    assert pair.client.next_tick() < 1.0
    pair.client.close("enough")
    assert pair.client.next_tick() == math.inf
