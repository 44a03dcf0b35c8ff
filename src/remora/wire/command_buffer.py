"""A recorded command buffer as bytes: records back to back, in the order in which they run.

record         type u8 | 0 u8 | 0 u16 | bytes of the whole record u32 (a multiple of 8) | body
ref            buffer id u64 | offset u64 | length u64 | slot u32 | 0 u32
               buffer id 0: bytes of the binding table's entry `slot`, to its end when the length is OPEN

BARRIER      0x01   nothing
SIGNAL_EVENT 0x02   event id u64
RESET_EVENT  0x03   event id u64
WAIT_EVENT   0x04   event id u64
FILL         0x11   ref | pattern u32 | pattern bytes u8 | 0 x 3
UPDATE       0x12   ref | data bytes u32 | 0 u32 | data, padded
COPY         0x13   ref of the source | ref of the target | bytes u64
DISPATCH     0x20   executable u64 | kernel u32 | grid x y z u32 | bytes of constants u32 | bindings u32
                    | bindings x ref | constants, padded
INDIRECT     0x21   executable u64 | kernel u32 | 0 u32 | bytes of constants u32 | bindings u32 | ref of the grid (x y z u32)
                    | bindings x ref | constants, padded
BEGIN_LABEL  0x30   text, padded
END_LABEL    0x31   nothing

The stream is the payload of COMMAND_BUFFER_UPLOAD or of EXECUTE. A record that breaks a rule makes the whole stream refused: the
upload or the execute fails with INVALID_ARGUMENT and the record's number, nothing of it runs, and the session goes on.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeAlias

from remora.errors import PeerError
from remora.wire.command_buffer_calls import MAX_SLOTS
from remora.wire.layout import Reader, Writer

__all__ = [
    "BARRIER",
    "BEGIN_LABEL",
    "COPY",
    "DISPATCH",
    "END_LABEL",
    "FILL",
    "INDIRECT",
    "MAX_LABEL",
    "MAX_RECORDS",
    "MAX_UPDATE",
    "OPEN",
    "RESET_EVENT",
    "SIGNAL_EVENT",
    "UPDATE",
    "WAIT_EVENT",
    "Recorded",
    "RecordedBarrier",
    "RecordedCopy",
    "RecordedDispatch",
    "RecordedEvent",
    "RecordedFill",
    "RecordedIndirect",
    "RecordedLabel",
    "RecordedUpdate",
    "Ref",
    "decode_stream",
    "encode_stream",
]

BARRIER, SIGNAL_EVENT, RESET_EVENT, WAIT_EVENT = 0x01, 0x02, 0x03, 0x04
FILL, UPDATE, COPY, DISPATCH, INDIRECT, BEGIN_LABEL, END_LABEL = 0x11, 0x12, 0x13, 0x20, 0x21, 0x30, 0x31

#: The length of a slot's range that goes to the end of whatever is there.
OPEN: Final = (1 << 64) - 1
MAX_RECORDS: Final = 1 << 20
MAX_UPDATE: Final = 64 << 10
MAX_LABEL: Final = 256

_HEAD: Final = struct.Struct("<BBHI")
_EVENT: Final = struct.Struct("<BBHIQ")
_REF: Final = struct.Struct("<QQQII")
_FILL: Final = struct.Struct("<BBHI32s4sB3s")
_UPDATE: Final = struct.Struct("<BBHI32sII")
_COPY: Final = struct.Struct("<BBHI32s32sQ")
_DISPATCH: Final = struct.Struct("<BBHIQIIIIII")
_INDIRECT: Final = struct.Struct("<BBHIQIIII32s")
_ZEROS: Final = bytes(8)


class Ref(NamedTuple):
    """Bytes of a buffer, or with `buffer` 0 of what the binding table has at `slot` (to its end when `length` is OPEN)."""

    buffer: int
    offset: int
    length: int
    slot: int = 0


class RecordedBarrier(NamedTuple):
    """Nothing, in its place."""


class RecordedEvent(NamedTuple):
    """SIGNAL_EVENT, RESET_EVENT or WAIT_EVENT, by `kind`."""

    kind: int
    event: int


class RecordedFill(NamedTuple):
    """A pattern of 1, 2 or 4 bytes over a range."""

    target: Ref
    pattern: bytes


class RecordedUpdate(NamedTuple):
    """Data for the start of a range."""

    target: Ref
    data: bytes


class RecordedCopy(NamedTuple):
    """`size` bytes from the start of one range to the start of another."""

    source: Ref
    target: Ref
    size: int


class RecordedDispatch(NamedTuple):
    """A kernel launch."""

    executable: int
    kernel: int
    grid: tuple[int, int, int]
    bindings: tuple[Ref, ...]
    constants: bytes


class RecordedIndirect(NamedTuple):
    """A kernel launch over the grid that is at a place when its turn comes."""

    executable: int
    kernel: int
    grid: Ref
    bindings: tuple[Ref, ...]
    constants: bytes


class RecordedLabel(NamedTuple):
    """BEGIN_LABEL, or END_LABEL when the text is empty."""

    text: str


Recorded: TypeAlias = (
    RecordedBarrier
    | RecordedEvent
    | RecordedFill
    | RecordedUpdate
    | RecordedCopy
    | RecordedDispatch
    | RecordedIndirect
    | RecordedLabel
)


# -- encoding -----------------------------------------------------------------------------------------------------------------


def encode_stream(records: Iterable[Recorded]) -> bytes:
    """The stream of a recording."""
    return b"".join([_ENCODERS[type(record)](record) for record in records])


def _ref(ref: Ref) -> bytes:
    return _REF.pack(*ref, 0)


def _encode_barrier(_: RecordedBarrier) -> bytes:
    return _HEAD.pack(BARRIER, 0, 0, _HEAD.size)


def _encode_event(record: RecordedEvent) -> bytes:
    return _EVENT.pack(record.kind, 0, 0, _EVENT.size, record.event)


def _encode_fill(record: RecordedFill) -> bytes:
    return _FILL.pack(FILL, 0, 0, _FILL.size, _ref(record.target), record.pattern, len(record.pattern), b"")


def _encode_update(record: RecordedUpdate) -> bytes:
    size = len(record.data)
    head = _UPDATE.pack(UPDATE, 0, 0, _UPDATE.size + (size + 7 & ~7), _ref(record.target), size, 0)
    return b"".join((head, record.data, _ZEROS[: -size % 8]))


def _encode_copy(record: RecordedCopy) -> bytes:
    return _COPY.pack(COPY, 0, 0, _COPY.size, _ref(record.source), _ref(record.target), record.size)


def _encode_dispatch(record: RecordedDispatch) -> bytes:
    executable, kernel, (x, y, z), bindings, constants = record
    size, count = len(constants), len(bindings)
    total = _DISPATCH.size + _REF.size * count + (size + 7 & ~7)
    head = _DISPATCH.pack(DISPATCH, 0, 0, total, executable, kernel, x, y, z, size, count)
    return b"".join((head, *map(_ref, bindings), constants, _ZEROS[: -size % 8]))


def _encode_indirect(record: RecordedIndirect) -> bytes:
    executable, kernel, grid, bindings, constants = record
    size, count = len(constants), len(bindings)
    total = _INDIRECT.size + _REF.size * count + (size + 7 & ~7)
    head = _INDIRECT.pack(INDIRECT, 0, 0, total, executable, kernel, 0, size, count, _ref(grid))
    return b"".join((head, *map(_ref, bindings), constants, _ZEROS[: -size % 8]))


def _encode_label(record: RecordedLabel) -> bytes:
    if not record.text:
        return _HEAD.pack(END_LABEL, 0, 0, _HEAD.size)
    body = Writer().text(record.text, MAX_LABEL).frame(0)[8:]
    return _HEAD.pack(BEGIN_LABEL, 0, 0, _HEAD.size + len(body)) + body


_ENCODERS: Final[dict[type, Callable[[Any], bytes]]] = {
    RecordedBarrier: _encode_barrier,
    RecordedEvent: _encode_event,
    RecordedFill: _encode_fill,
    RecordedUpdate: _encode_update,
    RecordedCopy: _encode_copy,
    RecordedDispatch: _encode_dispatch,
    RecordedIndirect: _encode_indirect,
    RecordedLabel: _encode_label,
}


# -- decoding -----------------------------------------------------------------------------------------------------------------


def decode_stream(view: memoryview) -> list[Recorded]:
    """The records of a whole stream. Raises PeerError that names the record for anything else; nothing in it is a view."""
    records: list[Recorded] = []
    pos, end = 0, len(view)
    while pos < end:
        try:
            if len(records) == MAX_RECORDS:
                raise PeerError(f"a recording has at most {MAX_RECORDS} records")
            if end - pos < _HEAD.size:
                raise PeerError("it is shorter than its header")
            kind, flags, zero, size = _HEAD.unpack_from(view, pos)
            decoder = _DECODERS.get(kind)
            if decoder is None or flags or zero:
                raise PeerError(f"an unknown type {kind:#x} or unknown flags")
            if size < _HEAD.size or size % 8 or size > end - pos:
                raise PeerError(f"it announces {size} bytes where {end - pos} are left")
            records.append(decoder(view, pos, pos + size))
        except PeerError as error:
            raise PeerError(f"record {len(records)}: {error.message}") from None
        pos += size
    return records


def _fixed(got: int, layout: struct.Struct, name: str) -> None:
    if got != layout.size:
        raise PeerError(f"a recorded {name} has {layout.size} bytes, not {got}")


def _read_ref(view: memoryview | bytes, pos: int = 0) -> Ref:
    buffer, offset, length, slot, zero = _REF.unpack_from(view, pos)
    if zero or (slot and buffer) or slot >= MAX_SLOTS:
        raise PeerError(f"a binding of the buffer {buffer:#x} and the slot {slot}, or with reserved bits")
    return Ref(buffer, offset, length, slot)


def _decode_barrier(_view: memoryview, pos: int, end: int) -> RecordedBarrier:
    _fixed(end - pos, _HEAD, "BARRIER")
    return RecordedBarrier()


def _decode_event(view: memoryview, pos: int, end: int) -> RecordedEvent:
    _fixed(end - pos, _EVENT, "event")
    kind, _, _, _, event = _EVENT.unpack_from(view, pos)
    return RecordedEvent(kind, event)


def _decode_fill(view: memoryview, pos: int, end: int) -> RecordedFill:
    _fixed(end - pos, _FILL, "FILL")
    _, _, _, _, target, pattern, size, zeros = _FILL.unpack_from(view, pos)
    if size not in (1, 2, 4) or any(pattern[size:]) or any(zeros):
        raise PeerError(f"a recorded FILL with a pattern of {size} bytes")
    return RecordedFill(_read_ref(target), pattern[:size])


def _decode_update(view: memoryview, pos: int, end: int) -> RecordedUpdate:
    if end - pos < _UPDATE.size:
        raise PeerError("a recorded UPDATE shorter than its header")
    _, _, _, _, target, size, zero = _UPDATE.unpack_from(view, pos)
    pos += _UPDATE.size
    if zero or size > MAX_UPDATE or end - pos != (size + 7 & ~7) or any(view[pos + size : end]):
        raise PeerError(f"a recorded UPDATE that announces {size} bytes and brings {end - pos}")
    return RecordedUpdate(_read_ref(target), bytes(view[pos : pos + size]))


def _decode_copy(view: memoryview, pos: int, end: int) -> RecordedCopy:
    _fixed(end - pos, _COPY, "COPY")
    _, _, _, _, source, target, size = _COPY.unpack_from(view, pos)
    return RecordedCopy(_read_ref(source), _read_ref(target), size)


def _decode_dispatch(view: memoryview, pos: int, end: int) -> RecordedDispatch:
    if end - pos < _DISPATCH.size:
        raise PeerError("a recorded DISPATCH shorter than its header")
    _, _, _, _, executable, kernel, x, y, z, size, count = _DISPATCH.unpack_from(view, pos)
    return RecordedDispatch(executable, kernel, (x, y, z), *_read_arguments(view, pos + _DISPATCH.size, end, size, count))


def _decode_indirect(view: memoryview, pos: int, end: int) -> RecordedIndirect:
    if end - pos < _INDIRECT.size:
        raise PeerError("a recorded INDIRECT shorter than its header")
    _, _, _, _, executable, kernel, zero, size, count, grid = _INDIRECT.unpack_from(view, pos)
    if zero:
        raise PeerError("a recorded INDIRECT with reserved bits")
    arguments = _read_arguments(view, pos + _INDIRECT.size, end, size, count)
    return RecordedIndirect(executable, kernel, _read_ref(grid), *arguments)


def _read_arguments(view: memoryview, pos: int, end: int, size: int, count: int) -> tuple[tuple[Ref, ...], bytes]:
    """The bindings and constants of a dispatch, which fill view[pos:end]."""
    if end - pos != _REF.size * count + (size + 7 & ~7):
        raise PeerError(f"a recorded dispatch with {count} bindings and {size} bytes of constants in {end - pos} bytes")
    after = pos + _REF.size * count
    if any(view[after + size : end]):
        raise PeerError("a recorded dispatch with padding that is not zero")
    bindings = tuple([_read_ref(view, at) for at in range(pos, after, _REF.size)])
    return bindings, bytes(view[after : after + size])


def _decode_begin(view: memoryview, pos: int, end: int) -> RecordedLabel:
    reader = Reader(view[pos + _HEAD.size : end], "a label")
    text = reader.text(MAX_LABEL)
    reader.end()
    if not text:
        raise PeerError("a label without a text")
    return RecordedLabel(text)


def _decode_end(_view: memoryview, pos: int, end: int) -> RecordedLabel:
    _fixed(end - pos, _HEAD, "END_LABEL")
    return RecordedLabel("")


_DECODERS: Final[dict[int, Callable[[memoryview, int, int], Recorded]]] = {
    BARRIER: _decode_barrier,
    SIGNAL_EVENT: _decode_event,
    RESET_EVENT: _decode_event,
    WAIT_EVENT: _decode_event,
    FILL: _decode_fill,
    UPDATE: _decode_update,
    COPY: _decode_copy,
    DISPATCH: _decode_dispatch,
    INDIRECT: _decode_indirect,
    BEGIN_LABEL: _decode_begin,
    END_LABEL: _decode_end,
}
