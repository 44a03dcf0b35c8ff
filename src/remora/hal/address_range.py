"""Reservations and physical memory of drivers that map pages into addresses of their own: what they have in common (H22)."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from remora.errors import ClosedError, Error
from remora.hal.memory import Memory
from remora.hal.virtual_memory import PhysicalMemory, Placement, Reservation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remora.hal.buffer import Access, Buffer
    from remora.hal.device import Device
    from remora.hal.page_table import PageTable, Span

__all__ = ["AddressRange", "BackedMemory", "RangeReservation"]

M = TypeVar("M", bound=Memory)


class AddressRange(Protocol):
    """Addresses, given back when the last reference is dropped: operations in flight hold one. For one thread at a time."""

    pages: PageTable | None
    """It holds the physical memory that is mapped here."""

    def map(self, placement: Placement) -> None:
        """Put pages there, to read and write: all or none of them."""

    def unmap(self, offset: int, length: int) -> None:
        """Put nothing there."""

    def protect(self, offset: int, length: int, access: Access) -> None:
        """Allow this much."""


class BackedMemory(PhysicalMemory, Generic[M]):
    """Memory of the driver's, counted like a buffer."""

    def __init__(self, device: Device, backing: M) -> None:
        super().__init__(device, backing.size)
        self._backing: M | None = backing

    @property
    def backing(self) -> M:
        """The memory. Raises ClosedError when another thread closed it just now."""
        backing = self._backing
        if backing is None:
            raise ClosedError(f"{self!r} was closed; allocate new physical memory")
        return backing

    def _release(self) -> None:
        backing, self._backing = self._backing, None
        if backing is not None:
            backing.retire()

    def _abandon(self) -> None:
        """The page tables that map it hold this object, and with it the memory."""
        if self._backing is not None:
            self._backing.retire()


class RangeReservation(Reservation):
    """A buffer whose memory is a range. A change of several parts is done whole, or taken back."""

    __slots__ = ()

    def __init__(self, buffer: Buffer) -> None:
        super().__init__(buffer)
        self._range.pages = self._table

    @property
    @abstractmethod
    def _range(self) -> AddressRange:
        """Driver: its addresses."""

    def _map(self, placements: Sequence[Placement]) -> None:
        held, done = self._range, []
        try:
            for placement in placements:
                held.map(placement)
                done.append(placement)
        except BaseException:
            for placement in done:
                held.unmap(placement.offset, placement.length)
            raise

    def _unmap(self, offset: int, length: int) -> None:
        self._range.unmap(offset, length)

    def _protect(self, spans: Sequence[Span], access: Access) -> None:
        held, done = self._range, []
        try:
            for span in spans:
                held.protect(span.offset, span.length, access)
                done.append(span)
        except Error:
            for span in done:
                with suppress(Error):
                    held.protect(span.offset, span.length, span.access)
            raise
