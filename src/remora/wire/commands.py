"""Bodies of queue commands, by op. Ranges are (buffer id u64, offset u64, length u64).

BARRIER  1   nothing
FILL     2   range | pattern u32 | pattern bytes u8 | 0 x 3
UPDATE   3   range | data, padded
COPY     4   range of the source | target id u64 | target offset u64
READ     5   range                      the data comes back in RESULT, at most MAX_INLINE bytes
UPLOAD   6   range | transfer id u64    the data comes over bulk
DOWNLOAD 7   range | transfer id u64    the data goes over bulk
DISPATCH 8   executable u64 | kernel u32 | grid x y z u32 | bytes of constants u16 | bindings u16 | 0 u32
             | bindings x range | constants, padded
EXECUTE  9   see wire.execute
FILE_READ 12, FILE_WRITE 13   see wire.file_commands
ALLOCA   10  buffer id u64              the memory of a late buffer comes
DEALLOCA 11  buffer id u64              the memory goes
EXTENSION 16  see wire.extension
LOCATE   17  range                      RESULT says where the memory is (wire.sharing_calls); needs CAPABILITY_SHARED
DISPATCH_INDIRECT 14   buffer id u64 | offset u64 | body of a DISPATCH with the grid 0: the buffer holds x y z u32
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from remora.errors import PeerError
from remora.wire import file_commands
from remora.wire.execute import decode_execute
from remora.wire.extension import EXTENSION, decode_extension

__all__ = [
    "ALLOCA",
    "BARRIER",
    "COPY",
    "DEALLOCA",
    "DECODERS",
    "DISPATCH",
    "DISPATCH_INDIRECT",
    "DOWNLOAD",
    "EXECUTE",
    "FILL",
    "LOCATE",
    "MAX_BINDINGS",
    "MAX_CONSTANTS",
    "MAX_INLINE",
    "READ",
    "UPDATE",
    "UPLOAD",
    "Copy",
    "Dispatch",
    "DispatchIndirect",
    "Fill",
    "Range",
    "Transfer",
    "Update",
    "encode_buffer",
    "encode_copy",
    "encode_dispatch",
    "encode_dispatch_indirect",
    "encode_fill",
    "encode_range",
    "encode_transfer",
    "encode_update",
]

BARRIER, FILL, UPDATE, COPY, READ, UPLOAD, DOWNLOAD, DISPATCH, EXECUTE = range(1, 10)
ALLOCA, DEALLOCA, DISPATCH_INDIRECT, LOCATE = 10, 11, 14, 17

#: Data up to this size rides inside UPDATE and RESULT; more goes over bulk.
MAX_INLINE: Final = 64 << 10
#: Limits of a dispatch, those of the IREE executable-library ABI.
MAX_BINDINGS: Final = 64
MAX_CONSTANTS: Final = 256

_RANGE: Final = struct.Struct("<QQQ")
_FILL: Final = struct.Struct("<QQQ4sB3s")
_COPY: Final = struct.Struct("<QQQQQ")
_TRANSFER: Final = struct.Struct("<QQQQ")
_DISPATCH: Final = struct.Struct("<QIIIIHHI")
_RANGES: Final = tuple(struct.Struct(f"<{3 * count}Q") for count in range(MAX_BINDINGS + 1))
_BUFFER: Final = struct.Struct("<Q")
_PLACE: Final = struct.Struct("<QQ")
_NO_GRID: Final = (0, 0, 0)
_ZEROS: Final = bytes(8)


class Range(NamedTuple):
    """Bytes of a buffer."""

    buffer: int
    offset: int
    length: int


class Fill(NamedTuple):
    """A pattern of 1, 2 or 4 bytes over a range."""

    buffer: int
    offset: int
    length: int
    pattern: bytes


class Update(NamedTuple):
    """Inline data for a range. `data` is a view of the frame."""

    buffer: int
    offset: int
    length: int
    data: "memoryview"  # noqa: UP037  # mypyc does not know the name in a class body


class Copy(NamedTuple):
    """A range and where it goes."""

    buffer: int
    offset: int
    length: int
    target: int
    target_offset: int


class Transfer(NamedTuple):
    """A range that a bulk transfer fills or carries away."""

    buffer: int
    offset: int
    length: int
    transfer_id: int


class Dispatch(NamedTuple):
    """A kernel launch; `bindings` is flat: id, offset, length, id, offset, length, ..."""

    executable: int
    kernel: int
    grid: tuple[int, int, int]
    bindings: tuple[int, ...]
    constants: bytes


class DispatchIndirect(NamedTuple):
    """A kernel launch over the grid that a buffer holds at an offset; the grid of `dispatch` is zero."""

    buffer: int
    offset: int
    dispatch: Dispatch


def encode_range(buffer: int, offset: int, length: int) -> bytes:
    """Body of READ and LOCATE."""
    return _RANGE.pack(buffer, offset, length)


def encode_fill(buffer: int, offset: int, length: int, pattern: bytes) -> bytes:
    """Body of FILL."""
    return _FILL.pack(buffer, offset, length, pattern, len(pattern), b"")


def encode_update(buffer: int, offset: int, data: memoryview) -> bytes:
    """Body of UPDATE; `data` is at most MAX_INLINE bytes."""
    size = len(data)
    return b"".join((_RANGE.pack(buffer, offset, size), data, _ZEROS[: -size % 8]))


def encode_copy(buffer: int, offset: int, length: int, target: int, target_offset: int) -> bytes:
    """Body of COPY."""
    return _COPY.pack(buffer, offset, length, target, target_offset)


def encode_transfer(buffer: int, offset: int, length: int, transfer_id: int) -> bytes:
    """Body of UPLOAD and DOWNLOAD."""
    return _TRANSFER.pack(buffer, offset, length, transfer_id)


def encode_dispatch(executable: int, kernel: int, grid: tuple[int, int, int], bindings: list[int], constants: bytes) -> bytes:
    """Body of DISPATCH; `bindings` is flat as in `Dispatch`."""
    count, size = len(bindings) // 3, len(constants)
    x, y, z = grid
    head = _DISPATCH.pack(executable, kernel, x, y, z, size, count, 0) + _RANGES[count].pack(*bindings)
    return head + constants + _ZEROS[: -size % 8] if size else head


def encode_dispatch_indirect(
    buffer: int, offset: int, executable: int, kernel: int, bindings: list[int], constants: bytes
) -> bytes:
    """Body of DISPATCH_INDIRECT; `bindings` is flat as in `Dispatch`."""
    return _PLACE.pack(buffer, offset) + encode_dispatch(executable, kernel, _NO_GRID, bindings, constants)


def encode_buffer(buffer: int) -> bytes:
    """Body of ALLOCA and DEALLOCA."""
    return _BUFFER.pack(buffer)


def _decode_barrier(_view: memoryview, pos: int, end: int) -> None:
    if pos != end:
        raise PeerError("a BARRIER with a body")


def _decode_range(view: memoryview, pos: int, end: int) -> Range:
    _expect(end - pos, _RANGE.size, "READ")
    span = Range(*_RANGE.unpack_from(view, pos))
    if span.length > MAX_INLINE:
        raise PeerError(f"a READ of {span.length} bytes; above {MAX_INLINE} it is a DOWNLOAD")
    return span


def _decode_locate(view: memoryview, pos: int, end: int) -> Range:
    _expect(end - pos, _RANGE.size, "LOCATE")
    return Range(*_RANGE.unpack_from(view, pos))


def _decode_fill(view: memoryview, pos: int, end: int) -> Fill:
    _expect(end - pos, _FILL.size, "FILL")
    buffer, offset, length, pattern, size, zeros = _FILL.unpack_from(view, pos)
    if size not in (1, 2, 4) or any(pattern[size:]) or any(zeros) or length % size:
        raise PeerError(f"a FILL of {length} bytes with a pattern of {size}")
    return Fill(buffer, offset, length, pattern[:size])


def _decode_update(view: memoryview, pos: int, end: int) -> Update:
    if end - pos < _RANGE.size:
        raise PeerError("an UPDATE shorter than its header")
    buffer, offset, length = _RANGE.unpack_from(view, pos)
    pos += _RANGE.size
    if length > MAX_INLINE or end - pos != (length + 7 & ~7) or any(view[pos + length : end]):
        raise PeerError(f"an UPDATE that announces {length} bytes and brings {end - pos}")
    return Update(buffer, offset, length, view[pos : pos + length])


def _decode_copy(view: memoryview, pos: int, end: int) -> Copy:
    _expect(end - pos, _COPY.size, "COPY")
    return Copy(*_COPY.unpack_from(view, pos))


def _decode_transfer(view: memoryview, pos: int, end: int) -> Transfer:
    _expect(end - pos, _TRANSFER.size, "UPLOAD or DOWNLOAD")
    transfer = Transfer(*_TRANSFER.unpack_from(view, pos))
    if transfer.transfer_id == 0:
        raise PeerError("the transfer id 0 is not one")
    return transfer


def _decode_dispatch(view: memoryview, pos: int, end: int) -> Dispatch:
    if end - pos < _DISPATCH.size:
        raise PeerError("a DISPATCH shorter than its header")
    executable, kernel, x, y, z, size, count, zero = _DISPATCH.unpack_from(view, pos)
    pos += _DISPATCH.size
    if zero or count > MAX_BINDINGS or size > MAX_CONSTANTS or end - pos != 24 * count + (size + 7 & ~7):
        raise PeerError(f"a DISPATCH with {count} bindings and {size} bytes of constants in {end - pos} bytes")
    bindings = _RANGES[count].unpack_from(view, pos)
    if not size:
        return Dispatch(executable, kernel, (x, y, z), bindings, b"")
    pos += 24 * count
    if any(view[pos + size : end]):
        raise PeerError("a DISPATCH with padding that is not zero")
    return Dispatch(executable, kernel, (x, y, z), bindings, bytes(view[pos : pos + size]))


def _decode_dispatch_indirect(view: memoryview, pos: int, end: int) -> DispatchIndirect:
    if end - pos < _PLACE.size:
        raise PeerError("a DISPATCH_INDIRECT shorter than its header")
    buffer, offset = _PLACE.unpack_from(view, pos)
    dispatch = _decode_dispatch(view, pos + _PLACE.size, end)
    if dispatch.grid != _NO_GRID:
        raise PeerError(f"a DISPATCH_INDIRECT with the grid {dispatch.grid} beside that of its buffer")
    return DispatchIndirect(buffer, offset, dispatch)


def _decode_buffer(view: memoryview, pos: int, end: int) -> int:
    _expect(end - pos, _BUFFER.size, "ALLOCA or DEALLOCA")
    buffer: int = _BUFFER.unpack_from(view, pos)[0]
    return buffer


def _expect(got: int, want: int, name: str) -> None:
    if got != want:
        raise PeerError(f"the body of a {name} has {want} bytes, not {got}")


#: op -> decoder(view, position of the body, its end). An op that is not here is refused.
DECODERS: Final[dict[int, Callable[[memoryview, int, int], Any]]] = {
    BARRIER: _decode_barrier,
    FILL: _decode_fill,
    UPDATE: _decode_update,
    COPY: _decode_copy,
    READ: _decode_range,
    UPLOAD: _decode_transfer,
    DOWNLOAD: _decode_transfer,
    DISPATCH: _decode_dispatch,
    EXECUTE: decode_execute,
    **file_commands.DECODERS,
    ALLOCA: _decode_buffer,
    DEALLOCA: _decode_buffer,
    DISPATCH_INDIRECT: _decode_dispatch_indirect,
    EXTENSION: decode_extension,
    LOCATE: _decode_locate,
}
