"""Virtual memory on the server (H22). The page table here is a copy of the server's, so mistakes are refused without asking.

Every change is a call that waits for the server. A reservation is a buffer there; queues name it by its id like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from remora.base.ids import ResourceType
from remora.drivers.remote.buffer import RemoteBuffer
from remora.drivers.remote.calls import Call
from remora.errors import DeadlineError, Error
from remora.hal.buffer import Access
from remora.hal.page_table import Span
from remora.hal.virtual_memory import PhysicalMemory, Placement, Reservation
from remora.wire.memory_calls import (
    MemoryClose,
    PhysicalAllocate,
    Placed,
    VirtualMap,
    VirtualProtect,
    VirtualReserve,
    VirtualUnmap,
)

if TYPE_CHECKING:
    from remora.drivers.remote.device import RemoteDevice
    from remora.drivers.remote.host import RemoteHost

__all__ = ["RemotePhysicalMemory", "RemoteReservation"]


class RemotePhysicalMemory(PhysicalMemory):
    """Physical memory by its id. A dropped one is released like a closed one."""

    device: RemoteDevice

    def __init__(self, device: RemoteDevice, size: int) -> None:
        super().__init__(device, size)
        self._closed = True  # until the server has made it
        self.resource = _make(
            device.host,
            ResourceType.PHYSICAL_MEMORY,
            lambda resource: PhysicalAllocate(resource, device.ordinal, size),
            "allocate physical memory",
        )
        self._closed = False
        device.count_in(size)

    def _release(self) -> None:
        self.device.count_out(self.size)
        _close(self.device.host, self.resource)

    def _abandon(self) -> None:
        self.device.count_out(self.size)
        self.device.host.forget(self.resource)

    def __del__(self) -> None:
        if not self._closed:
            self._abandon()


class _Addresses(RemoteBuffer):
    """The buffer of a reservation: it is not counted as memory, and its close is a call."""

    __slots__ = ()

    def _release(self) -> None:
        _close(self.device.host, self.resource)

    def _abandon(self) -> None:
        self.device.host.forget(self.resource)


class RemoteReservation(Reservation):
    """Addresses on the server."""

    __slots__ = ()
    buffer: _Addresses

    def __init__(self, device: RemoteDevice, size: int) -> None:
        resource = _make(
            device.host,
            ResourceType.BUFFER,
            lambda resource: VirtualReserve(resource, device.ordinal, size),
            "reserve addresses",
        )
        super().__init__(_Addresses(device, size, resource))

    def _map(self, placements: Sequence[Placement]) -> None:
        placed = tuple(
            Placed(offset, physical.resource, physical_offset, length)  # type: ignore[attr-defined]
            for offset, physical, physical_offset, length in placements
        )
        self._ask(VirtualMap(self.buffer.resource, placed), "map pages")

    def _unmap(self, offset: int, length: int) -> None:
        self._ask(VirtualUnmap(self.buffer.resource, offset, length), "unmap pages")

    def _protect(self, spans: Sequence[Span], access: Access) -> None:
        offset, end = spans[0].offset, spans[-1].offset + spans[-1].length
        self._ask(VirtualProtect(self.buffer.resource, offset, end - offset, int(access)), "protect pages")

    def _ask(self, body: Any, what: str) -> None:
        """Without an answer nobody here knows what is mapped there: then the reservation is given up."""
        try:
            self.buffer.device.host.calls.ask(body, what)
        except DeadlineError as error:
            self.buffer.fail(error)
            raise


def _make(host: RemoteHost, kind: ResourceType, body: Any, what: str) -> int:
    """Have something made and return its id; one round trip."""
    call = Call()
    host.calls.make(call, kind, body)
    return int(host.calls.answer(call, what).resource)


def _close(host: RemoteHost, resource: int) -> None:
    """Give it back; where the session has ended, the server has done so."""
    try:
        host.calls.ask(MemoryClose(resource), "give memory back")
    except Error:
        if host.link.session.failure is None:
            raise
