"""Invariants 10, 11 and 14 to 16 of a remote HAL: credit, chunks, reservations, readiness, and messages that come too early."""

import itertools
import os
import threading
from time import monotonic

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.invariants.steps import bytes_of, deliver, frames_of, upload
from tests.link.lanes import Ends, connected
from tests.remote.processes import go_on, stop
from tests.remote.raw import raw_client

import remora
from remora.carriers import connect, listen
from remora.errors import BrokenError, BusyError, PeerError
from remora.link.bulk import BulkLane
from remora.session.state import Lane
from remora.session.transfers import MAX_STAGED, ChunkTracker, SendWindow
from remora.testing.cts.carrier_factory import append_all, fill, pattern, read_exactly
from remora.testing.cts.hal_factory import LONG, SHORT, background
from remora.wire.bulk import ABORT, BULK_HEADER, CHUNK, COMPLETE, CREDIT, DATA, START, decode_bulk, encode_bulk

SCHEMES = ("loopback", "tcp", "unix", "shm")
numbers = itertools.count()


@pytest.fixture(params=SCHEMES)
def pair(request, tmp_path):
    """Both ends of a connection, active."""
    address = {
        "loopback": "loopback://",
        "tcp": "tcp://127.0.0.1:0",
        "unix": f"unix://{tmp_path}/{next(numbers)}",
        "shm": f"shm://{tmp_path}/{next(numbers)}",
    }[request.param]
    with listen(address) as listener, connect(listener.address) as near, listener.accept(LONG) as far:
        near.activate()
        far.activate()
        yield near, far


# -- 10 -----------------------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=100)
@given(grants=st.lists(st.integers(0, 9), max_size=12), repeats=st.integers(1, 3), chunks=st.integers(1, 9))
def test_invariant_10_credit_is_cumulative_and_idempotent(grants, repeats, chunks):
    """In any order, repeated or old: what may be sent is the greatest grant."""
    window, sent = SendWindow(chunks * CHUNK), 0
    greatest = window.granted
    for grant in (min(each, chunks) * CHUNK for each in grants):
        greatest = max(greatest, grant)
        for _ in range(repeats):
            window.credit(grant)
        while (size := window.next_chunk()[1]) > 0:
            window.send(size)
            sent += size
        assert sent == window.sent == min(greatest, chunks * CHUNK)


@pytest.fixture
def sender():
    """(a bulk lane, the other end of its carrier as bare bytes, how its transfers ended)"""
    broken, ends = [], Ends()
    with connected() as (near, far):
        lane = BulkLane([near], broken.append, "near")
        lane.start()
        yield lane, far, ends
        over = BrokenError("the test is over")
        near.fail(over)
        lane.fail(over)
        lane.join()


def next_frame(carrier):
    """(kind, transfer, value) of the next bulk frame; what a DATA carries is read along."""
    frame = decode_bulk(read_exactly_into(carrier, BULK_HEADER.size))
    if frame.rest:
        read_exactly_into(carrier, frame.rest)
    return frame.kind, frame.transfer_id, frame.value


def read_exactly_into(carrier, size):
    room = bytearray(size)
    view = memoryview(room)
    while view:
        count = carrier.receive_into(view, LONG)
        assert count, "nothing came"
        view = view[count:]
    return room


@pytest.mark.parametrize("early", [False, True], ids=["after START", "before the transfer"])
def test_invariant_10_old_and_repeated_credit_sends_nothing_twice(sender, early):
    """A CREDIT that comes before its transfer begins counts as well: there is nothing to send again after START."""
    lane, far, ends = sender
    data, granted = memoryview(pattern(6 * CHUNK)), [4 * CHUNK, 2 * CHUNK, 4 * CHUNK, 3 * CHUNK]
    frames = [encode_bulk(CREDIT, 1, value) for value in granted]
    if early:
        far.send_all(*frames, timeout=LONG)
        far.send_all(encode_bulk(CREDIT, 2, CHUNK), timeout=LONG)
        lane.send(2, data[:CHUNK], ends.of(2))
        assert [next_frame(far)[:2] for _ in range(3)] == [(START, 2), (DATA, 2), (COMPLETE, 2)]  # both credits were read
        lane.send(1, data, ends.of(1))
    else:
        lane.send(1, data, ends.of(1))
        assert next_frame(far)[:2] == (START, 1)
        far.send_all(*frames, timeout=LONG)
    expected = [(DATA, 1, offset * CHUNK) for offset in range(4)]
    assert [next_frame(far) for _ in range(4 + early)] == [(START, 1, len(data))] * early + expected
    assert far.receive_into(bytearray(1), SHORT) == 0
    far.send_all(encode_bulk(CREDIT, 1, len(data)), timeout=LONG)
    assert [next_frame(far) for _ in range(3)] == [(DATA, 1, 4 * CHUNK), (DATA, 1, 5 * CHUNK), (COMPLETE, 1, len(data))]
    assert ends.wait(1) == [[None]]


def test_invariant_10_credit_comes_when_bytes_are_taken_and_stays_owed_while_it_cannot_go(sender):
    """The receiver grants with the destination, not with arrival; a full carrier delays the grant and loses none."""
    lane, far, ends = sender
    lane.send(2, memoryview(bytes(CHUNK)), ends.of("out"))  # more than the carrier holds: its sender is stuck
    size = 3 * CHUNK
    far.send_all(encode_bulk(START, 1, size), encode_bulk(DATA, 1, 0, CHUNK), pattern(CHUNK), timeout=LONG)
    rooms = [bytearray(size), bytearray(CHUNK)]
    lane.expect(1, memoryview(rooms[0]), ends.of("in"))
    lane.expect(3, memoryview(rooms[1]), ends.of("never"))
    seen = [next_frame(far) for _ in range(5)]
    assert [frame for frame in seen if frame[1] == 2] == [(START, 2, CHUNK), (DATA, 2, 0), (COMPLETE, 2, CHUNK)]
    assert sorted(frame for frame in seen if frame[1] != 2) == [(CREDIT, 1, size), (CREDIT, 3, CHUNK)]
    assert ends.wait("out") == [[None]]


# -- 11 -----------------------------------------------------------------------------------------------------------------------

TAIL = 12_345


@settings(deadline=None, max_examples=100)
@given(order=st.permutations(range(5)), wrong=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8))
def test_invariant_11_chunks_lie_on_a_grid_in_any_order_each_once(order, wrong):
    """Off the grid, short in the middle, beyond the end, twice: refused, and nothing is counted."""
    total = 4 * CHUNK + TAIL
    tracker = ChunkTracker(total)
    tracker.grant_all()
    taken = []
    for number in order:
        for place, kind in wrong:
            bad = [
                (place * CHUNK + 1, CHUNK),
                (place * CHUNK, CHUNK - 1),
                (place * CHUNK, CHUNK + 1),
                (4 * CHUNK, CHUNK),
                (total, TAIL),
                (taken[0] * CHUNK, min(CHUNK, total - taken[0] * CHUNK)) if taken else (5 * CHUNK, 0),
            ][kind]
            before = tracker.received
            with pytest.raises(PeerError):
                tracker.take(*bad)
            assert tracker.received == before
        assert not tracker.complete
        tracker.take(number * CHUNK, min(CHUNK, total - number * CHUNK))
        taken.append(number)
    assert tracker.complete


def test_invariant_11_a_server_takes_chunks_in_any_order(raw):
    size = 3 * CHUNK + TAIL
    data, buffer = os.urandom(size), raw.session.allocate(0, size)
    epoch = upload(raw, 0, buffer, size, 1)
    raw.send()
    raw.read_bulk(bytearray(BULK_HEADER.size))  # CREDIT for all of it
    start, *chunks, end = frames_of(1, data)
    raw.carriers[Lane.BULK].send_all(start, *(chunks[number] for number in (2, 0, 3, 1)), end, timeout=LONG)
    assert raw.advanced(0, epoch).failure is None
    assert bytes_of(raw, 0, buffer, size) == data


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda start, chunks, end: [start, chunks[0], end], "COMPLETE before the last byte"),
        (lambda start, chunks, end: [start, chunks[0], chunks[0], chunks[1]], "came twice"),
        (lambda start, chunks, end: [start, encode_bulk(DATA, 1, 0, 100) + bytes(100)], "does not fit"),
        (lambda start, chunks, end: [start, encode_bulk(DATA, 1, 8, CHUNK) + bytes(CHUNK)], "with the value 8"),
        (lambda start, chunks, end: [start, start], "started twice"),
        (lambda start, chunks, end: [*chunks, end], "DATA before START"),
    ],
    ids=["early COMPLETE", "twice", "short", "off the grid", "two STARTs", "no START"],
)
def test_invariant_11_a_wrong_chunk_ends_the_session_with_the_reason(raw, wrong, message):
    size = CHUNK + TAIL
    upload(raw, 0, raw.session.allocate(0, size), size, 1)
    raw.send()
    raw.read_bulk(bytearray(BULK_HEADER.size))
    start, *chunks, end = frames_of(1, bytes(size))
    raw.carriers[Lane.BULK].send_all(*wrong(start, chunks, end), timeout=LONG)
    error = raw.failed()
    assert isinstance(error, PeerError)
    assert message in str(error)


# -- 14 -----------------------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=8),
    order=st.randoms(use_true_random=False),
    aborts=st.sets(st.integers(0, 7)),
)
def test_invariant_14_reservations_may_be_settled_in_any_order(sizes, order, aborts):
    """An abort leaves no hole; the stream is what was committed, whole and in order of commit; all room comes back."""
    with connected() as (near, far):
        full = near.budget()
        reserved = [near.reserve(size) for size in sizes]
        for number, reservation in enumerate(reserved):
            reservation.view[:] = pattern(sizes[number], number)
        expected = b""
        for number in order.sample(range(len(sizes)), len(sizes)):
            if number in aborts:
                reserved[number].abort()
            else:
                reserved[number].commit()
                expected += pattern(sizes[number], number)
        near.send_all(b"end", timeout=LONG)
        assert read_exactly(far, len(expected) + 3) == expected + b"end"
        assert near.budget() == full


def test_invariant_14_a_commit_returns_at_once_and_is_never_lost(pair):
    """A commit has no completion: on a full carrier it is kept, and goes out before whatever is sent later."""
    near, far = pair
    sent = fill(near)
    expected = b""
    with pytest.raises(BusyError):
        for number in itertools.count():
            reservation = near.reserve(1000)
            reservation.view[:] = pattern(1000, number)
            reservation.commit()
            expected += pattern(1000, number)
    got = bytearray()
    reader = background(lambda: append_all(far, got))
    deadline = monotonic() + LONG
    while near.send(b"after") != len(b"after"):
        assert monotonic() < deadline
    near.send_all(b"last", timeout=LONG)
    near.shutdown()
    with pytest.raises(BrokenError):
        reader.result(LONG)
    assert got == bytes(sent) + expected + b"afterlast"


# -- 15 -----------------------------------------------------------------------------------------------------------------------


def test_invariant_15_room_that_came_before_the_wait_for_it_is_seen(pair):
    """Between the send that found no room and the wait for some the peer may have read everything: no wake-up is lost."""
    near, far = pair
    for _ in range(20):
        sent = fill(near)
        read_exactly(far, sent)
        assert near.wait_writable(LONG)
        assert near.send(b"x") == 1
        read_exactly(far, 1)


def test_invariant_15_what_had_no_room_goes_without_another_call(serve):
    """The server stops reading until nothing more fits; when it goes on, everything arrives though nobody here waits or sends."""
    server = serve()
    with remora.open(f"{server.uri}?deadline=30") as device:
        target, done = device.allocate(1 << 16), threading.Event()
        device.queue.wait_idle(LONG)
        link = device.host.link
        (pid,) = server.session_pids()
        stop(pid)
        try:
            while link._outlets[Lane.QUEUE].rest is None:
                last = device.queue.update(target, bytes(1 << 16))
                device.queue.flush()
            last.on_done(done.set)
        finally:
            go_on(pid)
        assert done.wait(LONG)
        assert link.unsent(Lane.QUEUE) == 0


# -- 16 -----------------------------------------------------------------------------------------------------------------------


def test_invariant_16_early_transfers_are_bounded_by_the_sender(sender):
    """Nobody at the other end knows the transfers yet: a few begin, the rest wait, and the lane lives."""
    lane, far, ends = sender
    for number in range(1, 20):
        lane.send(number, memoryview(bytes(2 * CHUNK)), ends.of(number))
    begun = [next_frame(far) for _ in range(2 * MAX_STAGED)]
    assert sorted(transfer for kind, transfer, _ in begun if kind == START) == list(range(1, MAX_STAGED + 1))
    assert far.receive_into(bytearray(1), SHORT) == 0
    for number in range(1, 20):
        far.send_all(encode_bulk(CREDIT, number, 2 * CHUNK), timeout=LONG)
    ended = []
    while len(ended) < 19:
        kind, transfer, _ = next_frame(far)
        assert kind != ABORT
        ended += [transfer] * (kind == COMPLETE)
    assert sorted(ended) == list(range(1, 20))


def test_invariant_16_early_transfers_are_bounded_by_the_receiver(server):
    """A few are kept for their commands; a peer that goes on is refused, and costs nobody else anything."""
    with remora.open(server.uri) as other, raw_client(server.uri) as raw:
        size = 100
        buffers = [raw.session.allocate(0, size) for _ in range(MAX_STAGED)]
        for number in range(MAX_STAGED):
            deliver(raw, 2 * number + 1, bytes([number]) * size)
        for number, buffer in enumerate(buffers):
            epoch = upload(raw, 0, buffer, size, 2 * number + 1)
            raw.send()
            assert raw.advanced(0, epoch).failure is None
            assert bytes_of(raw, 0, buffer, size) == bytes([number]) * size
        for number in range(100, 200):
            try:
                raw.carriers[Lane.BULK].send_all(encode_bulk(START, 2 * number + 1, size), timeout=LONG)
            except BrokenError:
                break
        error = raw.failed()
        assert isinstance(error, PeerError)
        assert "without credit" in str(error)
        with other.upload(b"lives") as buffer:
            assert bytes(buffer.read(timeout=LONG)) == b"lives"
