"""The page table of an address range: what is mapped where, how it may be used, and which operations use it (requirement H22).

It is the same on both ends of a link: a client refuses from its own table what the server would refuse. A change of the pages is
refused while an operation, or a mapping of the host, uses any of them; so no memory goes while something works on it, and no change
waits for work that may itself wait for the host.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from remora.errors import ClosedError, Status, UsageError
from remora.hal.buffer import Access, Buffer, BufferView

if TYPE_CHECKING:
    from remora.hal.semaphore import Timepoint

__all__ = ["Hold", "PageTable", "Span", "Use", "submit_using", "uses_of"]

#: Ended holds are swept when there are this many, or twice as many as were left by the last sweep.
SWEEP_AT = 64
NO_ACCESS = Access(0)
_offset_of = attrgetter("offset")


class Span(NamedTuple):
    """`length` bytes from `offset` of an address range, and the physical memory behind them. All in bytes, whole pages."""

    offset: int
    length: int
    physical: Any
    """The PhysicalMemory."""
    physical_offset: int
    access: Access
    """How these pages may be used; no bit set: not at all."""

    def part(self, offset: int, end: int) -> Span:
        """The part of it that lies between two offsets, of which there must be some."""
        start = max(offset, self.offset)
        length = min(end, self.offset + self.length) - start
        return self._replace(offset=start, length=length, physical_offset=self.physical_offset + start - self.offset)


class Hold:
    """Bytes that an operation uses until its timepoint is settled; until it has one, it is being submitted."""

    __slots__ = ("end", "over", "point", "start")

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.point: Timepoint | None = None
        self.over = False

    def ended(self) -> bool:
        """Whether the operation is done, has failed, or was never submitted."""
        point = self.point
        return self.over or (point is not None and point.semaphore._settled(point.value))


class Use(NamedTuple):
    """An operation will use `size` bytes from `offset` of a page table's range in this way."""

    pages: PageTable
    offset: int
    size: int
    access: Access


class PageTable:
    """The pages of one address range of `size` bytes. Any thread may call.

    A change is made in two steps, with the driver's work between them: `claim_*` checks it and keeps operations off, then `commit`
    writes the new spans, or the old ones if the driver failed. `changing` is held over both.
    """

    def __init__(self, size: int, page_size: int) -> None:
        self.size = size
        self.page_size = page_size
        self.changing = threading.RLock()
        self.closed = False
        self._lock = threading.Lock()
        self._spans: list[Span] = []
        self._holds: list[Hold] = []
        self._sweep_at = SWEEP_AT

    # -- what is there --------------------------------------------------------------------------------------------------------

    def spans(self) -> tuple[Span, ...]:
        """What is mapped, by offset."""
        with self._lock:
            return tuple(self._spans)

    def maps(self, physical: Any) -> bool:
        """Whether any page of this physical memory is mapped."""
        with self._lock:
            return any(span.physical is physical for span in self._spans)

    def check(self, offset: int, size: int, access: Access) -> None:
        """Raise UsageError unless all of these bytes are mapped and may be used so."""
        with self._lock:
            self._check(offset, size, access)

    # -- use ------------------------------------------------------------------------------------------------------------------

    def enter(self, offset: int, size: int, access: Access) -> Hold:
        """Check as `check` does, and keep these bytes as they are until the hold has ended."""
        hold = Hold(offset, offset + size)
        with self._lock:
            if self.closed:
                raise ClosedError("the address range was closed; reserve a new one")
            self._check(offset, size, access)
            if len(self._holds) >= self._sweep_at:
                self._holds = [other for other in self._holds if not other.ended()]
                self._sweep_at = max(SWEEP_AT, 2 * len(self._holds))
            self._holds.append(hold)
        return hold

    # -- change ---------------------------------------------------------------------------------------------------------------

    def claim_free(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Raise UsageError unless each (offset, length) is whole pages inside the range, unmapped, and apart from the others."""
        with self._lock:
            self._check_open()
            end = 0
            for offset, length in sorted(ranges):
                self.check_pages(offset, length, self.size, "the reservation")
                if offset < end:
                    raise UsageError(f"bytes {offset} to {offset + length} are given twice: map each page once")
                end = offset + length
                taken = next(self._within(offset, end), None)
                if taken is not None:
                    raise UsageError(
                        f"bytes {taken.offset} to {taken.offset + taken.length} of the reservation are mapped: unmap them first",
                        code=Status.FAILED_PRECONDITION,
                    )

    def claim_mapped(self, offset: int, length: int, host: Callable[[], Sequence[tuple[int, int]]]) -> list[Span]:
        """Take mapped pages out of use; `commit` gives them back. Returns what they were.

        `host()` gives (start, end) of live mappings of the host. Raises UsageError for bytes that are no whole pages, outside the
        range, not mapped, or in use.
        """
        with self._lock:
            self._check_open()
            self.check_pages(offset, length, self.size, "the reservation")
            old = self._check(offset, length, NO_ACCESS)
            self._check_unused(offset, offset + length, host)
            self._replace(offset, offset + length, [span._replace(access=NO_ACCESS) for span in old])
            return old

    def commit(self, offset: int, length: int, spans: Iterable[Span]) -> None:
        """These are the spans between two offsets now."""
        with self._lock:
            self._replace(offset, offset + length, spans)

    def claim_end(self) -> None:
        """Nothing may enter any more. Raises UsageError while pages are mapped or in use."""
        with self._lock:
            if self._spans:
                first = self._spans[0]
                raise UsageError(
                    f"bytes {first.offset} to {first.offset + first.length} of the reservation are mapped: clear() it",
                    code=Status.FAILED_PRECONDITION,
                )
            self._check_unused(0, self.size, tuple)
            self.closed = True

    def give_up(self) -> None:
        """Nothing may enter any more, whatever is mapped; what operations in flight use stays."""
        with self._lock:
            self.closed = True
            if all(hold.ended() for hold in self._holds):
                self._spans.clear()

    def check_pages(self, offset: int, length: int, limit: int, what: str) -> None:
        """Raise UsageError unless the bytes are whole pages, at least one, inside `limit` bytes of `what`."""
        page = self.page_size
        if offset % page or length % page or length <= 0:
            raise UsageError(f"{length} bytes at {offset} of {what} are no whole pages: use multiples of {page} bytes")
        if offset < 0 or offset + length > limit:
            raise UsageError(f"{length} bytes at {offset} are not inside {what} of {limit} bytes", code=Status.OUT_OF_RANGE)

    # -- inside; the lock is held ---------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("the address range was closed; reserve a new one")

    def _check(self, offset: int, size: int, access: Access) -> list[Span]:
        """The parts of spans that cover the bytes. Raises UsageError where one is missing or refuses the access."""
        found: list[Span] = []
        at, end = offset, offset + size
        for span in self._within(offset, end):
            if span.offset > at:
                break
            if access & ~span.access:
                raise UsageError(
                    f"bytes {at} to {min(end, span.offset + span.length)} of the reservation allow {told(span.access)}, "
                    f"not {told(access)}: protect() them otherwise",
                    code=Status.PERMISSION_DENIED,
                )
            part = span.part(offset, end)
            found.append(part)
            at = part.offset + part.length
        if at < end:
            gap = next((span.offset for span in self._within(at, end)), end)
            raise UsageError(
                f"bytes {at} to {gap} of the reservation are not mapped: map physical memory there first",
                code=Status.FAILED_PRECONDITION,
            )
        return found

    def _check_unused(self, offset: int, end: int, host: Callable[[], Sequence[tuple[int, int]]]) -> None:
        used = any(hold.start < end and offset < hold.end and not hold.ended() for hold in self._holds)
        if used or any(start < end and offset < stop for start, stop in host()):  # a mapping is noted before its hold ends
            raise UsageError(
                f"bytes {offset} to {end} of the reservation are used by operations in flight, or mapped by the host: "
                "wait for the timepoints and close the mappings first",
                code=Status.FAILED_PRECONDITION,
            )

    def _within(self, offset: int, end: int) -> Iterator[Span]:
        """The spans that share a byte with a range, in order."""
        at = max(bisect_right(self._spans, offset, key=_offset_of) - 1, 0)
        while at < len(self._spans) and self._spans[at].offset < end:
            span = self._spans[at]
            if span.offset + span.length > offset and end > offset:
                yield span
            at += 1

    def _replace(self, offset: int, end: int, spans: Iterable[Span]) -> None:
        """Put other spans, which lie between two offsets, in the place of all that is there; equal neighbours become one."""
        old = list(self._within(offset, end))
        first = bisect_left(self._spans, old[0].offset if old else offset, key=_offset_of)
        last = first + len(old)
        kept = self._spans[max(first - 1, 0) : first]
        fresh = kept + [span.part(span.offset, offset) for span in old[:1] if span.offset < offset]
        fresh += sorted(spans, key=_offset_of)
        fresh += [span.part(end, span.offset + span.length) for span in old[-1:] if span.offset + span.length > end]
        fresh += self._spans[last : last + 1]
        self._spans[first - len(kept) : last + 1] = joined(fresh)


def joined(spans: Iterable[Span]) -> list[Span]:
    """The spans, in order, with those made one that follow each other on both sides and allow the same."""
    found: list[Span] = []
    for span in spans:
        before = found[-1] if found else None
        if (
            before is not None
            and before.offset + before.length == span.offset
            and before.physical is span.physical
            and before.physical_offset + before.length == span.physical_offset
            and before.access == span.access
        ):
            found[-1] = before._replace(length=before.length + span.length)
        else:
            found.append(span)
    return found


def told(access: Access) -> str:
    """An access for people."""
    names = {Access.READ: "reading", Access.WRITE: "writing"}
    return " and ".join(name for bit, name in names.items() if access & bit) or "nothing"


def uses_of(touched: Iterable[tuple[Buffer | BufferView, int, Access]]) -> list[Use]:
    """The uses of virtual memory among operands, each with how many of its bytes are touched and how."""
    return [
        Use(pages, binding.offset, size, access & Access.READ_WRITE)
        for binding, size, access in touched
        if (pages := binding.buffer._pages) is not None
    ]


def submit_using(uses: Sequence[Use], submit: Callable[[], Timepoint]) -> Timepoint:
    """Submit an operation that uses virtual memory: everything is checked first, and the pages stay until it is done."""
    holds: list[Hold] = []
    try:
        for pages, offset, size, access in uses:
            holds.append(pages.enter(offset, size, access))
        point = submit()
    except BaseException:
        for hold in holds:
            hold.over = True
        raise
    for hold in holds:
        hold.point = point
    return point
