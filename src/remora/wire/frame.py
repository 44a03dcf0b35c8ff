"""A byte stream cut into frames. Bytes in, whole frames out; what is left waits for the next bytes."""

from __future__ import annotations

import struct
from typing import Final

from remora.errors import PeerError

__all__ = ["FrameSplitter"]

_SIZE: Final = struct.Struct("<I")


class FrameSplitter:
    """Cuts one lane's stream into frames of at most `limit` bytes. Not thread-safe; it never holds more than one frame."""

    __slots__ = ("_held", "lane", "limit")

    def __init__(self, lane: str, limit: int) -> None:
        self.lane = lane
        self.limit = limit
        self._held = bytearray()

    @property
    def held(self) -> int:
        """Bytes of an unfinished frame that wait for the rest."""
        return len(self._held)

    def feed(self, view: memoryview) -> tuple[memoryview, int]:
        """(bytes, end): whole frames lie back to back in bytes[:end]. Valid until `view` is overwritten.

        Raises PeerError for a size that is no frame's.
        """
        if self._held:
            self._held += view
            view = memoryview(bytes(self._held))
            self._held.clear()
        end, total = 0, len(view)
        while total - end >= 4:
            size = _SIZE.unpack_from(view, end)[0]
            if size < 8 or size & 7 or size > self.limit:
                raise self._bad(size, view[end:])
            if size > total - end:
                break
            end += size
        if end < total:
            self._held += view[end:]
        return view, end

    def _bad(self, size: int, rest: memoryview) -> PeerError:
        start = bytes(rest[:16])
        return PeerError(
            f"the {self.lane} lane got a frame size of {size} (8 to {self.limit}, a multiple of 8); it begins with {start!r}. "
            "Is the other side remora?"
        )
