"""Recordings as bytes: one encoding, and every rule of every record broken alone (H18, H25)."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.golden import frames, strategies

from remora.errors import PeerError
from remora.wire.command_buffer import (
    DISPATCH,
    MAX_UPDATE,
    RecordedDispatch,
    RecordedFill,
    RecordedIndirect,
    RecordedUpdate,
    Ref,
    decode_stream,
    encode_stream,
)
from remora.wire.command_buffer_calls import MAX_SLOTS
from remora.wire.execute import Announced, Changed, encode_payload, read_payload

#: Where each record of frames.RECORDS begins.
STARTS = [len(encode_stream(frames.RECORDS[:count])) for count in range(len(frames.RECORDS))]
BEGIN, FILL, UPDATE, COPY, LAUNCH, BARE, RESET, SIGNAL, WAIT, BARRIER, INDIRECT, BARE_INDIRECT, END = STARTS


def decode(data):
    return decode_stream(memoryview(data))


@settings(deadline=None, max_examples=200)
@given(st.lists(strategies.records, max_size=8))
def test_h18_a_recording_has_one_encoding(records):
    assert decode(encode_stream(records)) == records


def test_h18_records_by_hand():
    fill = RecordedFill(Ref(frames.BUFFER, 8, 64), b"\1\2")
    assert encode_stream([fill]) == struct.pack("<BBHIQQQII4sB3s", 0x11, 0, 0, 48, frames.BUFFER, 8, 64, 0, 0, b"\1\2", 2, b"")
    launch = RecordedDispatch(frames.KERNELS, 1, (4, 2, 1), (Ref(0, 16, (1 << 64) - 1, 5),), b"\x2a\0\0\0")
    assert encode_stream([launch]) == struct.pack(
        "<BBHIQIIIIIIQQQII8s", 0x20, 0, 0, 80, frames.KERNELS, 1, 4, 2, 1, 4, 1, 0, 16, (1 << 64) - 1, 5, 0, b"\x2a"
    )
    indirect = RecordedIndirect(frames.KERNELS, 1, Ref(frames.BUFFER, 16, 12), (Ref(0, 16, 8, 5),), b"\x2a\0\0\0")
    assert encode_stream([indirect]) == struct.pack(
        "<BBHIQIIIIQQQIIQQQII8s",
        *(0x21, 0, 0, 104, frames.KERNELS, 1, 0, 4, 1),
        *(frames.BUFFER, 16, 12, 0, 0),
        *(0, 16, 8, 5, 0, b"\x2a"),
    )


def test_h18_a_record_may_be_larger_than_64_kib():
    records = [
        RecordedUpdate(Ref(0, 0, MAX_UPDATE, 1), bytes(MAX_UPDATE)),
        RecordedDispatch(frames.KERNELS, 0, (1, 1, 1), (), bytes(65_600)),
    ]
    assert decode(encode_stream(records)) == records


@pytest.mark.parametrize(
    ("place", "code", "value", "message"),
    [
        (BEGIN, "B", 0, "record 0: an unknown type 0x0"),
        (UPDATE, "B", 0x99, "record 2: an unknown type 0x99"),
        (FILL + 1, "B", 1, "record 1: an unknown type 0x11 or unknown flags"),
        (FILL + 2, "H", 1, "record 1: an unknown type 0x11 or unknown flags"),
        (FILL + 4, "I", 0, "record 1: it announces 0 bytes"),
        (FILL + 4, "I", 44, "record 1: it announces 44 bytes"),
        (FILL + 4, "I", 0xFFFF_FFF8, "record 1: it announces 4294967288 bytes"),
        (FILL + 4, "I", 56, "record 1: a recorded FILL has 48 bytes, not 56"),
        (FILL + 8 + 24, "I", MAX_SLOTS, "record 1: a binding of the buffer 0x0 and the slot 65536"),
        (FILL + 8 + 28, "I", 1, "record 1: a binding of the buffer 0x0"),
        (FILL + 8, "Q", 7, "record 1: a binding of the buffer 0x7 and the slot 5"),
        (FILL + 44, "B", 3, "record 1: a recorded FILL with a pattern of 3"),
        (FILL + 44, "B", 1, "record 1: a recorded FILL with a pattern of 1"),
        (FILL + 47, "B", 1, "record 1: a recorded FILL"),
        (UPDATE + 40, "I", 9, "record 2: a recorded UPDATE that announces 9 bytes and brings 8"),
        (UPDATE + 40, "I", MAX_UPDATE + 1, "record 2: a recorded UPDATE"),
        (UPDATE + 44, "I", 1, "record 2: a recorded UPDATE"),
        (UPDATE + 55, "B", 1, "record 2: a recorded UPDATE"),
        (UPDATE + 4, "I", 40, "record 2: a recorded UPDATE shorter than its header"),
        (COPY + 4, "I", 72, "record 3: a recorded COPY has 80 bytes, not 72"),
        (COPY + 40 + 28, "I", 1, "record 3: a binding"),
        (LAUNCH + 4, "I", 32, "record 4: a recorded DISPATCH shorter than its header"),
        (LAUNCH + 32, "I", 12, "record 4: a recorded dispatch with 2 bindings and 12 bytes of constants"),
        (LAUNCH + 36, "I", 0xFFFF_FFFF, "record 4: a recorded dispatch with 4294967295 bindings"),
        (LAUNCH + 111, "B", 1, "record 4: a recorded dispatch with padding"),
        (BARE, "B", 0x30, "record 5: a label"),
        (RESET + 4, "I", 8, "record 6: a recorded event has 16 bytes"),
        (BEGIN + 8, "H", 300, "record 0: a label has a text of 300 bytes"),
        (BEGIN + 10, "B", 0xFF, "record 0: a label has a text that is not UTF-8"),
        (BARRIER + 4, "I", 16, "record 9: a recorded BARRIER has 8 bytes, not 16"),
        (INDIRECT + 4, "I", 56, "record 10: a recorded INDIRECT shorter than its header"),
        (INDIRECT + 20, "I", 1, "record 10: a recorded INDIRECT with reserved bits"),
        (INDIRECT + 24, "I", 12, "record 10: a recorded dispatch with 2 bindings and 12 bytes of constants"),
        (INDIRECT + 28, "I", 0xFFFF_FFFF, "record 10: a recorded dispatch with 4294967295 bindings"),
        (INDIRECT + 32 + 24, "I", 5, "record 10: a binding of the buffer"),
        (INDIRECT + 32 + 28, "I", 1, "record 10: a binding of the buffer"),
        (INDIRECT + 64 + 28, "I", 1, "record 10: a binding of the buffer"),
        (INDIRECT + 135, "B", 1, "record 10: a recorded dispatch with padding"),
        (BARE_INDIRECT + 32 + 24, "I", MAX_SLOTS, "record 11: a binding of the buffer 0x0 and the slot 65536"),
        (END + 4, "I", 16, "record 12: it announces 16 bytes where 8 are left"),
        (END, "B", 0x02, "record 12: a recorded event has 16 bytes, not 8"),
    ],
)
def test_h25_a_record_that_breaks_a_rule_is_named(place, code, value, message):
    data = bytearray(frames.STREAM)
    struct.pack_into("<" + code, data, place, value)
    with pytest.raises(PeerError, match=message):
        decode(data)


def test_h25_a_label_without_a_text_is_the_end_of_one():
    empty = struct.pack("<BBHIH6s", 0x30, 0, 0, 16, 0, b"")
    with pytest.raises(PeerError, match="a label without a text"):
        decode(empty)
    with pytest.raises(PeerError, match="END_LABEL has 8 bytes, not 16"):
        decode(struct.pack("<BBHIQ", 0x31, 0, 0, 16, 0))


def test_h25_every_truncation_but_those_between_records_is_refused():
    for size in set(range(len(frames.STREAM))) - set(STARTS):
        with pytest.raises(PeerError):
            decode(frames.STREAM[:size])
    assert [len(decode(frames.STREAM[:start])) for start in STARTS] == list(range(len(STARTS)))


def test_h25_every_flipped_bit_is_refused_or_means_something_else():
    data = bytearray(frames.STREAM)
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        try:
            records = decode(data)
        except PeerError:
            records = None
        assert records is None or (records != frames.RECORDS and encode_stream(records) == data)
        data[bit // 8] ^= 1 << bit % 8


def test_h25_a_payload_has_the_size_that_was_announced():
    patches = (Changed(0, None, None, ()),)
    payload, size = encode_payload([(1, 0, 8)], patches, b"")
    body = Announced(frames.RECORDING, 4, 1, 1, size, 0)
    whole = read_payload(body, memoryview(payload))
    assert whole[:3] == (frames.RECORDING, ((1, 0, 8),), patches)
    for wrong in (payload[:-8], payload + bytes(8)):
        with pytest.raises(PeerError, match="that announced 48"):
            read_payload(body, memoryview(wrong))
    with pytest.raises(PeerError, match="shorter than its header"):
        read_payload(Announced(1, 4, 1, 2, 24, 0), memoryview(payload))


def test_h25_records_are_counted(monkeypatch):
    monkeypatch.setattr("remora.wire.command_buffer.MAX_RECORDS", 3)
    end = struct.pack("<BBHI", 0x31, 0, 0, 8)
    assert len(decode(end * 3)) == 3
    with pytest.raises(PeerError, match="record 3: a recording has at most 3 records"):
        decode(end * 4)


def test_h25_counts_are_checked_before_anything_is_built():
    """A record of forty bytes cannot make the decoder read four billion bindings."""
    head = struct.pack("<BBHIQIIIIII", DISPATCH, 0, 0, 40, frames.KERNELS, 0, 1, 1, 1, 0xFFFF_FFFF, 0xFFFF_FFFF)
    with pytest.raises(PeerError, match="4294967295 bindings"):
        decode(head)
