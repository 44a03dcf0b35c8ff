"""Frames of the bulk lane: payload that moves beside commands, under credit.

size u32 | kind u8 | 0 u8 | 0 u16 | transfer id u64 | value u64 | rest

START    0x40   value = total bytes
DATA     0x41   value = offset       rest = the bytes, not padded: on this lane sizes need not be multiples of 8
COMPLETE 0x42   value = total bytes  the sender has sent everything
ABORT    0x43   value = 0            rest = status
CREDIT   0x44   value = bytes of the transfer that may have been sent in all: cumulative, so repeats are harmless
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from remora.errors import Error, PeerError
from remora.wire.layout import MAX_BULK_FRAME, Reader, Writer
from remora.wire.status import read_status, write_status

__all__ = [
    "ABORT",
    "BULK_HEADER",
    "CHUNK",
    "COMPLETE",
    "CREDIT",
    "DATA",
    "START",
    "BulkHeader",
    "decode_abort",
    "decode_bulk",
    "encode_abort",
    "encode_bulk",
]

START, DATA, COMPLETE, ABORT, CREDIT = 0x40, 0x41, 0x42, 0x43, 0x44
#: Every DATA but a transfer's last carries exactly this many bytes, at a multiple of it.
CHUNK: Final = 1 << 20
BULK_HEADER: Final = struct.Struct("<IBBHQQ")
MAX_TRANSFER: Final = 1 << 48
MAX_ABORT: Final = 8 << 10


class BulkHeader(NamedTuple):
    """The 24 bytes that open a bulk frame; `rest` bytes follow."""

    kind: int
    transfer_id: int
    value: int
    rest: int


def encode_bulk(kind: int, transfer_id: int, value: int, rest: int = 0) -> bytes:
    """The header of any bulk frame."""
    return BULK_HEADER.pack(BULK_HEADER.size + rest, kind, 0, 0, transfer_id, value)


def decode_bulk(header: memoryview | bytes | bytearray) -> BulkHeader:
    """Check and split a header of 24 bytes. Raises PeerError before anything is read or allocated for its rest."""
    if len(header) < BULK_HEADER.size:
        raise PeerError("a bulk frame shorter than its header")
    size, kind, flags, aux, transfer_id, value = BULK_HEADER.unpack_from(header)
    rest = size - BULK_HEADER.size
    if flags or aux or transfer_id == 0 or not 0 <= rest <= MAX_BULK_FRAME - BULK_HEADER.size:
        raise PeerError(f"a bulk frame of {size} bytes with flags {flags:#x}, {aux:#x} for the transfer {transfer_id}")
    match kind:
        case 0x40 | 0x42 | 0x44:
            fine = rest == 0 and value <= MAX_TRANSFER
        case 0x41:
            fine = 1 <= rest <= CHUNK and value % CHUNK == 0 and value < MAX_TRANSFER
        case 0x43:
            fine = value == 0 and 8 <= rest <= MAX_ABORT
        case _:
            raise PeerError(f"an unknown bulk frame {kind:#x}")
    if not fine:
        raise PeerError(f"a bulk frame {kind:#x} with the value {value} and {rest} bytes")
    return BulkHeader(kind, transfer_id, value, rest)


def encode_abort(transfer_id: int, error: Error) -> bytes:
    """A whole ABORT."""
    body = write_status(Writer(), error).frame(0)[8:]
    return encode_bulk(ABORT, transfer_id, 0, len(body)) + body


def decode_abort(rest: memoryview) -> Error:
    """The status in the rest of an ABORT."""
    return read_status(Reader(rest, "an ABORT"))
