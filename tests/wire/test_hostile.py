"""Whatever a peer sends, a decoder gives a message or PeerError, and what it takes has no second encoding (H25)."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.golden import frames, strategies
from tests.golden.codecs import CODECS, QUEUE

from remora.errors import PeerError

HEADER_BYTES = 24


def check(lane, data):
    """Decode; True when it was taken, and then it is the one encoding of what it says."""
    try:
        value = CODECS[lane].decode(data)
    except PeerError:
        return False
    assert CODECS[lane].encode(value) == data
    return True


@pytest.mark.parametrize(("lane", "name"), frames.NAMES)
def test_h25_every_truncation_is_refused(lane, name):
    data = frames.golden(lane, name)
    for size in range(len(data)):
        with pytest.raises(PeerError):
            CODECS[lane].decode(data[:size])


@pytest.mark.parametrize(("lane", "name"), frames.NAMES)
def test_h25_truncation_with_a_size_that_fits_it(lane, name):
    data = frames.golden(lane, name)
    for size in range(8, len(data)):
        check(lane, struct.pack("<I", size) + data[4:size])
    check(lane, struct.pack("<I", len(data) + 8) + data[4:] + bytes(8))


@pytest.mark.parametrize(("lane", "name"), frames.NAMES)
def test_h25_every_change_of_one_header_byte(lane, name):
    data = bytearray(frames.golden(lane, name))
    for place in range(min(HEADER_BYTES, len(data))):
        good = data[place]
        for value in range(256):
            data[place] = value
            check(lane, bytes(data))
        data[place] = good


@pytest.mark.parametrize(("lane", "name"), frames.NAMES)
def test_h25_every_flipped_bit_behind_the_header(lane, name):
    data = bytearray(frames.golden(lane, name))
    for bit in range(8 * HEADER_BYTES, 8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        check(lane, bytes(data))
        data[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("lane", frames.LANES)
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_h25_changed_messages(lane, data):
    frame = bytearray(CODECS[lane].encode(data.draw(strategies.LANES[lane])))
    places = st.tuples(st.integers(0, len(frame) - 1), st.integers(0, 255))
    for place, value in data.draw(st.lists(places, min_size=1, max_size=4)):
        frame[place] = value
    check(lane, bytes(frame))


@pytest.mark.parametrize("lane", frames.LANES)
@settings(deadline=None, max_examples=150)
@given(noise=st.binary(max_size=200), kind=st.integers(0, 0x4F))
def test_h25_noise_behind_a_true_size(lane, noise, kind):
    check(lane, noise)
    noise = noise[: len(noise) & ~7]
    check(lane, struct.pack("<IBBH", 8 + len(noise), kind, 0, 1 if lane == "bootstrap" else 0) + noise)


@pytest.mark.parametrize("kind", QUEUE)
@settings(deadline=None, max_examples=150)
@given(noise=st.binary(max_size=120))
def test_h25_queue_decoders_keep_to_their_frame(kind, noise):
    """A decoder gets a view of many frames: what lies behind its own must not matter."""
    decode = QUEUE[kind][0]
    view, pos = memoryview(b"\xff" * 8 + noise + b"\xff" * 200), 8
    alone = memoryview(noise)

    def outcome(*args):
        try:
            return repr([bytes(part) if isinstance(part, memoryview) else part for part in decode(*args)][:3])
        except PeerError as error:
            return type(error)

    if len(noise) >= 8:
        assert outcome(view, pos, len(noise)) == outcome(alone, 0, len(noise))
