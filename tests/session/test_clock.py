"""The offset of the peer's clock is known to an interval that always holds the true one (H24). Time is in the test's hand."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from remora.session.clock import MAX_DRIFT_PPM, ClockEstimate

MS = 1_000_000
SECOND = 1_000_000_000
delays = st.integers(0, 50 * MS)
exchanges = st.lists(st.tuples(st.integers(0, 10 * SECOND), delays, delays), min_size=1, max_size=20)


@settings(deadline=None, max_examples=300)
@given(
    base=st.integers(-(1 << 60), 1 << 60),
    drift=st.integers(-MAX_DRIFT_PPM, MAX_DRIFT_PPM),
    steps=exchanges,
    later=st.integers(0, 100 * SECOND),
)
def test_h24_the_true_offset_is_always_inside(base, drift, steps, later):
    """Oracle: the peer's clock runs at a constant rate; delays in both directions are whatever they are."""

    def true_offset(now):
        return base + Fraction(drift * now, 10**6)

    clock, now = ClockEstimate(), SECOND
    for pause, there, back in steps:
        sent = now + pause
        now = sent + there + back
        peer = sent + there + int(true_offset(sent + there))
        clock.add(sent, peer, now)
        for moment in (now, now + later):
            offset, error = clock.offset(moment)
            assert offset - error - 1 <= true_offset(moment) <= offset + error + 1
        assert clock.offset(now)[1] <= (there + back) // 2 + (there + back) * MAX_DRIFT_PPM // 10**6 + 3


def test_h24_the_shortest_round_trip_counts_most():
    clock = ClockEstimate()
    assert not clock.known
    clock.add(1 * MS, 500 * MS, 21 * MS)
    assert clock.known
    assert clock.offset(21 * MS)[1] > 9 * MS
    clock.add(30 * MS, 520 * MS, 30 * MS + 1000)
    offset, error = clock.offset(31 * MS)
    assert abs(offset - 490 * MS) <= error < 2000
    clock.add(40 * MS, 540 * MS, 60 * MS)
    assert clock.offset(60 * MS)[1] < 10_000


def test_h24_an_estimate_that_is_not_renewed_gets_worse():
    clock = ClockEstimate()
    clock.add(0, 1000, 1)
    assert clock.offset(10 * SECOND)[1] >= 10 * SECOND * MAX_DRIFT_PPM // 10**6


def test_h24_a_clock_that_was_set_is_believed_anew():
    clock = ClockEstimate()
    clock.add(1 * MS, 2 * MS, 1 * MS + 100)
    clock.add(2 * MS, 99 * MS, 2 * MS + 100)
    offset, error = clock.offset(2 * MS + 100)
    assert abs(offset - 97 * MS) <= error < 1000


def test_h24_the_same_clock_is_exact_unless_an_exchange_rules_it_out():
    clock = ClockEstimate()
    clock.add(1 * MS, 1 * MS + 50, 1 * MS + 100, same=True)
    assert clock.offset(99 * SECOND) == (0, 0)
    clock.add(2 * MS, 7 * MS, 2 * MS + 100, same=True)  # a copied machine that believes to be the other
    offset, error = clock.offset(2 * MS + 100)
    assert abs(offset - 5 * MS) <= error < 1000
