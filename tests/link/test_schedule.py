"""What goes next and where it lands, without threads: order, fairness, places for staging, ends in the middle of a chunk."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.errors import DeviceError, PeerError, UsageError
from remora.link.incoming import MAX_POOL, MAX_REFUSED, ReceiveTable
from remora.link.outgoing import MAX_ALONG, SendSchedule
from remora.session.transfers import MAX_STAGED
from remora.wire.bulk import ABORT, CHUNK, COMPLETE, CREDIT, DATA, START, BulkHeader, decode_bulk, encode_bulk

GIVEN_UP = DeviceError("given up")
LARGE = memoryview(bytes(40 * CHUNK))


def ignore(error):
    pass


def frames_of(spans):
    """(kind, transfer id) of every frame in the spans of one send; payload is left out."""
    heads = [decode_bulk(span[:24]) for span in spans if isinstance(span, bytes)]
    return [(head.kind, head.transfer_id) for head in heads]


def step(schedule):
    """One send: (its frames, the transfer that it ended)."""
    spans = schedule.next(0)
    return frames_of(spans), schedule.sent(0, 0.0)


def chunks(schedule):
    """The transfer ids of the chunks to come, in order, until nothing may go."""
    order = []
    while spans := schedule.next(0):
        order += [transfer for kind, transfer in frames_of(spans) if kind == DATA]
        schedule.sent(0, 0.0)
    return order


@pytest.fixture
def schedule():
    return SendSchedule()


def test_h02_small_transfers_pass_large_ones_and_large_ones_go_on(schedule):
    """2 large and 20 small: while there are small ones, every other chunk is a large one's, and the large ones take turns."""
    for transfer in (1, 3):
        schedule.add(transfer, LARGE, ignore, LARGE.nbytes)
    begun = [transfer for _ in range(4) for kind, transfer in step(schedule)[0] if kind == DATA]
    assert set(begun) == {1, 3}
    for transfer in range(101, 141, 2):
        schedule.add(transfer, LARGE[:CHUNK], ignore, CHUNK)
    order = chunks(schedule)
    small = [place for place, transfer in enumerate(order) if transfer > 100]
    assert [order[place] for place in small] == list(range(101, 141, 2))
    assert small[0] <= 1
    assert small[-1] <= 2 * 20
    large = begun + [transfer for transfer in order if transfer < 100]
    assert large.count(1) == large.count(3) == 40
    assert all(abs(large[:end].count(1) - large[:end].count(3)) <= 2 for end in range(80))


def test_h02_a_flood_of_small_transfers_leaves_half_to_a_large_one(schedule):
    schedule.add(1, LARGE, ignore, LARGE.nbytes)
    order = []
    for transfer in range(3, 83, 2):
        schedule.add(transfer, LARGE[:9], ignore, 9)
        order += [sent for kind, sent in step(schedule)[0] if kind == DATA]
    assert 19 <= order.count(1) <= 21


def test_h02_only_a_few_begin_without_credit_and_the_next_when_one_is_placed(schedule):
    for transfer in range(1, 13, 2):
        schedule.add(transfer, LARGE, ignore, None)
    assert chunks(schedule) == [1, 3, 5, 7]
    assert schedule.credit(9, 2 * CHUNK)  # no place is free, but this one needs none
    assert chunks(schedule) == [9, 9]
    assert schedule.credit(3, CHUNK)
    assert chunks(schedule) == [11]
    assert not schedule.credit(99, 5)


def test_h27_what_is_given_up_leaves_its_place_and_its_abort_goes_before_the_next(schedule):
    for transfer in range(1, 13, 2):
        schedule.add(transfer, LARGE, ignore, None)
    assert len(chunks(schedule)) == MAX_STAGED
    schedule.owed += [encode_bulk(CREDIT, 50, 1)] * MAX_ALONG
    schedule.owed.append(encode_bulk(ABORT, 3, 0, 8))
    known, outgoing = schedule.remove(3, GIVEN_UP)
    assert known
    assert outgoing.error is GIVEN_UP
    assert step(schedule)[0] == [(CREDIT, 50)] * MAX_ALONG
    assert step(schedule)[0] == [(ABORT, 3), (START, 9), (DATA, 9)]


@pytest.mark.parametrize("size", [CHUNK, 2 * CHUNK])
def test_h27_a_transfer_given_up_while_its_bytes_go_ends_when_they_have_gone(schedule, size):
    schedule.add(1, LARGE[:size], ignore, size)
    assert schedule.next(0)
    assert schedule.remove(1, GIVEN_UP) == (True, None)
    ended = schedule.sent(0, 0.0)
    assert ended.error is GIVEN_UP
    assert not schedule.next(0)
    assert schedule.clear() == []


def test_h27_the_end_leaves_every_transfer_to_be_told_once(schedule):
    for transfer in range(1, 13, 2):
        schedule.add(transfer, LARGE, ignore, None)
    schedule.next(0)
    schedule.remove(1, GIVEN_UP)  # the one whose bytes go
    assert sorted(outgoing.transfer_id for outgoing in schedule.clear()) == [1, 3, 5, 7, 9, 11]
    assert schedule.clear() == []


def test_an_id_is_used_once(schedule):
    schedule.add(1, LARGE, ignore, None)
    with pytest.raises(UsageError, match="under way"):
        schedule.add(1, LARGE, ignore, None)
    table = ReceiveTable()
    table.expect(1, memoryview(bytearray(4)), ignore)
    with pytest.raises(UsageError, match="expected already"):
        table.expect(1, memoryview(bytearray(4)), ignore)


def test_h25_a_credit_beyond_the_total_is_refused_and_the_transfer_still_ends(schedule):
    with pytest.raises(PeerError, match="a credit of 9 bytes"):
        schedule.add(1, LARGE[:8], ignore, 9)
    assert [outgoing.transfer_id for outgoing in schedule.clear()] == [1]


@given(
    sizes=st.lists(st.integers(0, 5 * CHUNK), min_size=1, max_size=12),
    grants=st.lists(st.tuples(st.integers(0, 11), st.integers(0, 5)), max_size=30),
)
def test_every_transfer_goes_whole_in_order_and_under_its_credit(sizes, grants):
    """Against an oracle that only counts: bytes sent never pass the credit, and everything goes once there is credit for all."""
    schedule, sent, granted, ended = SendSchedule(), {}, {}, []

    def drain():
        while spans := schedule.next(0):
            for span in spans:
                head = decode_bulk(span[:24]) if isinstance(span, bytes) else None
                if head is not None and head.kind == DATA:
                    assert head.value == sent.get(head.transfer_id, 0)
                    sent[head.transfer_id] = head.value + head.rest
                    assert sent[head.transfer_id] <= granted[head.transfer_id]
            if (outgoing := schedule.sent(0, 0.0)) is not None:
                ended.append(outgoing.transfer_id)

    for number, size in enumerate(sizes, 1):
        granted[number] = min(CHUNK, size)
        schedule.add(number, LARGE[:size], ignore, None)
    drain()
    for index, count in grants:
        number = index % len(sizes) + 1
        credit = min(count * CHUNK, sizes[number - 1])
        granted[number] = max(granted[number], credit)
        schedule.credit(number, credit)
        drain()
    for number, size in enumerate(sizes, 1):
        granted[number] = size
        schedule.credit(number, size)
    drain()
    assert sorted(ended) == list(range(1, len(sizes) + 1))
    assert [sent.get(number, 0) for number in range(1, len(sizes) + 1)] == sizes
    assert schedule.clear() == []
    assert not schedule._staged
    assert not schedule._waiting


# -- receiving ---------------------------------------------------------------------------------------------------------------------


def head(kind, transfer, value, rest=0):
    return BulkHeader(kind, transfer, value, rest)


def land(table, transfer, offset, data, between=lambda: None):
    """A DATA of `data`; `between` happens while it is being received."""
    frame = head(DATA, transfer, offset, len(data))
    incoming, place = table.data(0, frame)
    between()
    place[:] = data
    return table.landed(incoming, frame, place)


@pytest.fixture
def table():
    return ReceiveTable()


def test_h27_memory_is_untouched_after_the_end_of_a_transfer_given_up_while_it_arrives(table):
    table.expect(1, memoryview(bytearray(4)), ignore)
    table.start(head(START, 1, 4))
    told = []
    ended = land(table, 1, 0, b"abcd", between=lambda: told.append(table.remove(1, GIVEN_UP)[1]))
    assert told == [False]
    assert ended.error is GIVEN_UP
    assert table.clear() == []


def test_h27_the_end_tells_a_transfer_given_up_while_it_arrives(table):
    table.expect(1, memoryview(bytearray(4)), ignore)
    table.start(head(START, 1, 4))
    table.data(0, head(DATA, 1, 0, 4))
    table.remove(1, GIVEN_UP)
    assert [incoming.error for incoming in table.clear()] == [GIVEN_UP]


def test_a_destination_that_comes_while_the_bytes_do_gets_them(table):
    room = bytearray(6)
    table.start(head(START, 1, 6))
    assert land(table, 1, 0, b"abcdef", between=lambda: table.expect(1, memoryview(room), ignore)) is None
    assert table.complete(head(COMPLETE, 1, 6)) is not None
    assert room == b"abcdef"


def test_h25_refused_transfers_take_no_place(table):
    """Many more than may be staged, each refused here while it was on its way."""
    for transfer in range(1, 100):
        table.refuse(transfer)
        table.start(head(START, transfer, 2 * CHUNK))
        assert land(table, transfer, 0, bytes(CHUNK)) is None
        assert table.complete(head(COMPLETE, transfer, 2 * CHUNK)) is None
    assert not table._table
    assert not table._unplaced
    assert not table._refused
    assert len(table._pool) <= MAX_POOL


def test_h25_memory_of_refusals_is_bounded(table):
    for transfer in range(1, 2 * MAX_REFUSED):
        table.refuse(transfer)
    assert len(table._refused) == MAX_REFUSED


def test_staging_blocks_are_used_again(table):
    for transfer in range(1, 6):
        table.start(head(START, transfer, CHUNK))
        land(table, transfer, 0, bytes([transfer]) * CHUNK)
        room = bytearray(CHUNK)
        table.expect(transfer, memoryview(room), ignore)
        assert room == bytes([transfer]) * CHUNK
    assert len(table._pool) == 1
