"""Transfers that run ahead of their credit: as far as the link is long, within what the receiver stages (H02, H25)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.link.lanes import Ends, connected, facing
from tests.link.test_schedule import chunks, head, ignore, land

import remora
from remora.errors import DeviceError, PeerError
from remora.link.incoming import MAX_POOL, ReceiveTable
from remora.link.outgoing import SendSchedule
from remora.session.transfers import FREE, MAX_STAGED, MIN_STAGING
from remora.session.window import SAMPLE
from remora.testing.proxy import DelayProxy
from remora.testing.server import ServerProcess
from remora.wire.bulk import CHUNK, COMPLETE, DATA, START, decode_bulk

MIB = 1 << 20
BUDGET = 24 * MIB
LARGE = memoryview(bytes(40 * CHUNK))
GIVEN_UP = DeviceError("given up")


def measured(window, chunks_ahead):
    """Let a window have measured that the link holds this many chunks."""
    window.round_trip(chunks_ahead + 0.5)
    for count in range(SAMPLE // CHUNK + 1):
        window.sent(CHUNK, float(count))
    window.pause()


@pytest.fixture
def schedule():
    schedule = SendSchedule(BUDGET)
    measured(schedule.early, 16)
    return schedule


def test_h02_staged_transfers_share_the_budget_and_each_has_its_first_chunk(schedule):
    """17 chunks for the first, what the budget has left for the second, one each for the others; the fifth waits."""
    for transfer in range(1, 11, 2):
        schedule.add(transfer, LARGE, ignore, None)
    order = chunks(schedule)
    assert [order.count(transfer) for transfer in range(1, 11, 2)] == [17, 5, 1, 1, 0]
    assert len(order) * CHUNK == BUDGET


@pytest.mark.parametrize("end", ["credit", "abort"])
def test_h02_what_is_placed_or_given_up_gives_its_room_to_the_next(schedule, end):
    for transfer in range(1, 11, 2):
        schedule.add(transfer, LARGE, ignore, None)
    chunks(schedule)
    if end == "credit":
        assert schedule.credit(1, 17 * CHUNK)
    else:
        assert schedule.remove(1, GIVEN_UP)[0]
    order = chunks(schedule)
    assert order == [9] * 17


def test_a_pause_is_noted_by_the_schedule(schedule):
    """What was sent before a pause and after it is not taken for one stream."""
    schedule.add(1, LARGE, ignore, LARGE.nbytes)
    before = schedule.early.size
    for count in range(3):
        assert schedule.next(0)
        schedule.sent(0, float(count))
    assert schedule.early._since is not None
    chunks(schedule)
    assert schedule.early._since is None
    assert schedule.early.size == before  # `chunks` lets no time pass


# -- receiving ---------------------------------------------------------------------------------------------------------------------


def test_h25_staged_bytes_stay_within_the_budget():
    table = ReceiveTable(BUDGET)
    table.start(head(START, 1, 40 * CHUNK))
    for chunk in range(21):
        land(table, 1, chunk * CHUNK, bytes(CHUNK))
    for transfer in (3, 5, 7):
        table.start(head(START, transfer, 2 * CHUNK))
        land(table, transfer, 0, bytes(CHUNK))
        with pytest.raises(PeerError, match="2097152 bytes came under a credit of 1048576"):
            table.data(0, head(DATA, transfer, CHUNK, CHUNK))
    with pytest.raises(PeerError, match="bytes came under a credit of"):
        table.data(0, head(DATA, 1, 21 * CHUNK, CHUNK))


@pytest.mark.parametrize("end", ["placed", "given up"])
def test_h25_room_of_a_transfer_that_is_staged_no_more_is_for_others_and_its_memory_too(end):
    table, room = ReceiveTable(BUDGET), bytearray(21 * CHUNK)
    for transfer in range(1, 6):
        table.start(head(START, transfer, 21 * CHUNK))
        for chunk in range(21):
            land(table, transfer, chunk * CHUNK, bytes([transfer]) * CHUNK)
        if end == "placed":
            table.expect(transfer, memoryview(room), ignore)
            assert room == bytes([transfer]) * len(room)
            assert table.complete(head(COMPLETE, transfer, 21 * CHUNK)) is not None
        else:
            table.remove(transfer, GIVEN_UP)
        assert len(table._pool) == MAX_POOL
    assert table._spare == BUDGET - MIN_STAGING
    assert not table._table


def test_staging_blocks_in_use_and_kept_are_bounded():
    """However transfers come and go, no more blocks exist than the budget and the pool hold."""
    table, live = ReceiveTable(BUDGET), {}
    for transfer in range(1, 40):
        table.start(head(START, transfer, 6 * CHUNK))
        for chunk in range(5):
            land(table, transfer, chunk * CHUNK, bytes(CHUNK))
        live[transfer] = None
        if len(live) == MAX_STAGED:
            oldest = next(iter(live))
            del live[oldest]
            table.expect(oldest, memoryview(bytearray(6 * CHUNK)), ignore)
        held = sum(len(block) for incoming in table._table.values() for _, block in incoming.staged)
        assert held <= BUDGET
        assert len(table._pool) <= MAX_POOL


@given(
    transfers=st.lists(st.tuples(st.integers(0, 30 * CHUNK), st.integers(0, 6)), min_size=1, max_size=12),
    ahead=st.integers(0, 40),
)
def test_h25_what_a_sender_may_send_a_receiver_may_stage(transfers, ahead):
    """Both sides' tables, facing each other without a wire: credit for the n-th oldest comes after every few chunks."""
    schedule, table = SendSchedule(BUDGET), ReceiveTable(BUDGET)
    measured(schedule.early, ahead)
    owed, ended = [], []

    def carry():
        """One send, taken by the other side at once; False when there was nothing to send."""
        spans = schedule.next(0)
        for span in spans:
            take(span)
        outgoing = schedule.sent(0, 0.0)
        if outgoing is not None:
            ended.append(outgoing.transfer_id)
        return bool(spans)

    places = {}

    def take(span):
        if not isinstance(span, bytes):
            frame = places.pop("data")
            incoming, place = table.data(0, frame)
            place[:] = span
            assert table.landed(incoming, frame, place) is None
            return
        frame = decode_bulk(span)
        if frame.kind == DATA:
            places["data"] = frame
        else:
            {START: table.start, COMPLETE: table.complete}[frame.kind](frame)

    for number, (size, _) in enumerate(transfers, 1):
        schedule.add(number, LARGE[:size], ignore, None)
        owed.append(number)
    while owed:
        _, pace = transfers[owed[0] - 1]
        for _ in range(pace):
            carry()
        number = owed.pop(pace % len(owed))
        size = transfers[number - 1][0]
        table.expect(number, memoryview(bytearray(size)), ignore)
        schedule.credit(number, size)
    while carry():
        pass
    assert sorted(ended) == list(range(1, len(transfers) + 1))
    assert not table._table
    assert (schedule._spare, table._spare) == (BUDGET - MIN_STAGING,) * 2


# -- lanes and sessions ------------------------------------------------------------------------------------------------------------


def test_h02_a_lane_sends_ahead_what_it_has_measured_and_the_other_stages_it():
    ends, data, room = Ends(), bytes(range(256)) * (12 * CHUNK // 256), bytearray(12 * CHUNK)
    with connected() as carriers, facing(carriers, stages=BUDGET, peer_stages=BUDGET) as (near, far, broken):
        measured(near._outgoing.early, 8)
        near.send(1, memoryview(data), ends.of("sent"))
        far.send(2, memoryview(b"x"), ends.of("marker sent"))
        near.expect(2, memoryview(bytearray(1)), ends.of("marker"))
        ends.wait("marker")
        far.expect(1, memoryview(room), ends.of("arrived"))
        assert ends.wait("arrived", "sent") == [[None], [None]]
        assert room == data
        assert not broken


def test_h02_an_upload_over_a_long_link_learns_to_run_ahead():
    """Over 40 ms there and back: the window opens with the first upload, and closes the gap of later ones."""
    with (
        ServerProcess() as server,
        DelayProxy(server.addresses[0], 0.02) as proxy,
        remora.open(f"remote-{proxy.address}") as device,
    ):
        bulk = device.host.link.bulk
        assert bulk._outgoing.early.size == FREE
        data = bytes(range(256)) * (24 * MIB // 256)
        buffer = device.upload(data)
        early = bulk._outgoing.early
        for _ in range(40):  # it asks for the round trip once a second, while bytes go out
            device.queue.update(buffer, data).wait(30)
            if early._round_trips and early.size > FREE:
                break
        assert min(early._round_trips) >= 0.04
        assert FREE < early.size <= 21 * MIB
        assert bytes(buffer.read(timeout=30)) == data


def test_h07_staging_stays_within_a_small_quota_of_memory():
    with ServerProcess(flags=("--session-memory", "8MiB")) as server, remora.open(server.uri) as device:
        assert device.host.link.session.accepted.staging == 8 * MIB
    with ServerProcess(flags=("--session-memory", "1MiB")) as server, remora.open(server.uri) as device:
        assert device.host.link.session.accepted.staging == MIN_STAGING
