"""Which bytes of a bulk transfer have come and which may go (H25): chunks in any order, credit that is cumulative."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.errors import PeerError
from remora.session.transfers import FREE, ChunkTracker, SendWindow
from remora.wire.bulk import CHUNK, MAX_TRANSFER

totals = st.integers(0, 12 * CHUNK)


def chunks_of(total):
    return [(offset, min(CHUNK, total - offset)) for offset in range(0, total, CHUNK)]


@settings(deadline=None, max_examples=150)
@given(total=totals, data=st.data())
def test_chunks_may_come_in_any_order_and_each_once(total, data):
    tracker = ChunkTracker(total)
    assert tracker.grant_all() is (total > FREE)
    assert not tracker.grant_all()
    come = []
    for chunk in data.draw(st.permutations(chunks_of(total))):
        assert not tracker.complete
        tracker.take(*chunk)
        come.append(chunk)
        assert tracker.received == sum(size for _, size in come)
        with pytest.raises(PeerError, match="came twice"):
            tracker.take(*data.draw(st.sampled_from(come)))
    assert tracker.complete
    assert not tracker._early


@pytest.mark.parametrize(
    ("offset", "size"),
    [(0, CHUNK - 1), (1, CHUNK), (CHUNK // 2, CHUNK), (2 * CHUNK, 4), (2 * CHUNK, 6), (3 * CHUNK, 5)],
)
def test_h25_chunks_off_the_grid_are_refused(offset, size):
    tracker = ChunkTracker(2 * CHUNK + 5)
    tracker.grant_all()
    with pytest.raises(PeerError, match="does not fit a transfer of 2097157 bytes"):
        tracker.take(offset, size)
    assert tracker.received == 0


def test_h25_only_the_free_bytes_come_without_credit():
    tracker = ChunkTracker(3 * CHUNK)
    tracker.take(CHUNK, CHUNK)
    with pytest.raises(PeerError, match="2097152 bytes came under a credit of 1048576"):
        tracker.take(0, CHUNK)
    assert tracker.grant_all()
    tracker.take(0, CHUNK)


def test_h25_a_far_chunk_costs_no_memory_in_proportion_to_its_offset():
    tracker = ChunkTracker(MAX_TRANSFER)
    tracker.grant_all()
    tracker.take(MAX_TRANSFER - CHUNK, CHUNK)
    assert tracker._early == {MAX_TRANSFER - CHUNK}


def test_chunks_that_come_backwards_and_twice():
    tracker = ChunkTracker(2 * CHUNK + 5)
    assert tracker.grant_all()
    assert not tracker.grant_all()
    for offset in (2 * CHUNK, CHUNK):
        tracker.take(offset, min(CHUNK, tracker.total - offset))
        with pytest.raises(PeerError, match=f"the chunk at {offset} came twice"):
            tracker.take(offset, min(CHUNK, tracker.total - offset))
    assert not tracker.complete
    tracker.take(0, CHUNK)
    with pytest.raises(PeerError, match="the chunk at 0 came twice"):
        tracker.take(0, CHUNK)
    assert tracker.complete


def test_a_sender_stops_where_its_credit_ends():
    window = SendWindow(3 * CHUNK + 1)
    assert window.next_chunk() == (0, CHUNK)
    window.send(CHUNK)
    assert window.next_chunk() == (CHUNK, 0)
    with pytest.raises(PeerError, match="a credit of"):
        window.credit(3 * CHUNK + 2)
    window.credit(3 * CHUNK)
    window.credit(CHUNK)
    for offset in (CHUNK, 2 * CHUNK):
        assert window.next_chunk() == (offset, CHUNK)
        window.send(CHUNK)
    assert window.next_chunk() == (3 * CHUNK, 0)
    window.credit(3 * CHUNK + 1)
    assert window.next_chunk() == (3 * CHUNK, 1)
    assert not window.complete
    window.send(1)
    assert window.complete


def test_a_sender_may_run_ahead_of_its_credit():
    window = SendWindow(4 * CHUNK)
    assert window.run_ahead(3 * CHUNK) == 3 * CHUNK - FREE
    window.credit(CHUNK)
    for offset in range(0, 3 * CHUNK, CHUNK):
        assert window.next_chunk() == (offset, CHUNK)
        window.send(CHUNK)
    assert window.next_chunk() == (3 * CHUNK, 0)
    assert SendWindow(5).run_ahead(CHUNK) == 0


@settings(deadline=None, max_examples=150)
@given(total=totals, grants=st.lists(totals, max_size=8))
def test_a_sender_sends_all_chunks_in_order_and_never_beyond_its_credit(total, grants):
    window = SendWindow(total)
    granted = min(FREE, total)
    sent = []
    for credit in [0, *grants, total]:
        if credit > total:
            with pytest.raises(PeerError, match=f"a credit of {credit} bytes for a transfer of {total}"):
                window.credit(credit)
            continue
        window.credit(credit)
        granted = max(granted, credit)
        while (chunk := window.next_chunk())[1]:
            window.send(chunk[1])
            sent.append(chunk)
        assert window.sent <= granted
        assert min(CHUNK, total - window.sent) > granted - window.sent or window.complete
    assert sent == chunks_of(total)
    assert window.complete
    assert window.next_chunk() == (total, 0)
