"""RECORDS of a profile: names are in a table, in the order of their use, and a frame has one encoding (H24, H25)."""

import struct

import pytest
from tests.golden import frames

from remora.errors import PeerError
from remora.wire.control import decode_control, encode_control
from remora.wire.layout import MAX_CONTROL_FRAME, Writer
from remora.wire.profile import MAX_NAME, MAX_RECORDS, RECORDS, WINDOW, ProfileRecord, Records


def record(name="", label=""):
    return ProfileRecord(2, False, 0, name, label, (1, 1, 1), 1, 1, 1, 2, 3, 0)


def frame(names, places):
    """A RECORDS frame with this table, and records that use these (name, label) places of it."""
    writer = Writer().u32(1).u16(len(names)).u16(len(places)).u64(1).u64(0)
    for name in names:
        writer.text(name, MAX_NAME)
    writer.pad()
    for name, label in places:
        writer.raw(struct.pack("<BBHHHIIIIQQQQQ", 2, 0, 0, name, label, 1, 1, 1, 1, 1, 1, 2, 3, 0))
    return memoryview(writer.frame(RECORDS))


def test_h24_records_by_hand():
    assert decode_control(frame(["add", "step"], [(1, 2), (1, 0)])).records == (record("add", "step"), record("add"))
    assert encode_control(Records(1, 1, 0, (record("add", "step"), record("add")))) == frame(["add", "step"], [(1, 2), (1, 0)])


@pytest.mark.parametrize(
    ("names", "places", "message"),
    [
        (["add", "add"], [(1, 2)], "there twice"),
        (["", "add"], [(1, 2)], "empty or there twice"),
        (["add", "mix"], [(2, 1)], "the name 2; 0 of 2 are used before it"),
        (["add", "mix"], [(1, 0), (1, 0)], "2 names that use 1 of them"),
        (["add"], [(1, 2)], "the name 2; 1 of 1"),
        (["add", "mix", "fill"], [(1, 0)], "1 records and 3 names"),
    ],
)
def test_h25_a_table_of_names_is_used_in_order_and_whole(names, places, message):
    with pytest.raises(PeerError, match=message):
        decode_control(frame(names, places))


def test_h24_names_that_are_too_long_are_cut_and_stay_one():
    long = "k" * (MAX_NAME - 1)
    body = Records(1, 1, 0, (record(long + "ä"), record(long + "ö"), record("a\0b")))
    assert [each.name for each in decode_control(memoryview(encode_control(body))).records] == [long, long, "a b"]


def test_h24_what_a_ping_may_have_to_queue_behind_is_small():
    plain = encode_control(Records(1, 1, 0, (record("a_kernel_of_usual_length"),) * MAX_RECORDS))
    assert WINDOW * len(plain) <= 72 << 10
    worst = tuple(record(f"{number:0{MAX_NAME}}", f"{number:x>{MAX_NAME}}") for number in range(MAX_RECORDS))
    assert len(encode_control(Records(1, 1, 0, worst))) < MAX_CONTROL_FRAME // 8


def test_h24_golden_records_hold_a_failed_one_and_a_label():
    assert [each.failed for each in frames.RAN] == [False, False, True, False, False]
    assert frames.RAN[1].label.endswith(frames.RAN[1].name)
