"""Where the arguments of a kernel lie: addresses of 8 bytes, then constants, each at a multiple of its own size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ADDRESS_BYTES", "MAX_ARGUMENTS", "Piece", "layout", "offsets"]

ADDRESS_BYTES: Final = 8
#: Bytes of arguments that every GPU takes.
MAX_ARGUMENTS: Final = 4096


class Piece(NamedTuple):
    """Bytes `start` to `end` of the packed constants go to `place` of the arguments."""

    start: int
    end: int
    place: int


def offsets(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """(offset, size) of values of these sizes, one behind the other."""
    found, end = [], 0
    for size in sizes:
        start = -(-end // size) * size
        found.append((start, size))
        end = start + size
    return found


def layout(bindings: int, sizes: Sequence[int]) -> tuple[list[Piece], int]:
    """The pieces in which constants packed without padding are copied to their places, and the bytes of all arguments."""
    pieces: list[Piece] = []
    source, end = 0, ADDRESS_BYTES * bindings
    for place, size in offsets([ADDRESS_BYTES] * bindings + list(sizes))[bindings:]:
        if pieces and pieces[-1].place + source - pieces[-1].start == place:
            pieces[-1] = pieces[-1]._replace(end=source + size)
        else:
            pieces.append(Piece(source, source + size, place))
        source, end = source + size, place + size
    return pieces, end
