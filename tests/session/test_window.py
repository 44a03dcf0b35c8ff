"""How far transfers run ahead of their credit: bandwidth x delay, within the receiver's budget (H02, H25)."""

from statistics import median

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remora.session.transfers import FREE, MAX_STAGED, MIN_STAGING, SendWindow
from remora.session.window import RATES, ROUND_TRIPS, SAMPLE, EarlyWindow
from remora.wire.bulk import CHUNK

MIB = 1 << 20


def stream(window, total, rate, now):
    """Chunks one after the other on a link of `rate` bytes a second; the time when the last has gone."""
    for _ in range(total // CHUNK):
        now += CHUNK / rate
        window.sent(CHUNK, now)
    return now


def test_h02_until_both_are_measured_a_transfer_runs_one_chunk_ahead():
    window = EarlyWindow(24 * MIB)
    assert window.size == FREE
    window.round_trip(0.05)
    assert window.size == FREE
    now = stream(window, SAMPLE, 600e6, 0.0)
    assert window.size == FREE
    stream(window, CHUNK, 600e6, now)
    assert window.size > FREE


def test_h02_a_short_link_stays_at_one_chunk():
    window = EarlyWindow(24 * MIB)
    window.round_trip(0.0002)
    stream(window, 10 * SAMPLE, 2e9, 0.0)
    assert window.size == FREE


@pytest.mark.parametrize(
    ("round_trip", "rate", "size"),
    [(0.05, 200e6, FREE + 9 * CHUNK), (0.1, 20e6, FREE + 1 * CHUNK), (0.05, 2e9, 21 * CHUNK), (1.0, 1e9, 21 * CHUNK)],
)
def test_h02_a_long_link_gets_bandwidth_times_delay_within_the_budget(round_trip, rate, size):
    """The budget leaves one chunk to each of the other transfers that may be staged."""
    window = EarlyWindow(24 * MIB)
    window.round_trip(round_trip)
    stream(window, 10 * SAMPLE, rate, 0.0)
    assert window.size == size


def test_time_without_anything_to_send_says_nothing_about_the_link():
    window = EarlyWindow(24 * MIB)
    window.round_trip(0.05)
    now = 0.0
    for _ in range(20):
        now = stream(window, SAMPLE + CHUNK, 400e6, now) + 5.0
        window.pause()
    assert window.size == FREE + int(0.05 * 400e6) // CHUNK * CHUNK


rates = st.floats(1e6, 1e10)
events = st.lists(st.one_of(st.tuples(st.just("round trip"), st.floats(0, 10)), st.tuples(st.just("stream"), rates)), max_size=30)


@given(budget=st.integers(MIN_STAGING, 64 * MIB), events=events)
@example(budget=MIN_STAGING, events=[("round trip", 1.0), ("stream", 1e9)])
def test_the_window_is_what_the_last_measurements_say(budget, events):
    """Against an oracle that keeps all measurements and works the window out anew each time."""
    window, trips, bandwidths, now = EarlyWindow(budget), [], [], 0.0
    for what, value in events:
        if what == "round trip":
            window.round_trip(value)
            trips.append(value)
        else:
            window.pause()
            window.sent(CHUNK, now)
            begin = now
            now = stream(window, SAMPLE, value, now)
            bandwidths.append(SAMPLE / (now - begin))
        expected = FREE
        if trips and bandwidths:
            ahead = min(trips[-ROUND_TRIPS:]) * median(bandwidths[-RATES:])
            expected += int(min(ahead // CHUNK * CHUNK, (budget - MAX_STAGED * FREE) // CHUNK * CHUNK))
        assert window.size == expected
        assert window.size % CHUNK == 0
        assert window.size + (MAX_STAGED - 1) * FREE <= budget


@given(total=st.integers(0, 40 * CHUNK), size=st.integers(FREE, 30 * CHUNK))
def test_what_runs_ahead_is_never_more_than_the_transfer(total, size):
    window = SendWindow(total)
    assert window.run_ahead(size) == max(0, min(size, total) - FREE)
    assert window.granted == min(size, total)
    window.credit(min(total, 5))
    assert window.granted == min(size, total)


@given(
    rate=st.floats(20e6, 400e6),
    round_trip=st.floats(0.001, 0.05),
    total=st.integers(30, 200).map(lambda chunks: chunks * CHUNK),
)
def test_h02_a_link_within_the_budget_is_never_silent_while_the_credit_comes(rate, round_trip, total):
    """A simulated link: the first transfer waits a round trip for its credit, later ones at most for one chunk."""
    window, now, waits = EarlyWindow(MIN_STAGING + 20 * MIB), 0.0, []
    for _ in range(3):
        early = min(window.size, total)
        gone = stream(window, early, rate, now)
        credit = now + round_trip
        waits.append(max(0.0, credit - gone))
        if waits[-1]:
            window.pause()
        now = stream(window, total - early, rate, max(gone, credit))
        window.pause()
        window.round_trip(round_trip)
    assert waits[0] == pytest.approx(max(0.0, round_trip - CHUNK / rate))
    assert waits[1] <= CHUNK / rate
    assert waits[2] <= CHUNK / rate
