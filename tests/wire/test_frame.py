"""A stream is cut into the same frames however its bytes arrive, and a peer can make it hold no more than one (H25)."""

import struct
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.errors import PeerError
from remora.wire.frame import FrameSplitter

LIMIT = 64


def frame(size, fill=0):
    return struct.pack("<I", size) + bytes([fill]) * (size - 4)


class Collector:
    """Feeds a splitter piece by piece and keeps the frames and the error."""

    def __init__(self, limit=LIMIT):
        self.splitter = FrameSplitter("queue", limit)
        self.frames = []
        self.error = None

    def feed(self, piece):
        try:
            view, end = self.splitter.feed(memoryview(piece))
            pos = 0
            while pos < end:
                (size,) = struct.unpack_from("<I", view, pos)
                self.frames.append(bytes(view[pos : pos + size]))
                pos += size
            if self.splitter.broken:
                self.splitter.feed(memoryview(b""))
        except PeerError as error:
            self.error = error


sizes = st.integers(1, LIMIT // 8).map(lambda words: 8 * words)
streams = st.lists(st.builds(frame, sizes, st.integers(0, 255)), max_size=8)


def pieces_of(data, cuts):
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@settings(deadline=None, max_examples=150)
@given(whole=streams, tail=st.binary(max_size=3), cuts=st.lists(st.integers(0, 10_000), max_size=12))
def test_h25_any_split_gives_the_same_frames(whole, tail, cuts):
    collector = Collector()
    for piece in pieces_of(b"".join(whole) + tail, cuts):
        collector.feed(piece)
        assert collector.splitter.held <= LIMIT
    assert collector.error is None
    assert collector.frames == whole
    assert collector.splitter.held == len(tail)


@settings(deadline=None, max_examples=150)
@given(
    whole=streams,
    bad=st.one_of(st.integers(0, 7), st.integers(LIMIT + 1, 2**32 - 1), st.integers(8, LIMIT).filter(lambda size: size % 8)),
    cuts=st.lists(st.integers(0, 10_000), max_size=12),
)
def test_h25_the_frames_before_a_bad_size_come_out_however_it_arrives(whole, bad, cuts):
    collector = Collector()
    for piece in pieces_of(b"".join(whole) + struct.pack("<I", bad) + b"rest", cuts):
        if collector.error is None:
            collector.feed(piece)
    assert collector.frames == whole
    assert collector.error is not None
    assert f"a frame size of {bad} " in str(collector.error)


def test_h25_a_trickle_of_single_bytes_is_not_copied_again_and_again():
    collector = Collector(1 << 20)
    data = frame(1 << 20)
    for pos in range(0, len(data), 64):
        collector.feed(data[pos : pos + 64])
        if pos == 1 << 19:
            held = collector.splitter._held  # the buffer must stay the same one: a new one for each piece costs n * n bytes
        elif pos > 1 << 19 and pos + 64 < len(data):
            assert collector.splitter._held is held
    assert collector.frames == [data]
    assert collector.splitter.held == 0


def test_a_bad_size_names_the_lane_and_shows_the_bytes():
    with pytest.raises(
        PeerError, match=r"the queue lane got a frame size of 1414809647 .* it begins with b'/.*Is the other side remora"
    ):
        FrameSplitter("queue", LIMIT).feed(memoryview(b"/HTTP/1.1 400 Bad Request"))
