"""Frames of the bulk lane: payload that moves beside commands, under credit.

size u32 | kind u8 | 0 u8 | 0 u16 | transfer id u64 | value u64 | rest

START    0x40   value = total bytes
DATA     0x41   value = offset       rest = the bytes, not padded: on this lane sizes need not be multiples of 8
COMPLETE 0x42   value = total bytes  the sender has sent everything
ABORT    0x43   value = 0            rest = status
CREDIT   0x44   value = bytes of the transfer that may have been sent in all: cumulative, so repeats are harmless
LEND     0x45   value = offset       rest = segment id u64 | size u64: the other end of the transfer is this part of shared memory
RETURN   0x46   value = total bytes  the client has copied them to or from there; 0: it cannot, the bytes have to travel
GONE     0x47   value = 0            the number in the place of the transfer id is a segment that nothing is in any more

LEND takes the place of START, DATA and COMPLETE where both sides have CAPABILITY_SHARED: the server sends it, and GONE, and the
client answers with RETURN. Until then the client alone uses that memory. So there an UPLOAD of MIN_LENT bytes or more begins with
CREDIT or LEND only.
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
    "GONE",
    "LEND",
    "LENT_SIZE",
    "MAX_STAGED",
    "MAX_STAGING",
    "MAX_TRANSFER",
    "MIN_LENT",
    "MIN_STAGING",
    "RETURN",
    "START",
    "BulkHeader",
    "Lent",
    "decode_abort",
    "decode_bulk",
    "decode_lend",
    "encode_abort",
    "encode_bulk",
    "encode_lend",
]

START, DATA, COMPLETE, ABORT, CREDIT, LEND, RETURN, GONE = range(0x40, 0x48)
#: Every DATA but a transfer's last carries exactly this many bytes, at a multiple of it.
CHUNK: Final = 1 << 20
#: Transfers that may have begun without credit, and bytes that the receiver stages for all of them: ACCEPT may say more.
MAX_STAGED: Final = 4
MIN_STAGING: Final = MAX_STAGED * CHUNK
MAX_STAGING: Final = 1 << 30
BULK_HEADER: Final = struct.Struct("<IBBHQQ")
MAX_TRANSFER: Final = 1 << 48
MAX_ABORT: Final = 8 << 10
#: Transfers of fewer bytes are not worth the round trip of a loan.
MIN_LENT: Final = 256 << 10
#: Bytes behind the header of a LEND.
LENT_SIZE: Final = 16
_LENT: Final = struct.Struct("<QQ")


class BulkHeader(NamedTuple):
    """The 24 bytes that open a bulk frame; `rest` bytes follow."""

    kind: int
    transfer_id: int
    value: int
    rest: int


class Lent(NamedTuple):
    """The rest of a LEND: how many bytes of which segment, from the offset in the header."""

    segment: int
    size: int


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
        case 0x40 | 0x42 | 0x44 | 0x46:
            fine = rest == 0 and value <= MAX_TRANSFER
        case 0x41:
            fine = 1 <= rest <= CHUNK and value % CHUNK == 0 and value < MAX_TRANSFER
        case 0x43:
            fine = value == 0 and 8 <= rest <= MAX_ABORT
        case 0x45:
            fine = rest == LENT_SIZE and value <= MAX_TRANSFER
        case 0x47:
            fine = rest == 0 and value == 0
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


def encode_lend(transfer_id: int, segment: int, offset: int, size: int) -> bytes:
    """A whole LEND."""
    return encode_bulk(LEND, transfer_id, offset, LENT_SIZE) + _LENT.pack(segment, size)


def decode_lend(rest: memoryview | bytes) -> Lent:
    """The rest of a LEND. Raises PeerError for a segment 0, and for fewer bytes than are lent or more than a transfer has."""
    if len(rest) != LENT_SIZE:
        raise PeerError(f"a LEND says {len(rest)} bytes of what it lends, not {LENT_SIZE}")
    lent = Lent(*_LENT.unpack(rest))
    if lent.segment == 0 or not MIN_LENT <= lent.size <= MAX_TRANSFER:
        raise PeerError(f"a LEND of {lent.size} bytes of the segment {lent.segment}")
    return lent
