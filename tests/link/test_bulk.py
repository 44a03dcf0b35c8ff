"""The bulk lane: transfers in both directions, in any order of command and data, and every way they end (H02, H27)."""

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.link.lanes import Ends, connected, facing

from remora.errors import BrokenError, DeviceError, PeerError
from remora.session.transfers import MAX_STAGED
from remora.wire.bulk import CHUNK, COMPLETE, CREDIT, DATA, START, encode_bulk

SIZES = [0, 1, 7, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5]


def data_of(size, seed=0):
    return random.Random(seed).randbytes(size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("early", ["send", "expect"])
def test_h02_a_transfer_arrives_whole_whichever_side_begins(lanes, ends, size, early):
    near, far, broken = lanes
    data, room = data_of(size), bytearray(size)
    steps = {
        "send": lambda: near.send(1, memoryview(data), ends.of("sent")),
        "expect": lambda: far.expect(1, memoryview(room), ends.of("arrived")),
    }
    steps.pop(early)()
    next(iter(steps.values()))()
    assert ends.wait("sent", "arrived") == [[None], [None]]
    assert room == data
    assert not broken


def test_h02_many_transfers_both_ways_at_once(lanes, ends):
    near, far, broken = lanes
    rooms = {}
    for number in range(1, 61):
        source, sink = (near, far) if number % 2 else (far, near)
        data = data_of(number * 40_001, number)
        rooms[number] = (data, bytearray(len(data)))
        source.send(number, memoryview(data), ends.of(("sent", number)))
    for number in reversed(range(1, 61)):
        sink = far if number % 2 else near
        sink.expect(number, memoryview(rooms[number][1]), ends.of(("arrived", number)))
    ends.wait(*(("arrived", number) for number in rooms))
    assert all(data == room for data, room in rooms.values())
    assert not broken


def test_h02_a_transfer_without_a_place_blocks_no_other(lanes, ends):
    """More uploads than may be staged wait for their place; one that has a place overtakes all of them."""
    near, far, broken = lanes
    waiting = [bytes(2 * CHUNK)] * (2 * MAX_STAGED)
    for number, data in enumerate(waiting, 1):
        near.send(number, memoryview(data), ends.of(("sent", number)))
    room = bytearray(5 * CHUNK)
    data = data_of(len(room))
    far.expect(99, memoryview(room), ends.of("arrived"))
    near.send(99, memoryview(data), ends.of("sent"))
    assert ends.wait("arrived", "sent") == [[None], [None]]
    assert room == data
    assert not any(("sent", number) in ends.results for number in range(1, len(waiting) + 1))
    for number, data in enumerate(waiting, 1):
        far.expect(number, memoryview(bytearray(len(data))), ends.of(("arrived", number)))
    ends.wait(*(("arrived", number) for number in range(1, len(waiting) + 1)))
    assert not broken


@pytest.mark.parametrize("begun", [False, True])
def test_h27_an_abort_by_the_receiver_ends_the_sender_once(lanes, ends, begun):
    near, far, _ = lanes
    if begun:
        near.send(1, memoryview(bytes(4 * CHUNK)), ends.of("sent"))
    far.abort(1, DeviceError("no such buffer"))
    if not begun:  # the abort is on its way, or here, before the sender begins
        room = bytearray(3)
        far.send(2, memoryview(b"abc"), ends.of("marker"))
        near.expect(2, memoryview(room), ends.of("marker there"))
        ends.wait("marker there")
        near.send(1, memoryview(bytes(4 * CHUNK)), ends.of("sent"))
    ((error,),) = ends.wait("sent")
    assert isinstance(error, DeviceError)
    assert "no such buffer" in error.message


def test_h27_an_abort_by_the_sender_ends_the_receiver_once(lanes, ends):
    near, far, _ = lanes
    far.expect(1, memoryview(bytearray(10)), ends.of("arrived"))
    near.abort(1, DeviceError("the queue failed"))
    ((error,),) = ends.wait("arrived")
    assert "the queue failed" in error.message


def test_h05_failing_the_lane_ends_every_transfer_with_the_cause(carriers, lanes, ends):
    near, _, _ = lanes
    cause = BrokenError("the cable was pulled")
    near.send(1, memoryview(bytes(8 * CHUNK)), ends.of("sent"))
    near.expect(2, memoryview(bytearray(5)), ends.of("arrived"))
    carriers[0].fail(cause)
    near.fail(cause)
    for ((error,),) in zip(ends.wait("sent", "arrived"), strict=True):
        assert isinstance(error, BrokenError)
        assert error.message == cause.message
    with pytest.raises(BrokenError, match="cable"):
        near.send(3, memoryview(b"x"), ends.of("late"))
    with pytest.raises(BrokenError, match="cable"):
        near.expect(4, memoryview(bytearray(1)), ends.of("late"))


@pytest.mark.parametrize(
    ("frames", "match"),
    [
        ([encode_bulk(DATA, 1, 0, 4) + b"abcd"], "DATA"),
        ([encode_bulk(START, 1, 9), encode_bulk(START, 1, 9)], "twice"),
        ([encode_bulk(START, 1, 9), encode_bulk(COMPLETE, 1, 9)], "COMPLETE"),
        ([encode_bulk(START, 1, 9), encode_bulk(DATA, 1, 0, 4) + b"abcd"], "does not fit"),
        (
            [encode_bulk(START, 1, 3 * CHUNK), encode_bulk(DATA, 1, 0, CHUNK) + bytes(CHUNK), encode_bulk(DATA, 1, CHUNK, CHUNK)],
            "credit",
        ),
        ([encode_bulk(START, number, 9) for number in range(1, 4 * MAX_STAGED)], "without credit"),
        ([b"\xff" * 24], "bulk frame"),
    ],
    ids=["no start", "two starts", "early complete", "short chunk", "over credit", "too many", "garbage"],
)
def test_h25_a_peer_that_breaks_the_rules_is_found_out(carriers, lanes, frames, match):
    _, far, broken = lanes
    if match == "DATA":  # DATA of a transfer that nobody knows is dropped, because it may have been given up here
        far.expect(1, memoryview(bytearray(4)), lambda error: None)
    for frame in frames:
        carriers[0].send_all(frame, timeout=5)
    far._threads[1].join(10)
    assert len(broken) == 1
    assert isinstance(broken[0], PeerError)
    assert match in broken[0].message


def test_h25_a_size_that_is_not_the_commands_is_found_out(carriers, lanes, ends):
    near, far, broken = lanes
    far.expect(1, memoryview(bytearray(8)), ends.of("arrived"))
    near.send(1, memoryview(bytes(9)), ends.of("sent"))
    far._threads[1].join(10)
    assert "its command says 8" in broken[0].message or "credit" in broken[0].message


def test_a_repeated_and_an_old_credit_change_nothing(carriers, lanes, ends):
    near, far, broken = lanes
    room = bytearray(3 * CHUNK)
    data = data_of(len(room))
    far.expect(1, memoryview(room), ends.of("arrived"))
    for granted in (5, len(room), 5):
        carriers[1].send_all(encode_bulk(CREDIT, 1, granted), timeout=5)
    near.send(1, memoryview(data), ends.of("sent"))
    ends.wait("arrived")
    assert room == data
    assert not broken


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 3 * CHUNK), st.booleans(), st.booleans()), min_size=1, max_size=8))
def test_any_mix_of_transfers_arrives(transfers):
    """Sizes, directions and which side begins, at random."""
    ends, rooms = Ends(), []
    with connected() as carriers, facing(carriers) as (near, far, broken):
        for number, (size, forth, late) in enumerate(transfers, 1):
            source, sink = (near, far) if forth else (far, near)
            data, room = os.urandom(size), bytearray(size)
            rooms.append((data, room))
            steps = [
                lambda lane=source, n=number, d=data: lane.send(n, memoryview(d), ends.of(("sent", n))),
                lambda lane=sink, n=number, r=room: lane.expect(n, memoryview(r), ends.of(("arrived", n))),
            ]
            for step in steps[::-1] if late else steps:
                step()
        ends.wait(*((what, number) for number in range(1, len(transfers) + 1) for what in ("sent", "arrived")))
        assert not broken
    assert all(data == room for data, room in rooms)
    assert all(results == [None] for results in ends.results.values())
