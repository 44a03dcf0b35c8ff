"""Every transfer of two facing lanes ends exactly once, whoever gives it up or breaks whatever at whichever point (H25, H27)."""

import random
import threading
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.link.lanes import Ends, connected, facing

from remora.errors import BrokenError, DeviceError, PeerError
from remora.session.transfers import MAX_STAGED
from remora.wire.bulk import CHUNK, COMPLETE, CREDIT, DATA, START, encode_abort, encode_bulk

GIVEN_UP = DeviceError("given up")


def test_h25_transfers_refused_while_they_come_stop_no_later_one(carriers, lanes, ends):
    """A refusal crosses the START of what it refuses, many times more often than transfers may be staged."""
    near, far, broken = lanes
    for number in range(1, 10 * MAX_STAGED):
        far.abort(number, GIVEN_UP)
        carriers[0].send_all(encode_bulk(START, number, 5), encode_bulk(DATA, number, 0, 5), b"abcde", timeout=5)
        carriers[0].send_all(encode_bulk(COMPLETE, number, 5), timeout=5)
    far.expect(999, memoryview(room := bytearray(3)), ends.of("arrived"))
    near.send(999, memoryview(b"abc"), ends.of("sent"))
    assert ends.wait("sent", "arrived") == [[None], [None]]
    assert room == b"abc"
    assert not broken


def test_h27_credit_that_comes_long_before_its_transfer_is_kept(lanes, ends):
    """More downloads wait on a queue than any small table holds; each needs its credit when its turn comes."""
    near, far, broken = lanes
    count, data = 3000, memoryview(bytes(CHUNK + 1))
    first = bytearray(len(data))
    far.expect(1, memoryview(first), ends.of("first"))
    for number in range(2, count):
        far.expect(number, memoryview(bytearray(1)), ends.of(number))
    far.send(count, memoryview(b"marker"), ends.of("marker sent"))
    near.expect(count, memoryview(bytearray(6)), ends.of("marker"))
    ends.wait("marker")
    near.send(1, data, ends.of("sent"))
    assert ends.wait("first", "sent") == [[None], [None]]
    assert not broken


def test_h27_transfers_that_finish_before_their_credit_leave_nothing(lanes, ends):
    near, far, _ = lanes
    for number in range(1, 200):
        near.send(number, memoryview(b"abc"), ends.of(("sent", number)))
    for number in range(1, 200):
        far.expect(number, memoryview(bytearray(3)), ends.of(("arrived", number)))
    ends.wait(*(("arrived", number) for number in range(1, 200)))
    far.send(999, memoryview(b"x"), ends.of("marker sent"))  # behind the last credit
    near.expect(999, memoryview(bytearray(1)), ends.of("marker"))
    ends.wait("marker")
    assert not near._credits
    assert not near._outgoing._staged
    assert not far._incoming._unplaced


def arrived_early(carriers, lanes, ends, *frames):
    """Let frames of the peer be taken by the far lane, whatever it thinks of them, and then a marker."""
    carriers[0].send_all(*frames, timeout=5)
    lanes[0].send(999, memoryview(b"x"), ends.of("marker sent"))
    lanes[1].expect(999, memoryview(bytearray(1)), ends.of("marker"))
    ends.wait("marker")


@pytest.mark.parametrize(
    ("frame", "begin", "match"),
    [
        (encode_bulk(CREDIT, 1, 1 << 40), lambda lane, done: lane.send(1, memoryview(bytes(9)), done), "a credit of"),
        (encode_bulk(START, 1, 8), lambda lane, done: lane.expect(1, memoryview(bytearray(9)), done), "its command says 9"),
        (encode_abort(1, GIVEN_UP), lambda lane, done: lane.send(1, memoryview(bytes(9)), done), "given up"),
        (encode_abort(1, GIVEN_UP), lambda lane, done: lane.expect(1, memoryview(bytearray(9)), done), "given up"),
    ],
    ids=["credit", "size", "abort of a send", "abort of a receive"],
)
def test_h25_what_came_too_early_is_told_by_another_thread_than_the_callers(ends, frame, begin, match):
    """The caller may hold a lock that the end of a transfer, or of the session, needs."""
    mine, told = threading.Lock(), []

    with connected() as carriers, facing(carriers) as lanes:
        far = lanes[1]

        def end(error):
            with mine:
                told.append(error)

        far._broken = end
        arrived_early(carriers, lanes, ends, frame)
        with mine:
            begin(far, lambda error: (end(error), ends.of("ended")(error)))
        if match != "given up":
            far._threads[0].join(20)
            carriers[1].fail(BrokenError("the link ends the carrier"))
        ends.wait("ended")
    assert match in told[0].message
    assert isinstance(told[0], DeviceError if match == "given up" else PeerError)
    assert len(ends.results["ended"]) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_h27_a_callback_that_raises_ends_the_lane_and_every_transfer_with_an_error(lanes, ends):
    near, far, broken = lanes

    def refuse(error):
        raise ValueError("a bug of the caller")

    near.expect(1, memoryview(bytearray(1)), refuse)
    near.expect(3, memoryview(bytearray(1)), ends.of("other"))
    far.send(1, memoryview(b"x"), ends.of("sent"))
    ((error,),) = ends.wait("other")
    assert "a bug of the caller" in error.message
    assert broken == [error]


def test_h02_large_and_small_transfers_finish_interleaved(lanes, ends):
    """2 large transfers and, when these have begun, 20 small ones: the small ones end first."""
    near, far, broken = lanes
    order = []
    lock = threading.Lock()

    def done(number):
        def note(error):
            with lock:
                order.append(number)
            ends.of(number)(error)

        return note

    large = {1: bytes(48 * CHUNK), 3: bytes(48 * CHUNK)}
    small = {number: bytes(1000) for number in range(101, 141, 2)}
    for number, data in {**large, **small}.items():
        far.expect(number, memoryview(bytearray(len(data))), done(number))
    for number, data in {**large, **small}.items():
        near.send(number, memoryview(data), lambda error: None)
    ends.wait(*large, *small)
    assert not broken
    assert set(order[-2:]) == set(large)


steps = st.sampled_from(["begin", "begin", "begin", "refuse"])
later = st.sampled_from(["keep", "keep", "source", "sink"])


@settings(max_examples=40)
@given(
    transfers=st.lists(st.tuples(st.integers(0, 3 * CHUNK), st.booleans(), steps, steps, later), min_size=1, max_size=10),
    seed=st.integers(0, 1 << 30),
    cut=st.one_of(st.none(), st.integers(0, 30)),
)
def test_h27_every_transfer_ends_once_whatever_happens(transfers, seed, cut):
    """Begin, refuse and give up on both sides in any order, with or without the carrier failing in the middle.

    The oracle: who began hears exactly once; nobody gave up and nothing failed = no error and the same bytes; a receiver that
    hears no error has all bytes.
    """
    every_transfer_ends_once(transfers, seed, cut, one_strand())


@contextmanager
def one_strand():
    """Two lanes over one connection: (near, far, broken, the pairs of carriers)."""
    with connected() as carriers, facing(carriers) as lanes:
        yield (*lanes, [carriers])


def every_transfer_ends_once(transfers, seed, cut, lanes):
    """The test itself, over any lanes."""
    ends, actions, rooms, sources = Ends(), [], {}, {}
    with lanes as (near, far, broken, pairs):
        for number, (size, forth, source_step, sink_step, giver) in enumerate(transfers, 1):
            source, sink = (near, far) if forth else (far, near)
            sources[number], rooms[number] = random.Random(number).randbytes(size), bytearray(size)
            actions += (
                (number, 0, source, "source", source_step),
                (number, 0, sink, "sink", sink_step),
                *([(number, 1, source if giver == "source" else sink, giver, "give up")] if giver != "keep" else []),
            )
        random.Random(seed).shuffle(actions)
        actions.sort(key=lambda action: action[1] and action[0])  # giving up comes after the beginnings of all before it
        began = play(actions, ends, sources, rooms, pairs[seed % len(pairs)], near, cut)
        ends.wait(*began)
        if cut is None:
            settle(near, far, ends)
            assert not broken
    assert all(len(ends.results[key]) == 1 for key in began)
    for number, (_, _, source_step, sink_step, giver) in enumerate(transfers, 1):
        results = [ends.results.get((role, number), [None])[0] for role in ("source", "sink")]
        if cut is None and (source_step, sink_step, giver) == ("begin", "begin", "keep"):
            assert results == [None, None]
        if ends.results.get(("sink", number)) == [None]:
            assert rooms[number] == sources[number]
    for lane in (near, far):
        assert not any(thread.is_alive() for thread in lane._threads)
        assert not lane._outgoing._table
        assert not lane._incoming._table


def play(actions, ends, sources, rooms, carriers, near, cut):
    """Do the actions; the keys of the transfers that began."""
    began, refused = [], set()
    for count, (number, _, lane, role, what) in enumerate(actions):
        if count == cut:
            carriers[0].fail(BrokenError("cut"))
        key = (role, number)
        if what != "begin":
            if key not in refused:
                refused.add(key)
                lane.abort(number, GIVEN_UP)
            continue
        if key in refused:
            continue
        try:
            if role == "source":
                lane.send(number, memoryview(sources[number]), ends.of(key))
            else:
                lane.expect(number, memoryview(rooms[number]), ends.of(key))
        except BrokenError:
            continue
        began.append(key)
    if cut is not None:
        carriers[0].fail(BrokenError("cut"))
    return began


def settle(near, far, ends):
    """A transfer in each direction, twice: everything sent before has been taken. Then nothing takes a place any more."""
    markers = (1001, 1002, 1003, 1004)
    for number in markers:
        source, sink = (near, far) if number % 2 else (far, near)
        sink.expect(number, memoryview(bytearray(1)), ends.of(("marker", number)))
        source.send(number, memoryview(b"x"), ends.of(("marker sent", number)))
        ends.wait(("marker", number), ("marker sent", number))
    for lane in (near, far):
        assert set(lane._outgoing._staged) <= set(markers)  # the credit of a marker may be on its way
        assert not lane._incoming._unplaced
        assert not lane._incoming._table
        assert not lane._outgoing._table
