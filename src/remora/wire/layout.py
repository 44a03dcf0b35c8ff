"""The bricks of every frame: limits, padding, a bounds-checked reader and a writer. All numbers are little-endian.

    frame header, 8 bytes     size u32 | kind u8 | byte u8 | two u8 or one u16, by kind
    text                      size u16 | that many bytes of UTF-8 without NUL

`size` counts the whole frame and is a multiple of 8. Reserved bytes are zero and are checked; there is no compatibility mode.
"""

from __future__ import annotations

import struct
from typing import Final

from remora.base.ids import MAX_COUNTER, ResourceType
from remora.errors import PeerError

__all__ = [
    "HEADER",
    "MAGIC",
    "MAX_BULK_FRAME",
    "MAX_CONTROL_FRAME",
    "MAX_QUEUE_FRAME",
    "VERSION",
    "Reader",
    "Writer",
    "is_id",
    "pad8",
]

#: Version of everything in this room. Another version is refused.
VERSION: Final = 1
#: Opens every bootstrap frame, so that a stranger on the port is recognised at once.
MAGIC: Final = b"remora\r\n"
HEADER: Final = struct.Struct("<IBBH")

MAX_CONTROL_FRAME: Final = 1 << 20
MAX_QUEUE_FRAME: Final = 1 << 17
#: One DATA frame: its 24-byte header and 1 MiB.
MAX_BULK_FRAME: Final = (1 << 20) + 24

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_ZEROS = bytes(8)


def pad8(size: int) -> int:
    """`size` rounded up to a multiple of 8."""
    return size + 7 & ~7


def is_id(resource: int, kind: ResourceType | int, *, provisional: bool) -> bool:
    """Whether a u64 is an id of this type, made by a client (`provisional`) or by a server's table (base.ids)."""
    return resource >> 48 == (kind << 8 | provisional << 7) and (not provisional or resource & MAX_COUNTER != 0)


class Reader:
    """Reads fields from a body in order. Every method raises PeerError instead of reading past the end."""

    __slots__ = ("_end", "_name", "_pos", "_view")

    def __init__(self, view: memoryview, name: str) -> None:
        self._view = view
        self._pos = 0
        self._end = len(view)
        self._name = name

    def _take(self, size: int) -> int:
        pos = self._pos
        if size > self._end - pos:
            raise PeerError(f"{self._name} ends {size - (self._end - pos)} bytes early")
        self._pos = pos + size
        return pos

    def u8(self) -> int:
        """One byte."""
        return self._view[self._take(1)]

    def u16(self) -> int:
        """Two bytes."""
        return int(_U16.unpack_from(self._view, self._take(2))[0])

    def u32(self) -> int:
        """Four bytes."""
        return int(_U32.unpack_from(self._view, self._take(4))[0])

    def u64(self) -> int:
        """Eight bytes."""
        return int(_U64.unpack_from(self._view, self._take(8))[0])

    def zeros(self, size: int) -> None:
        """Reserved bytes, which must be zero."""
        pos = self._take(size)
        if any(self._view[pos : pos + size]):
            raise PeerError(f"{self._name} has reserved bytes that are not zero")

    def raw(self, size: int) -> memoryview:
        """`size` bytes, as a view."""
        pos = self._take(size)
        return self._view[pos : pos + size]

    def text(self, limit: int) -> str:
        """A u16 length and that many bytes of UTF-8, without NUL."""
        size = self.u16()
        if size > limit:
            raise PeerError(f"{self._name} has a text of {size} bytes, the limit is {limit}")
        try:
            text = str(self.raw(size), "utf-8")
        except UnicodeDecodeError as error:
            raise PeerError(f"{self._name} has a text that is not UTF-8: {error.reason}") from None
        if "\0" in text:
            raise PeerError(f"{self._name} has a text with a NUL in it")
        return text

    def enough(self, count: int, size: int) -> None:
        """Check that `count` items of at least `size` bytes are left, before anything is built from the count."""
        if count * size > self._end - self._pos:
            raise PeerError(f"{self._name} announces {count} items and is too short for them")

    def pad(self) -> None:
        """The zero padding to a multiple of 8."""
        self.zeros(-self._pos % 8)

    def end(self) -> None:
        """The zero padding to a multiple of 8, and then nothing."""
        self.pad()
        if self._pos != self._end:
            raise PeerError(f"{self._name} has {self._end - self._pos} bytes too many")


class Writer:
    """Builds one frame; `frame(kind)` puts the header in front and the padding behind."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = bytearray(8)

    def u8(self, value: int) -> Writer:
        """One byte."""
        self._bytes.append(value)
        return self

    def u16(self, value: int) -> Writer:
        """Two bytes."""
        self._bytes += _U16.pack(value)
        return self

    def u32(self, value: int) -> Writer:
        """Four bytes."""
        self._bytes += _U32.pack(value)
        return self

    def u64(self, value: int) -> Writer:
        """Eight bytes."""
        self._bytes += _U64.pack(value)
        return self

    def raw(self, data: bytes | bytearray | memoryview) -> Writer:
        """Bytes as they are."""
        self._bytes += data
        return self

    def pad(self) -> Writer:
        """Zeros to a multiple of 8."""
        self._bytes += _ZEROS[: -len(self._bytes) % 8]
        return self

    def text(self, text: str, limit: int) -> Writer:
        """A u16 length and UTF-8, cut at a character's end to at most `limit` bytes; NULs become spaces."""
        data = text.replace("\0", " ").encode("utf-8", "replace")[:limit]
        data = data.decode("utf-8", "ignore").encode()
        return self.u16(len(data)).raw(data)

    def frame(self, kind: int, flags: int = 0, aux: int = 0) -> bytes:
        """The whole frame."""
        self.pad()
        HEADER.pack_into(self._bytes, 0, len(self._bytes), kind, flags, aux)
        return bytes(self._bytes)
