"""Body of the queue command EXTENSION (op 16): an operation of the vendor's own, by its namespace and number.

EXTENSION 16   operation u32 | bytes of the payload u32 | bytes of the namespace u16 | buffers u16 | 0 u32
               | buffers x (buffer id u64, offset u64, length u64) | namespace, padded | payload, padded
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from remora.errors import PeerError

__all__ = ["EXTENSION", "MAX_NAMESPACE", "MAX_OPERANDS", "MAX_PAYLOAD", "Extend", "decode_extension", "encode_extension"]

EXTENSION: Final = 16
#: Bytes of a namespace in UTF-8, bytes of a payload, and buffers.
MAX_NAMESPACE: Final = 256
MAX_PAYLOAD: Final = 64 << 10
MAX_OPERANDS: Final = 64

_HEAD: Final = struct.Struct("<IIHHI")
_RANGE: Final = struct.Struct("<QQQ")
_ZEROS: Final = bytes(8)


class Extend(NamedTuple):
    """An operation of an extension. `buffers` are (id, offset, length)."""

    namespace: str
    operation: int
    payload: bytes
    buffers: tuple[tuple[int, int, int], ...]


def encode_extension(namespace: str, operation: int, payload: bytes, buffers: Sequence[tuple[int, int, int]]) -> bytes:
    """The body."""
    name = namespace.encode()
    head = _HEAD.pack(operation, len(payload), len(name), len(buffers), 0)
    ranges = [_RANGE.pack(*each) for each in buffers]
    return b"".join((head, *ranges, name, _ZEROS[: -len(name) % 8], payload, _ZEROS[: -len(payload) % 8]))


def decode_extension(view: memoryview, pos: int, end: int) -> Extend:
    """The body at view[pos:end]; nothing in it is a view."""
    if end - pos < _HEAD.size:
        raise PeerError("an EXTENSION shorter than its header")
    operation, size, length, count, zero = _HEAD.unpack_from(view, pos)
    ranges = pos + _HEAD.size
    name = ranges + _RANGE.size * count
    data = name + (length + 7 & ~7)
    if zero or count > MAX_OPERANDS or not 1 <= length <= MAX_NAMESPACE or size > MAX_PAYLOAD or data + (size + 7 & ~7) != end:
        raise PeerError(f"an EXTENSION with {count} buffers, a namespace of {length} and a payload of {size} bytes in {end - pos}")
    if any(view[name + length : data]) or any(view[data + size : end]):
        raise PeerError("an EXTENSION with padding that is not zero")
    try:
        namespace = str(view[name : name + length], "utf-8")
    except UnicodeDecodeError as error:
        raise PeerError(f"an EXTENSION whose namespace is not UTF-8: {error.reason}") from None
    return Extend(namespace, operation, bytes(view[data : data + size]), tuple(_RANGE.iter_unpack(view[ranges:name])))
