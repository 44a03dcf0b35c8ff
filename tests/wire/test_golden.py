"""The layout is pinned: each message has one encoding, byte for byte (H25; H03 bootstrap, H12 epochs, H14 ids, H15 releases)."""

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.golden import frames, strategies
from tests.golden.codecs import CODECS, plain

from remora.base.ids import ResourceType
from remora.errors import PeerError
from remora.wire.bootstrap import JOIN_SIZE
from remora.wire.layout import VERSION


@pytest.mark.parametrize(("lane", "name"), frames.NAMES)
def test_h25_message_encodes_to_its_golden_bytes(lane, name):
    assert CODECS[lane].encode(frames.LANES[lane][name]) == frames.golden(lane, name)


@pytest.mark.parametrize(("lane", "name"), frames.NAMES)
def test_h25_golden_bytes_decode_to_the_message(lane, name):
    value = CODECS[lane].decode(frames.golden(lane, name))
    assert plain(value) == plain(frames.LANES[lane][name])


def test_every_golden_file_belongs_to_a_message():
    files = {Path(file).name for file in frames.FOLDER.glob("*.bin")}
    assert files == {frames.path(lane, name).name for lane, name in frames.NAMES}


@pytest.mark.parametrize("lane", frames.LANES)
@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_h25_decode_gives_back_what_was_encoded(lane, data):
    value = data.draw(strategies.LANES[lane])
    encoded = CODECS[lane].encode(value)
    assert plain(CODECS[lane].decode(encoded)) == plain(value)


def test_h03_hello_by_hand():
    body = struct.pack("<8sIIBBHI", b"remora\r\n", 1, 1, 0, 1, 0, 0) + struct.pack("<H10s", 10, b"remora 0.1")
    frame = struct.pack("<IBBH", 48, 0x01, 0, 1) + body
    assert frames.golden("bootstrap", "hello") == frame.ljust(48, b"\0")
    assert VERSION == 1


def test_h12_command_by_hand():
    waits = struct.pack("<QQQQ", frames.AXIS, 8, frames.OTHER_AXIS, 1)
    assert frames.golden("queue", "command_barrier_waits") == struct.pack("<IBBBBQQ", 56, 0x30, 1, 2, 0, frames.AXIS, 9) + waits


def test_h14_provisional_id_becomes_canonical_in_advance():
    assert frames.NEW_BUFFER == ResourceType.BUFFER << 56 | 1 << 55 | 7
    frame = struct.pack("<IBBHQQ", 56, 0x38, 0, 2, frames.AXIS, 0)
    frame += struct.pack("<4Q", frames.NEW_BUFFER, frames.BUFFER, frames.NEXT_BUFFER, frames.TARGET)
    assert frames.golden("queue", "advance_names") == frame


def test_h15_release_by_hand():
    frame = struct.pack("<IBBHQQQ", 32, 0x32, 0, 2, 8, frames.BUFFER, frames.NEW_BUFFER)
    assert frames.golden("queue", "release") == frame


def test_join_has_the_size_that_a_listener_reads():
    assert {len(frames.golden("bootstrap", name)) for name in ("join_queue", "join_bulk")} == {JOIN_SIZE}


def test_h03_both_versions_are_named_when_they_differ():
    frame = bytearray(frames.golden("bootstrap", "hello"))
    struct.pack_into("<H", frame, 6, 9)
    with pytest.raises(PeerError, match="protocol version 9, this side version 1"):
        CODECS["bootstrap"].decode(bytes(frame))


def test_a_stranger_is_recognised_by_its_first_bytes():
    stranger = struct.pack("<I", 24) + b"SSH-2.0-OpenSSH_9.2\n"
    with pytest.raises(PeerError, match=r"does not speak remora.*SSH-2"):
        CODECS["bootstrap"].decode(stranger)
