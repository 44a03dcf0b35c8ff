"""Bodies of the queue commands about files, by op.

FILE_READ  12   range | file u64 | file offset u64 | transfer id u64     a file to the range
FILE_WRITE 13   the same                                                  the range to a file

Exactly one of `file` and `transfer id` is not 0. `file` is one that the server has open. With a transfer id it is one that the
client has, and the bytes travel in pieces of PIECE bytes, each a bulk transfer of its own; the ids of the pieces go up by 2 from
the transfer id. Behind the last piece of a FILE_WRITE comes one more transfer, from the client and of 0 bytes: all is written.
A command with a transfer has a length from 1 and the file offset 0, because only the client needs to know that.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from remora.errors import PeerError

__all__ = ["AHEAD", "DECODERS", "FILE_READ", "FILE_WRITE", "PIECE", "FileRange", "encode_file_range", "piece_count"]

FILE_READ, FILE_WRITE = 12, 13
#: Bytes of a piece; the last one may have fewer.
PIECE: Final = 4 << 20
#: Pieces that either side may begin before the other has taken the one in front of them.
AHEAD: Final = 8
#: Files end here: offsets have 63 bits.
MAX_END: Final = (1 << 63) - 1

_FILE_RANGE: Final = struct.Struct("<QQQQQQ")


class FileRange(NamedTuple):
    """Bytes of a buffer, and the file that they come from or go to."""

    buffer: int
    offset: int
    length: int
    file: int
    file_offset: int
    transfer_id: int


def piece_count(length: int) -> int:
    """In how many pieces this many bytes travel."""
    return -(-length // PIECE)


def encode_file_range(body: FileRange) -> bytes:
    """Body of FILE_READ and FILE_WRITE."""
    return _FILE_RANGE.pack(*body)


def _decode_file_range(view: memoryview, pos: int, end: int) -> FileRange:
    if end - pos != _FILE_RANGE.size:
        raise PeerError(f"the body of a FILE_READ or FILE_WRITE has {_FILE_RANGE.size} bytes, not {end - pos}")
    body = FileRange(*_FILE_RANGE.unpack_from(view, pos))
    if (body.file == 0) == (body.transfer_id == 0):
        raise PeerError("a FILE_READ or FILE_WRITE with both a file and a transfer, or neither")
    if body.file_offset + body.length > MAX_END:
        raise PeerError(f"{body.length} bytes at {body.file_offset} of a file: no file has them")
    if body.transfer_id and (not body.length or body.file_offset or body.transfer_id + 2 * piece_count(body.length) >= 1 << 64):
        raise PeerError(f"a transfer {body.transfer_id} of {body.length} bytes at {body.file_offset} of the client's file")
    return body


#: op -> decoder(view, position of the body, its end)
DECODERS: Final[dict[int, Callable[[memoryview, int, int], Any]]] = {
    FILE_READ: _decode_file_range,
    FILE_WRITE: _decode_file_range,
}
