"""A byte stream cut into frames. Bytes in, whole frames out; what is left waits for the next bytes."""

from __future__ import annotations

import struct
from typing import Final

from remora.errors import PeerError

__all__ = ["FrameSplitter"]

_SIZE: Final = struct.Struct("<I")
_NOTHING: Final = memoryview(b"")


class FrameSplitter:
    """Cuts one lane's stream into frames of at most `limit` bytes. Not thread-safe; it never holds more than one frame."""

    __slots__ = ("_held", "_need", "broken", "lane", "limit")

    def __init__(self, lane: str, limit: int) -> None:
        self.lane = lane
        self.limit = limit
        self.broken = False
        """Whether a size that is no frame's follows the frames that came out: the next `feed` raises."""
        self._held = bytearray()
        self._need = 0  # a held frame is looked at again when this many bytes are there, so that a trickle costs no copies

    @property
    def held(self) -> int:
        """Bytes of an unfinished frame that wait for the rest."""
        return len(self._held)

    def feed(self, view: memoryview) -> tuple[memoryview, int]:
        """(bytes, end): whole frames lie back to back in bytes[:end]. Valid until `view` is overwritten.

        Raises PeerError for a size that is no frame's; when whole frames lie before it, they come out first and `broken` is set.
        """
        if self._held:
            self._held += view
            if len(self._held) < self._need:
                return _NOTHING, 0
            view = memoryview(self._held)
            self._held = bytearray()
        end, total, need = 0, len(view), 4
        while total - end >= 4:
            size = _SIZE.unpack_from(view, end)[0]
            if size < 8 or size & 7 or size > self.limit:
                if not end:
                    raise self._bad(size, view)
                self.broken = True
                break
            if size > total - end:
                need = size
                break
            end += size
        if end < total:
            self._held += view[end:]
            self._need = need
        return view, end

    def _bad(self, size: int, rest: memoryview) -> PeerError:
        start = bytes(rest[:16])
        return PeerError(
            f"the {self.lane} lane got a frame size of {size} (8 to {self.limit}, a multiple of 8); it begins with {start!r}. "
            "Is the other side remora?"
        )
