"""What work touches: byte ranges of allocations, each read, written or both. Values and pure functions.

An allocation is any hashable key. Ranges are half open: two that only touch do not overlap. Empty ranges touch nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

__all__ = ["READ", "READ_WRITE", "WRITE", "Use", "conflict", "summarize"]

#: The same bits as `remora.hal.buffer.Access`.
READ = 1
WRITE = 2
READ_WRITE = 3


class Use(NamedTuple):
    """Bytes `start` to `stop` of an allocation, read (1), written (2) or both (3)."""

    allocation: Hashable
    start: int
    stop: int
    access: int


def summarize(uses: Iterable[Use]) -> tuple[Use, ...]:
    """The same bytes and accesses as sorted, disjoint ranges: what is read here and written there is READ_WRITE.

    Neighbours with the same access are one range. O(n log n) in the number of uses.
    """
    by_allocation: dict[Hashable, list[Use]] = {}
    for use in uses:
        if use.start < use.stop:
            by_allocation.setdefault(use.allocation, []).append(use)
    return tuple(merged for allocation, those in by_allocation.items() for merged in _sweep(allocation, those))


def _sweep(allocation: Hashable, uses: list[Use]) -> list[Use]:
    """Go through the ends of all ranges in order, counting the readers and writers that cover the place."""
    ends: dict[int, list[int]] = {}
    for _, start, stop, access in uses:
        reads, writes = access & READ, access >> 1
        for place, sign in ((start, 1), (stop, -1)):
            counts = ends.setdefault(place, [0, 0])
            counts[0] += sign * reads
            counts[1] += sign * writes
    merged: list[Use] = []
    readers = writers = begin = 0
    for place in sorted(ends):
        access = (READ if readers else 0) | (WRITE if writers else 0)
        if access and merged and merged[-1].stop == begin and merged[-1].access == access:
            merged[-1] = merged[-1]._replace(stop=place)
        elif access:
            merged.append(Use(allocation, begin, place, access))
        readers, writers, begin = readers + ends[place][0], writers + ends[place][1], place
    return merged


def conflict(left: Sequence[Use], right: Sequence[Use]) -> bool:
    """Whether two summaries share a byte that one of them writes. Both must come from `summarize`."""
    others: dict[Hashable, list[Use]] = {}
    for use in right:
        others.setdefault(use.allocation, []).append(use)
    position: dict[Hashable, int] = {}
    for use in left:
        those = others.get(use.allocation, ())
        at = position.get(use.allocation, 0)
        while at < len(those) and those[at].stop <= use.start:
            at += 1
        position[use.allocation] = at
        while at < len(those) and those[at].start < use.stop:
            if (use.access | those[at].access) & WRITE:
                return True
            at += 1
    return False
