"""The hazard frontier: for every byte, who wrote it last and who has read it since (requirement G05, reference/graph.md 2.2).

Work is added in the order in which it must appear to run. What it has to wait for follows from the bytes it touches:

    read  after write   the last writer
    write after write   the last writer
    write after read    every reader since

Each piece of work has a place: a lane, and a number that grows along the lane. Work on a lane runs in the order of its numbers, so
of several places on one lane only the greatest is waited for. With a lane for each piece of work the result is the plain set of
dependencies. A write takes the place of all that it covers, so many rewrites make a chain, and memory grows with the number of
different ranges that are alive, not with history.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable

from remora.graph.uses import READ, WRITE, Use

__all__ = ["HazardFrontier"]


class _Segment:
    """Bytes up to `stop` with one history."""

    __slots__ = ("readers", "stop", "writer")

    def __init__(self, stop: int, writer: tuple[int, int] | None, readers: dict[int, int]) -> None:
        self.stop = stop
        self.writer = writer
        self.readers = readers


class _Line:
    """The segments of one allocation, by their starts. They are disjoint; between them nothing was touched."""

    __slots__ = ("segments", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.segments: list[_Segment] = []

    def cut(self, place: int) -> int:
        """See to it that no segment goes across `place`; the index of the first one from there on."""
        at = bisect_right(self.starts, place)
        if at and self.starts[at - 1] == place:
            return at - 1
        if at and self.segments[at - 1].stop > place:
            left = self.segments[at - 1]
            self.starts.insert(at, place)
            self.segments.insert(at, _Segment(left.stop, left.writer, dict(left.readers)))
            left.stop = place
        return at

    def whole(self, start: int, stop: int) -> _Segment | None:
        """The segment that is exactly this range, which is the common case when the same work comes again."""
        at = bisect_right(self.starts, start) - 1
        if at >= 0 and self.starts[at] == start and self.segments[at].stop == stop:
            return self.segments[at]
        return None

    def replace(self, first: int, last: int, start: int, segment: _Segment) -> None:
        """Put one segment in the place of those from `first` to before `last`."""
        self.starts[first:last] = [start]
        self.segments[first:last] = [segment]

    def fill_holes(self, first: int, last: int, start: int, stop: int) -> int:
        """Give every byte from `start` to `stop` a segment; the new `last`."""
        at, place = first, start
        while at < last:
            if place < self.starts[at]:
                self._insert(at, place, self.starts[at])
                at, last = at + 1, last + 1
            place = self.segments[at].stop
            at += 1
        if place < stop:
            self._insert(at, place, stop)
            last += 1
        return last

    def _insert(self, at: int, start: int, stop: int) -> None:
        self.starts.insert(at, start)
        self.segments.insert(at, _Segment(stop, None, {}))


class HazardFrontier:
    """See above. Not for several threads at once."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, _Line] = {}

    def __len__(self) -> int:
        """How many ranges are kept."""
        return sum(len(line.starts) for line in self._lines.values())

    def add(self, lane: int, number: int, uses: Iterable[Use]) -> dict[int, int]:
        """Take work at a place in; what it must wait for, as the greatest number on each lane. Its own place is not among them."""
        needs: dict[int, int] = {}
        for allocation, start, stop, access in uses:
            if start >= stop:
                continue
            line = self._lines.get(allocation)
            if line is None:
                line = self._lines[allocation] = _Line()
            if (segment := line.whole(start, stop)) is not None:
                _meet(segment, lane, number, access, needs)
            else:
                _touch(line, lane, number, start, stop, access, needs)
        if needs.get(lane) == number:
            del needs[lane]
        return needs

    def forget(self, allocation: Hashable) -> None:
        """The allocation is gone; its key may come again for another one."""
        self._lines.pop(allocation, None)


def _meet(segment: _Segment, lane: int, number: int, access: int, needs: dict[int, int]) -> None:
    """One piece of work uses one whole segment."""
    if segment.writer is not None:
        _need(needs, lane, number, *segment.writer)
    if access & WRITE:
        for other, last in segment.readers.items():
            _need(needs, lane, number, other, last)
        segment.readers.clear()
        segment.writer = (lane, number)
    elif access & READ:
        segment.readers[lane] = number


def _need(needs: dict[int, int], lane: int, number: int, other: int, last: int) -> None:
    """Wait for a place, unless it is one's own."""
    if (other != lane or last != number) and needs.get(other, -1) < last:
        needs[other] = last


def _touch(line: _Line, lane: int, number: int, start: int, stop: int, access: int, needs: dict[int, int]) -> None:
    """One piece of work uses a range that is no segment yet."""
    first = line.cut(start)
    last = line.cut(stop)
    if access & WRITE:
        for segment in line.segments[first:last]:
            _meet(segment, lane, number, access, needs)
        line.replace(first, last, start, _Segment(stop, (lane, number), {}))
        return
    last = line.fill_holes(first, last, start, stop)
    for segment in line.segments[first:last]:
        _meet(segment, lane, number, access, needs)
