"""H06: an idle session is ended when the server was told so, and only then."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.test_drain import Held, end_of

import remora
from remora.server.ending import IdleWatch

LONG = 20.0


def test_h06_an_idle_session_ends_with_the_reason_and_heartbeats_do_not_count(serve, mode):
    server = serve("--idle-timeout", "0.4", **mode)
    with remora.open(f"{server.uri}?keepalive=0.1&deadline=20") as device:
        device.queue.barrier().wait(LONG)
        assert "ended the session: it was idle for 0.4 s (--idle-timeout of the server)" in end_of(device)
    with remora.open(server.uri) as device:
        device.queue.barrier().wait(LONG)


def test_h06_a_session_with_work_in_flight_is_not_idle(serve, mode):
    """An idle session that begins later ends first."""
    server = serve("--idle-timeout", "0.4", **mode)
    with remora.open(server.uri) as device:
        held = Held(device)
        with remora.open(server.uri) as idle:
            assert "idle" in end_of(idle)
        held.let_go()
        held.point.wait(LONG)
        assert "idle" in end_of(device)


def test_h06_idle_sessions_stay_unless_told_otherwise(serve):
    with remora.open(serve().uri) as device, remora.open(serve("--idle-timeout", "0.2").uri) as other:
        assert "idle" in end_of(other)
        device.queue.barrier().wait(LONG)


@given(st.lists(st.tuples(st.floats(0.01, 3), st.booleans(), st.booleans()), max_size=30))
def test_h06_idle_is_a_whole_timeout_without_activity(steps):
    watch, now, quiet_since, activity = IdleWatch(2.0, 0.0), 0.0, 0.0, 0
    for pause, asked, unfinished in steps:
        now += pause
        activity += asked
        if asked or unfinished:
            quiet_since = now
        again = watch.look(now, activity, int(unfinished))
        assert again == pytest.approx(max(now, quiet_since + 2.0))
