"""Frames of a profile on the control lane: what operations ran on the server, and how far the client's sink has taken it.

RECORDS   0x18   profile u32 | names u16 | records u16 | sequence u64 | dropped u64 | names x text | padding to 8 bytes | records
TAKEN     0x19   profile u32 | 0 u32 | sequence u64

record    kind u8 | failed u8 | queue u16 | name u16 | label u16 | x u32 | y u32 | z u32 | dispatches u32
          | value u64 | submit u64 | start u64 | end u64 | bytes u64

`profile` is the number under which PROFILE_BEGIN began it. RECORDS are numbered from 1; TAKEN says up to which the sink took them,
and the server sends no more than WINDOW that are not taken. `dropped` counts the records lost so far. A name or label is the place
of a text in the frame's table, from 1; 0 is none. The table is in the order in which the records use it. Times are the server's,
in nanoseconds.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from remora.errors import PeerError
from remora.wire.layout import Reader, Writer

__all__ = [
    "MAX_NAME",
    "MAX_RECORDS",
    "RECORDS",
    "TAKEN",
    "WINDOW",
    "ProfileRecord",
    "Records",
    "Taken",
    "read_records",
    "read_taken",
    "write_records",
    "write_taken",
]

RECORDS: Final = 0x18
TAKEN: Final = 0x19
#: Records in one frame, and bytes of a name or label.
MAX_RECORDS: Final = 64
MAX_NAME: Final = 256
#: RECORDS of one profile that may be on their way or wait for the sink: what a PONG may have to queue behind.
WINDOW: Final = 16
MAX_KIND: Final = 13
_RECORD: Final = struct.Struct("<BBHHHIIIIQQQQQ")


class ProfileRecord(NamedTuple):
    """One operation that ran, as `hal.operation.OperationRecord` has it."""

    kind: int
    failed: bool
    queue: int
    name: str
    label: str
    grid: tuple[int, int, int]
    dispatches: int
    value: int
    submit: int
    start: int
    end: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Records:
    """Server: what ran, in order."""

    profile: int
    sequence: int
    dropped: int
    records: tuple[ProfileRecord, ...]


@dataclass(frozen=True, slots=True)
class Taken:
    """Client: its sink took everything up to `sequence`; cumulative."""

    profile: int
    sequence: int


def write_records(writer: Writer, body: Records) -> Writer:
    """The body of a RECORDS frame of at most MAX_RECORDS. Names that are too long are cut."""
    table: dict[str, int] = {"": 0}
    packed = b"".join(_pack(record, table) for record in body.records)
    writer.u32(body.profile).u16(len(table) - 1).u16(len(body.records)).u64(body.sequence).u64(body.dropped)
    for name in tuple(table)[1:]:
        writer.text(name, MAX_NAME)
    return writer.pad().raw(packed)


def _pack(record: ProfileRecord, table: dict[str, int]) -> bytes:
    kind, failed, queue, name, label, (x, y, z), dispatches, value, submit, start, end, size = record
    places = table.get(name), table.get(label)
    if None in places:
        places = tuple(table.setdefault(_cut(text), len(table)) for text in (name, label))  # type: ignore[assignment]
    return _RECORD.pack(kind, failed, queue, *places, x, y, z, dispatches, value, submit, start, end, size)


def _cut(text: str) -> str:
    """As `Writer.text` writes it, so that one text has one place in the table."""
    return text.replace("\0", " ").encode("utf-8", "replace")[:MAX_NAME].decode("utf-8", "ignore")


def read_records(reader: Reader) -> Records:
    """The body of a RECORDS frame."""
    profile, names, count, sequence, dropped = reader.u32(), reader.u16(), reader.u16(), reader.u64(), reader.u64()
    if not profile or not sequence or not 1 <= count <= MAX_RECORDS or names > 2 * count:
        raise PeerError(f"RECORDS {sequence} of the profile {profile} with {count} records and {names} names")
    reader.enough(names, 2)
    table = [reader.text(MAX_NAME) for _ in range(names)]
    reader.pad()
    if len(set(table)) < names or "" in table:
        raise PeerError("RECORDS with a name that is empty or there twice")
    records, used = _unpack(reader.raw(count * _RECORD.size), ["", *table])
    if used != names:
        raise PeerError(f"RECORDS with {names} names that use {used} of them")
    reader.end()
    return Records(profile, sequence, dropped, records)


def _unpack(data: memoryview, table: Sequence[str]) -> tuple[tuple[ProfileRecord, ...], int]:
    """The records, and how many names of the table they use."""
    records, used, last = [], 0, len(table) - 1
    for fields in _RECORD.iter_unpack(data):
        kind, failed, queue, name, label, x, y, z, dispatches, value, submit, start, end, size = fields
        if kind > MAX_KIND or failed > 1 or not submit <= start <= end:
            raise PeerError(f"a record of the kind {kind} with flags {failed:#x}, from {submit} to {start} to {end} ns")
        for place in (name, label):
            if place > used:
                if place > min(used + 1, last):
                    raise PeerError(f"a record with the name {place}; {used} of {last} are used before it")
                used = place
        grid, names = (x, y, z), (table[name], table[label])
        records.append(ProfileRecord(kind, failed == 1, queue, *names, grid, dispatches, value, submit, start, end, size))
    return tuple(records), used


def write_taken(writer: Writer, body: Taken) -> Writer:
    """The body of a TAKEN frame."""
    return writer.u32(body.profile).u32(0).u64(body.sequence)


def read_taken(reader: Reader) -> Taken:
    """The body of a TAKEN frame."""
    profile = reader.u32()
    reader.zeros(4)
    sequence = reader.u64()
    reader.end()
    if not profile or not sequence:
        raise PeerError(f"TAKEN {sequence} of the profile {profile}")
    return Taken(profile, sequence)
