"""Transfers by a loan: one side lends memory that the other maps, and the other copies (H20, H32)."""

import contextlib
import os
import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.link.lanes import Ends, connected

from remora.errors import BrokenError, PeerError
from remora.hal.copying import copy_memory
from remora.link.borrowing import Borrower, Loan
from remora.link.bulk import BulkLane
from remora.link.shared_memory import SharedSegment
from remora.wire.bulk import CHUNK, CREDIT, GONE, MIN_LENT, RETURN, START, encode_bulk, encode_lend

LONG = 20.0
PIECE = 1 << 20
SIZE = 3 * PIECE + 5


@pytest.fixture(autouse=True, params=[0, 2], ids=["alone", "helped"])
def several_pieces(request, monkeypatch):
    """A transfer of SIZE is four of them, and with helpers each piece is copied by three threads."""
    monkeypatch.setattr("remora.link.borrowing.PIECE", PIECE // (request.param + 1))
    monkeypatch.setattr("remora.link.borrowing.helpers_here", lambda: request.param)
    monkeypatch.setattr("remora.hal.copy_team.WIDE", 64 << 10)


class Pair:
    """A lane that lends parts of a segment, and one that borrows them. `refuses` is whether the segment cannot be mapped."""

    def __init__(self, carriers, size=4 * SIZE):
        fd = os.memfd_create("loans", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            self.memory = SharedSegment(fd, size).part(0, size)
            self.segment = SharedSegment(fd, size)
        finally:
            os.close(fd)
        self.refuses = False
        self.asked = []
        self.forgotten = []
        self.gate = threading.Event()
        self.gate.set()
        self.broken = []
        self.ends = Ends()
        self.lender = BulkLane([carriers[0]], self.broken.append, "lender")
        self.borrower = BulkLane([carriers[1]], self.broken.append, "borrower")
        self.borrower.borrow_by(Borrower(self._segment, lambda: 0), self.forgotten.append)
        self.lender.start()
        self.borrower.start()

    def _segment(self, number):
        self.asked.append(number)
        assert self.gate.wait(LONG)
        return None if self.refuses else self.segment

    def lend(self, transfer_id, offset, size, declined=lambda: None):
        self.lender.lend(transfer_id, 1, offset, Loan(size, self.ends.of(("lent", transfer_id)), declined))

    def end(self):
        over = BrokenError("the test is over")
        for lane in (self.lender, self.borrower):
            for strand in lane._strands:
                strand.carrier.fail(over)
            lane.fail(over)
        for lane in (self.lender, self.borrower):
            lane.join()


@contextlib.contextmanager
def paired():
    with connected() as carriers:
        pair = Pair(carriers)
        yield pair
        pair.gate.set()
        pair.end()


@pytest.fixture
def pair():
    with paired() as pair:
        yield pair


def data_of(size, seed=0):
    return random.Random(seed).randbytes(size)


@pytest.mark.parametrize("size", [MIN_LENT, PIECE, SIZE])
def test_h32_an_upload_is_copied_into_the_memory_that_is_lent(pair, size):
    data = data_of(size)
    pair.borrower.send(1, memoryview(data), pair.ends.of("sent"), lent=True)
    pair.lend(1, 4096, size)
    assert pair.ends.wait("sent", ("lent", 1), timeout=LONG) == [[None], [None]]
    assert pair.memory[4096 : 4096 + size] == data
    assert not any(pair.memory[:4096])
    assert not any(pair.memory[4096 + size :])
    assert pair.borrower.bytes_sent < 100
    assert not pair.broken


@pytest.mark.parametrize("size", [MIN_LENT, PIECE, SIZE])
def test_h32_a_download_is_copied_out_of_the_memory_that_is_lent(pair, size):
    data, into = data_of(size), bytearray(size)
    pair.memory[8 : 8 + size] = data
    pair.borrower.expect(1, memoryview(into), pair.ends.of("arrived"))
    pair.lend(1, 8, size)
    assert pair.ends.wait("arrived", ("lent", 1), timeout=LONG) == [[None], [None]]
    assert into == data
    assert pair.lender.bytes_sent < 100
    assert not pair.lender._credits
    assert not pair.broken


@pytest.mark.parametrize("way", ["up", "down"])
def test_h32_what_cannot_be_mapped_travels(pair, way):
    """The lender hears that nothing was done, and goes on as without shared memory."""
    pair.refuses = True
    data, room = data_of(SIZE), bytearray(SIZE)
    if way == "up":
        pair.borrower.send(1, memoryview(data), pair.ends.of("sent"), lent=True)
        declined = lambda: pair.lender.expect(1, memoryview(room), pair.ends.of("arrived"))  # noqa: E731
    else:
        pair.borrower.expect(1, memoryview(room), pair.ends.of("arrived"))
        declined = lambda: pair.lender.send(1, memoryview(data), pair.ends.of("sent"))  # noqa: E731
    pair.lend(1, 0, SIZE, declined)
    assert pair.ends.wait("sent", "arrived", timeout=LONG) == [[None], [None]]
    assert room == data
    assert ("lent", 1) not in pair.ends.results
    assert not pair.broken
    assert not pair.lender._credits


def test_h32_an_upload_that_waits_for_a_loan_sends_nothing_and_goes_with_credit(pair):
    data, room = data_of(SIZE), bytearray(SIZE)
    pair.borrower.send(1, memoryview(data), pair.ends.of("sent"), lent=True)
    pair.borrower.send(3, memoryview(b"before"), pair.ends.of("small"))
    small = bytearray(6)
    pair.lender.expect(3, memoryview(small), pair.ends.of("small arrived"))
    pair.ends.wait("small arrived", timeout=LONG)
    assert pair.lender.bytes_received < 1000
    pair.lender.expect(1, memoryview(room), pair.ends.of("arrived"))
    assert pair.ends.wait("sent", "arrived", timeout=LONG) == [[None], [None]]
    assert (room, small) == (data, b"before")


def test_h02_a_small_loan_passes_a_large_one(pair):
    """The thread takes a piece of each in turn."""
    large, small = memoryview(bytes(SIZE)), memoryview(data_of(MIN_LENT))
    order = []
    pair.gate.clear()
    pair.borrower.send(1, large, lambda error: order.append(("large", error)), lent=True)
    pair.borrower.send(3, small, lambda error: order.append(("small", error)), lent=True)
    pair.lend(1, 0, SIZE)
    pair.lend(3, 2 * SIZE, MIN_LENT)
    pair.borrower.expect(5, memoryview(bytearray(1)), pair.ends.of("behind"))
    pair.lender.send(5, memoryview(b"!"), pair.ends.of("sent"))
    pair.ends.wait("behind", timeout=LONG)  # both loans are there
    pair.gate.set()
    pair.ends.wait(("lent", 1), ("lent", 3), timeout=LONG)
    assert order == [("small", None), ("large", None)]


def test_h02_a_transfer_that_travels_passes_a_loan_that_waits(pair):
    pair.gate.clear()
    pair.borrower.send(1, memoryview(bytes(SIZE)), pair.ends.of("sent"), lent=True)
    pair.lend(1, 0, SIZE)
    data, room = data_of(2 * CHUNK), bytearray(2 * CHUNK)
    pair.borrower.send(3, memoryview(data), pair.ends.of("other sent"))
    pair.lender.expect(3, memoryview(room), pair.ends.of("other arrived"))
    assert pair.ends.wait("other sent", "other arrived", timeout=LONG) == [[None], [None]]
    assert room == data
    assert "sent" not in pair.ends.results


@pytest.mark.parametrize("which", ["lender", "borrower"])
def test_h05_a_lane_that_fails_ends_both_ends_of_a_loan_once(pair, which):
    """The borrower's end comes from the thread that copies, when it does not touch the memory any more."""
    pair.gate.clear()
    pair.borrower.send(1, memoryview(bytes(SIZE)), pair.ends.of("sent"), lent=True)
    pair.borrower.expect(3, memoryview(bytearray(SIZE)), pair.ends.of("arrived"))
    pair.lend(1, 0, SIZE)
    pair.lend(3, SIZE, SIZE)
    while not pair.asked:
        threading.Event().wait(0.001)
    cause = BrokenError("the cable")
    lane = getattr(pair, which)
    for strand in lane._strands:
        strand.carrier.fail(cause)
    lane.fail(cause)
    pair.ends.wait(("lent", 1), ("lent", 3), timeout=LONG)
    for strand in pair.borrower._strands:
        strand.carrier.fail(cause)
    pair.borrower.fail(cause)
    assert "sent" not in pair.ends.results
    pair.gate.set()
    results = pair.ends.wait("sent", "arrived", ("lent", 1), ("lent", 3), timeout=LONG)
    assert all(len(ends) == 1 and isinstance(ends[0], BrokenError) for ends in results)


def test_h05_the_peer_may_abort_what_it_has_lent_before_it_begins(pair):
    pair.borrower.send(1, memoryview(bytes(SIZE)), pair.ends.of("sent"), lent=True)
    pair.lender.abort(1, BrokenError("never"))
    ((error,),) = pair.ends.wait("sent", timeout=LONG)
    assert "never" in str(error)
    assert not pair.asked


def test_h20_segments_that_are_gone_are_forgotten(pair):
    pair.lender.tell_gone([3, 4])
    pair.borrower.expect(1, memoryview(bytearray(1)), pair.ends.of("arrived"))
    pair.lender.send(1, memoryview(b"!"), pair.ends.of("sent"))
    pair.ends.wait("arrived", timeout=LONG)
    assert pair.forgotten == [3, 4]


# -- a peer that breaks the rules -------------------------------------------------------------------------------------------------


def fails(carrier_of_lane, peer, data, *, borrows, prepare=lambda lane, ends: None):
    """What a lane fails of when its peer sends this."""
    broken, ends, failed = [], Ends(), threading.Event()

    def fail(error):
        broken.append(error)
        failed.set()

    lane = BulkLane([carrier_of_lane], fail, "lane")
    if borrows:
        lane.borrow_by(Borrower(lambda number: None, lambda: 0), lambda number: None)
    lane.start()
    prepare(lane, ends)
    peer.send_all(data, timeout=LONG)
    assert failed.wait(LONG)
    carrier_of_lane.fail(broken[0])
    lane.fail(broken[0])
    lane.join()
    assert isinstance(broken[0], PeerError)
    return str(broken[0]), ends


SENT = memoryview(bytes(SIZE))
BAD = [
    (encode_lend(1, 1, 0, SIZE), False, "a side that borrows nothing"),
    (encode_bulk(GONE, 1, 0), False, "gone, and was never lent"),
    (encode_lend(7, 1, 0, SIZE), True, "the transfer 7, which waits for no such loan"),
    (encode_lend(1, 1, 0, SIZE - 1), True, "for the transfer 1, which waits for no such loan"),
    (encode_lend(3, 1, 0, SIZE), True, "for the transfer 3, which waits for no such loan"),
    (encode_bulk(START, 5, SIZE) + encode_lend(5, 1, 0, SIZE), True, "for the transfer 5, which waits for no such loan"),
    (encode_bulk(RETURN, 1, SIZE), False, "which were not lent"),
    (encode_bulk(RETURN, 9, MIN_LENT - 1), False, "which were not lent"),
    (encode_bulk(RETURN, 9, 0) * 2, False, "which were not lent"),
]


@pytest.mark.parametrize(("data", "borrows", "message"), BAD)
def test_h25_a_loan_that_may_not_come_fails_the_lane(data, borrows, message):
    def prepare(lane, ends):
        lane.send(1, SENT, ends.of("sent"), lent=True)
        lane.send(3, SENT, ends.of("running"))
        lane.expect(5, memoryview(bytearray(SIZE)), ends.of("arriving"))
        if not borrows:
            lane.lend(9, 1, 0, Loan(MIN_LENT, ends.of("lent"), lambda: None))

    with connected() as (near, far):
        text, ends = fails(near, far, data, borrows=borrows, prepare=prepare)
    assert message in text
    for key in ("sent", "running", "arriving"):
        (error,) = ends.results[key]
        assert error is not None


def test_h25_a_loan_beyond_its_segment_fails_the_lane(pair):
    pair.borrower.send(1, SENT, pair.ends.of("sent"), lent=True)
    pair.lend(1, len(pair.memory) - SIZE + 1, SIZE)
    ((error,),) = pair.ends.wait("sent", timeout=LONG)
    assert "are not inside a segment" in str(error)
    assert isinstance(pair.broken[0], PeerError)
    assert bytes(pair.memory) == bytes(len(pair.memory))


def test_h25_an_early_credit_is_no_loan(pair):
    """CREDIT for a transfer that waits lets it go as bytes; the lender then gets what it expects."""
    assert encode_bulk(CREDIT, 1, SIZE)[4] == CREDIT
    room = bytearray(SIZE)
    pair.lender.expect(1, memoryview(room), pair.ends.of("arrived"))
    data = data_of(SIZE)
    pair.borrower.send(1, memoryview(data), pair.ends.of("sent"), lent=True)
    assert pair.ends.wait("arrived", "sent", timeout=LONG) == [[None], [None]]
    assert room == data


# -- any mix ----------------------------------------------------------------------------------------------------------------------

moves = st.lists(
    st.tuples(st.sampled_from(["up", "down"]), st.sampled_from(["lent", "declined", "bytes"]), st.integers(MIN_LENT, 3 * MIN_LENT)),
    min_size=1,
    max_size=8,
)


@given(moves)
@settings(max_examples=20)
def test_h02_h32_loans_and_bytes_mix_in_any_order(plan):
    with paired() as pair:
        real, checks, keys, offset = pair._segment, [], [], 0
        declines = set()
        pair.borrower._borrower._segment = lambda number: None if number in declines else real(number)
        for index, (way, how, size) in enumerate(plan):
            number, data, room = 2 * index + 1, data_of(size, index), bytearray(size)
            start, offset, segment = offset, offset + size, 100 + number
            sent, arrived = pair.ends.of(("sent", number)), pair.ends.of(("arrived", number))
            if how == "declined":
                declines.add(segment)
            if way == "up":
                pair.borrower.send(number, memoryview(data), sent, lent=True)
                stream = lambda number=number, room=room, done=arrived: pair.lender.expect(number, memoryview(room), done)  # noqa: E731
                checks.append((data, pair.memory[start:offset] if how == "lent" else room))
            else:
                pair.memory[start:offset] = data
                pair.borrower.expect(number, memoryview(room), arrived)
                stream = lambda number=number, data=data, done=sent: pair.lender.send(number, memoryview(data), done)  # noqa: E731
                checks.append((data, room))
            if how == "bytes":
                stream()
            else:
                done = arrived if way == "up" else sent
                pair.lender.lend(number, segment, start, Loan(size, done, stream))
            keys += [("sent", number), ("arrived", number)]
        assert pair.ends.wait(*keys, timeout=LONG) == [[None]] * len(keys)
        assert all(data == place for data, place in checks)
        assert not pair.broken
        assert not pair.lender._credits
        assert not pair.lender._loans


def test_copies_are_exact_and_take_read_only_sources():
    source, target = data_of(100_001), bytearray(100_003)
    copy_memory(memoryview(target)[1:-1], memoryview(source))
    assert target == b"\0" + source + b"\0"
    copy_memory(memoryview(target), memoryview(b""))
