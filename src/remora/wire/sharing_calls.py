"""The call for memory of the server that the client maps, and where a buffer is in it.

SEGMENT_OPEN 0x70
    request    segment id u64, as LEND and LOCATE say it
    response   size u64 | st_dev u64 | st_ino u64     its descriptor comes with the frame (SCM_RIGHTS)

A segment is a memory file of this session alone, sealed against a change of its size. `st_dev` and `st_ino` say which file the
descriptor must be. The data of the RESULT that answers a LOCATE is segment id u64 | offset u64, zeros for memory that is in none.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from remora.errors import PeerError
from remora.wire.layout import Reader, Writer
from remora.wire.method import Method

__all__ = [
    "METHODS",
    "PLACE_SIZE",
    "SEGMENT_OPEN",
    "Place",
    "SegmentOpen",
    "SegmentOpened",
    "decode_place",
    "encode_place",
]

SEGMENT_OPEN: Final = 0x70
MAX_SEGMENT: Final = 1 << 48
_PLACE: Final = struct.Struct("<QQ")
PLACE_SIZE: Final = _PLACE.size


@dataclass(frozen=True, slots=True)
class SegmentOpen:
    """Send the descriptor of this segment."""

    segment: int


@dataclass(frozen=True, slots=True)
class SegmentOpened:
    """Which file the descriptor is, and how many bytes it has."""

    size: int
    st_dev: int
    st_ino: int


class Place(NamedTuple):
    """Where memory is: bytes from `offset` of a segment."""

    segment: int
    offset: int


def encode_place(segment: int, offset: int) -> bytes:
    """The data of a LOCATE's RESULT."""
    return _PLACE.pack(segment, offset)


def decode_place(data: memoryview | bytes | bytearray) -> Place | None:
    """What a LOCATE found; None for memory that is in no segment. Raises PeerError for anything else."""
    if len(data) != PLACE_SIZE:
        raise PeerError(f"a place of {len(data)} bytes; it has {PLACE_SIZE}")
    place = Place(*_PLACE.unpack(data))
    if place.offset > MAX_SEGMENT or (place.offset and not place.segment):
        raise PeerError(f"a place at {place.offset} of the segment {place.segment}")
    return place if place.segment else None


def _write_open(writer: Writer, body: SegmentOpen) -> Writer:
    return writer.u64(body.segment)


def _read_open(reader: Reader) -> SegmentOpen:
    segment = reader.u64()
    reader.end()
    if segment == 0:
        raise PeerError("the segment id 0 is not one")
    return SegmentOpen(segment)


def _write_opened(writer: Writer, body: SegmentOpened) -> Writer:
    return writer.u64(body.size).u64(body.st_dev).u64(body.st_ino)


def _read_opened(reader: Reader) -> SegmentOpened:
    body = SegmentOpened(reader.u64(), reader.u64(), reader.u64())
    reader.end()
    if not 1 <= body.size <= MAX_SEGMENT:
        raise PeerError(f"a segment of {body.size} bytes")
    return body


METHODS: Final[dict[int, Method]] = {SEGMENT_OPEN: Method(SegmentOpen, _write_open, _read_open, _write_opened, _read_opened)}
