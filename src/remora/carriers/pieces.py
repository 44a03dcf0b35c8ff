"""Spans that a blocking send works through: cut, gathered into one call, advanced."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from remora.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remora.carriers.carrier import Span

__all__ = ["SPANS", "advance", "batch", "pieces_of"]

#: Spans in one gathered send (IOV_MAX of Linux), and bytes in one blocking send: a deadline is looked at in between.
SPANS = 1024
PIECE_BYTES = 4 << 20


def pieces_of(spans: Sequence[Span]) -> deque[memoryview]:
    """The spans as flat views of at most PIECE_BYTES, empty ones left out."""
    try:
        views = [memoryview(span).cast("B") for span in spans]
    except TypeError as error:
        raise UsageError(f"can only send C-contiguous memory: {error}") from error
    return deque(view[start : start + PIECE_BYTES] for view in views for start in range(0, len(view), PIECE_BYTES))


def batch(pieces: deque[memoryview]) -> list[memoryview]:
    """The first pieces: at least one, until SPANS or PIECE_BYTES are reached."""
    gathered: list[memoryview] = []
    size = 0
    for piece in islice(pieces, SPANS):
        gathered.append(piece)
        size += len(piece)
        if size >= PIECE_BYTES:
            break
    return gathered


def advance(pieces: deque[memoryview], count: int) -> int:
    """Drop `count` bytes from the front; returns how many pieces that finished."""
    finished = 0
    while count:
        head = pieces[0]
        if len(head) > count:
            pieces[0] = head[count:]
            break
        count -= len(head)
        pieces.popleft()
        finished += 1
    return finished
