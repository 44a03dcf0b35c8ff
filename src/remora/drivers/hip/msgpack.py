"""MessagePack as code objects use it: nil, booleans, whole numbers, floats, strings, bytes, arrays and maps.

The bytes are a stranger's. Every length is checked against what is left, so that no count makes this reserve memory or go on for
long, and nesting ends at MAX_DEPTH. Extension types do not occur in code objects and are refused.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from remora.errors import UsageError

__all__ = ["MAX_DEPTH", "unpack"]

MAX_DEPTH: Final = 32
#: First byte -> struct format of the number that follows.
NUMBERS: Final = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
#: First byte -> (what follows, struct format of its length).
SIZED: Final = {
    0xC4: ("bytes", ">B"), 0xC5: ("bytes", ">H"), 0xC6: ("bytes", ">I"),
    0xD9: ("text", ">B"), 0xDA: ("text", ">H"), 0xDB: ("text", ">I"),
    0xDC: ("array", ">H"), 0xDD: ("array", ">I"), 0xDE: ("map", ">H"), 0xDF: ("map", ">I"),
}  # fmt: skip
PLAIN: Final = {0xC0: None, 0xC2: False, 0xC3: True}


def unpack(data: bytes) -> Any:
    """The one value that these bytes are; what stands behind it is ignored. Raises UsageError."""
    return _Reader(data).value(0)


class _Reader:
    """Bytes and a position in them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def value(self, depth: int) -> Any:
        """The next value."""
        if depth > MAX_DEPTH:
            raise _broken(f"it is nested more than {MAX_DEPTH} deep")
        first = self._take(1)[0]
        if first < 0x80:
            return first
        if first >= 0xE0:
            return first - 0x100
        if first in PLAIN:
            return PLAIN[first]
        if first in NUMBERS:
            return self._number(NUMBERS[first])
        kind, size = self._kind(first)
        if kind == "map":
            return self._map(size, depth)
        if kind == "array":
            self._need(size)
            return [self.value(depth + 1) for _ in range(size)]
        taken = self._take(size)
        return taken.decode(errors="replace") if kind == "text" else taken

    def _kind(self, first: int) -> tuple[str, int]:
        if first < 0x90:
            return "map", first & 0x0F
        if first < 0xA0:
            return "array", first & 0x0F
        if first < 0xC0:
            return "text", first & 0x1F
        if first not in SIZED:
            raise _broken(f"the type {first:#x} does not occur in code objects")
        kind, form = SIZED[first]
        return kind, self._number(form)

    def _map(self, size: int, depth: int) -> dict[str, Any]:
        self._need(2 * size)
        found: dict[str, Any] = {}
        for _ in range(size):
            key = self.value(depth + 1)
            if not isinstance(key, str):
                raise _broken(f"a name is {type(key).__name__}, not text")
            found[key] = self.value(depth + 1)
        return found

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _need(self, size: int) -> None:
        left = len(self._data) - self._at
        if size > left:
            raise _broken(f"{size} bytes or more are to follow, {left} do")

    def _take(self, size: int) -> bytes:
        self._need(size)
        self._at += size
        return self._data[self._at - size : self._at]


def _broken(why: str) -> UsageError:
    return UsageError(f"the metadata of the code object is damaged: {why}; build the bundle again")
