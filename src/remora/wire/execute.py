"""Body of the queue command EXECUTE (op 9): run a command buffer under a binding table, with changes.

EXECUTE  9   command buffer u64 (0: the stream comes along) | transfer id u64 (0: the payload comes along)
             | slots u32 | patches u32 | bytes of patches u32 | bytes of the stream u32 | payload if the transfer id is 0
payload      slots x (buffer id u64, offset u64, length u64) | patches | stream (wire.command_buffer)
patch        record u32 | what u8 (1 grid, 2 constants) | 0 u8 | bindings u16 | grid x y z u32 | bytes of constants u32
             | bindings x (position u32, 0 u32, buffer id u64, offset u64, length u64) | constants, padded

A payload above MAX_EXECUTE goes over bulk. Patches are ascending by record; what a patch does not change is zero.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from remora.errors import PeerError
from remora.wire.command_buffer_calls import MAX_SLOTS, MAX_STREAM

__all__ = [
    "MAX_EXECUTE",
    "Announced",
    "Changed",
    "Execute",
    "Span",
    "decode_execute",
    "encode_announced",
    "encode_execute",
    "encode_payload",
    "read_payload",
]

#: A payload up to this size rides inside EXECUTE; more goes over bulk.
MAX_EXECUTE: Final = 64 << 10

#: (buffer id, offset, length)
Span: TypeAlias = "tuple[int, int, int]"

_HEAD: Final = struct.Struct("<QQIIII")
_RANGE: Final = struct.Struct("<QQQ")
_PATCH: Final = struct.Struct("<IBBHIIII")
_BINDING: Final = struct.Struct("<IIQQQ")
_GRID, _CONSTANTS = 1, 2
_ZEROS: Final = bytes(8)


class Changed(NamedTuple):
    """What an execution changes in one recorded dispatch; None is as recorded. `bindings`: (position, buffer, offset, length)."""

    record: int
    grid: tuple[int, int, int] | None
    constants: bytes | None
    bindings: tuple[tuple[int, int, int, int], ...]


class Execute(NamedTuple):
    """A whole EXECUTE. `command_buffer` is 0 when `stream` is what runs, a view of the frame."""

    command_buffer: int
    table: tuple[Span, ...]
    patches: tuple[Changed, ...]
    stream: memoryview


class Announced(NamedTuple):
    """An EXECUTE whose payload comes over bulk: `read_payload` makes an Execute of it."""

    command_buffer: int
    transfer_id: int
    slots: int
    patches: int
    patch_bytes: int
    stream_bytes: int

    @property
    def size(self) -> int:
        """Bytes of the payload."""
        return _RANGE.size * self.slots + self.patch_bytes + self.stream_bytes


def encode_payload(table: Sequence[Span], patches: Sequence[Changed], stream: bytes | memoryview) -> tuple[bytes, int]:
    """(payload, bytes of patches)"""
    changes = b"".join(map(_encode_patch, patches))
    return b"".join((*[_RANGE.pack(*entry) for entry in table], changes, stream)), len(changes)


def encode_execute(command_buffer: int, table: Sequence[Span], patches: Sequence[Changed], stream: bytes | memoryview) -> bytes:
    """Body of an EXECUTE whose payload has at most MAX_EXECUTE bytes."""
    payload, size = encode_payload(table, patches, stream)
    return _HEAD.pack(command_buffer, 0, len(table), len(patches), size, len(stream)) + payload


def encode_announced(body: Announced) -> bytes:
    """Body of an EXECUTE whose payload goes over bulk."""
    return _HEAD.pack(*body)


def decode_execute(view: memoryview, pos: int, end: int) -> Execute | Announced:
    """The body at view[pos:end]."""
    if end - pos < _HEAD.size:
        raise PeerError("an EXECUTE shorter than its header")
    body = Announced(*_HEAD.unpack_from(view, pos))
    if body.slots > MAX_SLOTS or body.stream_bytes % 8 or body.patch_bytes < _PATCH.size * body.patches:
        raise PeerError(f"an EXECUTE with {body.slots} slots, {body.patches} patches and a stream of {body.stream_bytes} bytes")
    if body.command_buffer and body.stream_bytes:
        raise PeerError(f"an EXECUTE of {body.command_buffer:#x} with a stream of {body.stream_bytes} bytes beside it")
    pos += _HEAD.size
    here = 0 if body.transfer_id else body.size
    if end - pos != here or body.size > (MAX_STREAM if body.transfer_id else MAX_EXECUTE):
        raise PeerError(f"an EXECUTE with a payload of {body.size} bytes and {end - pos} bytes here")
    if body.transfer_id:
        if not body.size:
            raise PeerError("an EXECUTE with a transfer of nothing")
        return body
    return _read_payload(body, view, pos)


def read_payload(body: Announced, payload: memoryview) -> Execute:
    """The whole command, now that its payload is here. Raises PeerError for one that breaks a rule."""
    if len(payload) != body.size:
        raise PeerError(f"a payload of {len(payload)} bytes for an EXECUTE that announced {body.size}")
    return _read_payload(body, payload, 0)


def _read_payload(body: Announced, view: memoryview, pos: int) -> Execute:
    after = pos + _RANGE.size * body.slots
    table = tuple(_RANGE.iter_unpack(view[pos:after]))
    pos, end = after, after + body.patch_bytes
    patches: list[Changed] = []
    for _ in range(body.patches):
        patch, pos = _read_patch(view, pos, end)
        if patches and patch.record <= patches[-1].record:
            raise PeerError("patches must be strictly ascending by record")
        patches.append(patch)
    if pos != end:
        raise PeerError(f"an EXECUTE with {end - pos} bytes behind its patches")
    return Execute(body.command_buffer, table, tuple(patches), view[end : end + body.stream_bytes])


def _encode_patch(patch: Changed) -> bytes:
    constants = patch.constants or b""
    what = (_GRID if patch.grid is not None else 0) | (_CONSTANTS if patch.constants is not None else 0)
    head = _PATCH.pack(patch.record, what, 0, len(patch.bindings), *(patch.grid or (0, 0, 0)), len(constants))
    bindings = [_BINDING.pack(position, 0, buffer, offset, length) for position, buffer, offset, length in patch.bindings]
    return b"".join((head, *bindings, constants, _ZEROS[: -len(constants) % 8]))


def _read_patch(view: memoryview, pos: int, end: int) -> tuple[Changed, int]:
    """(patch, where the next begins)"""
    if end - pos < _PATCH.size:
        raise PeerError("a patch shorter than its header")
    record, what, zero, count, x, y, z, size = _PATCH.unpack_from(view, pos)
    pos += _PATCH.size
    after = pos + _BINDING.size * count
    stop = after + (size + 7 & ~7)
    if zero or what > _GRID | _CONSTANTS or stop > end or any(view[after + size : stop]):
        raise PeerError(f"a patch of record {record} with flags {what:#x}, {count} bindings and {size} bytes of constants")
    if (not what & _GRID and (x or y or z)) or (not what & _CONSTANTS and size):
        raise PeerError(f"a patch of record {record} with a grid or constants that it does not change")
    bindings: list[tuple[int, int, int, int]] = []
    for position, reserved, buffer, offset, length in _BINDING.iter_unpack(view[pos:after]):
        if reserved or (bindings and position <= bindings[-1][0]):
            raise PeerError(f"a patch of record {record} whose bindings are not strictly ascending, or with reserved bits")
        bindings.append((position, buffer, offset, length))
    constants = bytes(view[after : after + size]) if what & _CONSTANTS else None
    return Changed(record, (x, y, z) if what & _GRID else None, constants, tuple(bindings)), stop
