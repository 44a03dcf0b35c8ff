"""Virtual memory: address ranges, physical memory, and what is mapped where (requirement H22).

A `Reservation` is a range of device addresses with nothing behind it. `map` puts pages of `PhysicalMemory` there, `unmap` takes
them away, `protect` says how they may be used. The addresses stay the same, so a buffer can grow in place, and the same physical
memory can show up at several places. A reservation is used like a buffer: in dispatches, fills, copies and recordings, once what
they touch is mapped; `reservation.buffer` reads, writes and maps it for the host.

Everything is checked before anything runs: an operation that touches unmapped or protected bytes is refused, and so is a change
of pages that an operation in flight uses (page_table.py). A map of several ranges is done whole, or not at all.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, final
from weakref import WeakSet

from remora.errors import ClosedError, Status, UsageError
from remora.hal.buffer import Access, Buffer, BufferView
from remora.hal.page_table import PageTable, Span

if TYPE_CHECKING:
    from types import TracebackType

    from remora.hal.device import Device

__all__ = ["MAX_PLACEMENTS", "PhysicalMemory", "Placement", "Reservation"]

#: Ranges that one `map_all` takes.
MAX_PLACEMENTS = 4096
#: How pages may be used. Memory that can be written can be read: no processor has the one without the other.
PROTECTIONS = (Access(0), Access.READ, Access.READ_WRITE)


class Placement(NamedTuple):
    """`length` bytes of physical memory from `physical_offset`, to be mapped at `offset`. All are multiples of the page size.

    Example: `reservation.map_all([remora.Placement(0, memory, 0, page), remora.Placement(8 * page, memory, page, page)])`.
    """

    offset: int
    physical: PhysicalMemory
    physical_offset: int
    length: int


class PhysicalMemory(ABC):
    """Memory without an address. Made by `device.physical(size)`; it can be used where a reservation maps it.

    Example: `with device.physical(1 << 20) as memory: reservation.map(0, memory)`. Leaving `with` gives it up: its bytes go back
    when nothing maps them any more.
    """

    def __init__(self, device: Device, size: int) -> None:
        self.device = device
        self.size = size
        self._closed = False
        self._lock = threading.Lock()
        self._tables: WeakSet[PageTable] = WeakSet()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.size} bytes{' closed' if self._closed else ''}>"

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def mapped(self) -> bool:
        """Whether any of it is mapped somewhere."""
        return bool(self._mapped_by())

    @final
    def close(self) -> None:
        """Give the memory back. Safe to repeat. Raises UsageError (FAILED_PRECONDITION) while it is mapped."""
        if not self._closed:
            tables = self._mapped_by()
            if not self.device._ended and not all(table.closed for table in tables):
                raise UsageError("the physical memory is mapped: unmap it first", code=Status.FAILED_PRECONDITION)
            self._closed = True
            if tables:  # of reservations that were given up; operations in flight use it
                self._abandon()
            else:
                self._release()

    def __enter__(self) -> PhysicalMemory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        """Close it, even while it is mapped."""
        if not self._closed:
            self._closed = True
            self._abandon()

    def _mapped_by(self) -> list[PageTable]:
        with self._lock:
            tables = tuple(self._tables)
        return [table for table in tables if table.maps(self)]

    def _join(self, table: PageTable) -> None:
        """This table is about to map some of it."""
        if self._closed:
            raise ClosedError(f"{self!r} was closed; allocate new physical memory")
        with self._lock:
            self._tables.add(table)

    @abstractmethod
    def _release(self) -> None:
        """Driver: give it back; nothing maps it."""

    @abstractmethod
    def _abandon(self) -> None:
        """Driver: give it back when the last page table that maps it is gone. Must not block."""


class Reservation(BufferView, ABC):
    """A range of device addresses. Made by `device.reserve(size)`; usable wherever a buffer is, where it is mapped.

    Example: `range = device.reserve(1 << 30); range.map(0, device.physical(1 << 20)); queue.fill(range.view(0, 64))`.
    Leaving `with` unmaps everything and gives the range up once the operations in flight are done.
    """

    __slots__ = ("__weakref__", "_table")

    def __init__(self, buffer: Buffer) -> None:
        super().__init__(buffer, 0, buffer.size)
        self._table = buffer._pages = PageTable(buffer.size, buffer.device.info.page_size)
        buffer._guarded = True

    def __repr__(self) -> str:
        spans = self._table.spans()
        state = "closed" if self.closed else f"{sum(span.length for span in spans)} mapped"
        return f"<{type(self).__name__} {self.size} bytes, {state}>"

    @property
    def device(self) -> Device:
        """The device whose addresses these are."""
        return self.buffer.device

    @property
    def page_size(self) -> int:
        """What offsets and lengths are multiples of, in bytes."""
        return self._table.page_size

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self.buffer.closed

    @property
    def spans(self) -> tuple[Span, ...]:
        """What is mapped, by offset; neighbours that continue each other are one."""
        return self._table.spans()

    @final
    def map(self, offset: int, physical: PhysicalMemory, physical_offset: int = 0, length: int | None = None) -> None:
        """Map physical memory (from `physical_offset` to its end if `length` is None) at `offset`, to read and write.

        Raises UsageError for bytes that are no whole pages, outside either side, or mapped already. On a remote device this waits
        for the server.
        """
        self.map_all([Placement(offset, physical, physical_offset, physical.size - physical_offset if length is None else length)])

    @final
    def map_all(self, placements: Iterable[Placement]) -> None:
        """Map several ranges: all of them, or none when any cannot be. Raises as `map`; OutOfMemoryError if the system refuses."""
        wanted = list(placements)
        self._check_open()
        if not 1 <= len(wanted) <= MAX_PLACEMENTS:
            raise UsageError(f"map 1 to {MAX_PLACEMENTS} ranges at once, not {len(wanted)}")
        table = self._table
        with table.changing:
            for _, physical, physical_offset, length in wanted:
                if physical.device is not self.device:
                    raise UsageError("the physical memory belongs to another device; allocate it on this one")
                table.check_pages(physical_offset, length, physical.size, "the physical memory")
                physical._join(table)
            table.claim_free((placement.offset, placement.length) for placement in wanted)
            self._map(wanted)
            for offset, physical, physical_offset, length in wanted:
                table.commit(offset, length, [Span(offset, length, physical, physical_offset, Access.READ_WRITE)])

    @final
    def unmap(self, offset: int, length: int) -> None:
        """Take mapped pages away; afterwards the bytes cannot be used.

        Raises UsageError for bytes that are no whole pages or not all mapped, and (FAILED_PRECONDITION) while operations in flight
        use them or the host maps them.
        """
        self._check_open()
        table = self._table
        with table.changing:
            old = table.claim_mapped(offset, length, self._host)
            try:
                self._unmap(offset, length)
            except BaseException:
                table.commit(offset, length, old)
                raise
            table.commit(offset, length, ())

    @final
    def clear(self) -> None:
        """Unmap everything that is mapped; as many calls of `unmap` as there are spans. Raises as `unmap`."""
        for span in self.spans:
            self.unmap(span.offset, span.length)

    @final
    def protect(self, offset: int, length: int, access: Access) -> None:
        """Say how mapped pages may be used: `Access.READ_WRITE`, `Access.READ`, or `Access(0)` for not at all. Raises as `unmap`.

        An operation that writes what may only be read is refused: a fill, a copy, a kernel whose contract says that it writes.
        """
        self._check_open()
        if access not in PROTECTIONS:
            raise UsageError(f"pages are protected with Access.READ_WRITE, Access.READ or Access(0), not {access!r}")
        table = self._table
        with table.changing:
            old = table.claim_mapped(offset, length, self._host)
            try:
                self._protect(old, access)
            except BaseException:
                table.commit(offset, length, old)
                raise
            table.commit(offset, length, [span._replace(access=access) for span in old])

    @final
    def close(self) -> None:
        """Give the range back. Safe to repeat. Raises UsageError (FAILED_PRECONDITION) while any of it is mapped or in use."""
        with self._table.changing:
            self.buffer.close()

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        """Close it, whatever is mapped; operations in flight keep what they use."""
        self._table.give_up()
        self.buffer._end()

    def _host(self) -> Sequence[tuple[int, int]]:
        """(start, end) of what the host maps."""
        return [(mapping.offset, mapping.offset + mapping.size) for mapping in self.buffer._maps]

    def _check_open(self) -> None:
        self.device._check_open()
        self.buffer._check_open()

    @abstractmethod
    def _map(self, placements: Sequence[Placement]) -> None:
        """Driver: map all of these; nothing of it is mapped when this raises. Everything was checked."""

    @abstractmethod
    def _unmap(self, offset: int, length: int) -> None:
        """Driver: take these pages away, all of which are mapped and unused."""

    @abstractmethod
    def _protect(self, spans: Sequence[Span], access: Access) -> None:
        """Driver: change how these may be used; nothing has changed when this raises. `spans` say how they are used now."""
