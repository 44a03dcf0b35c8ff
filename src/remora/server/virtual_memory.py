"""Virtual memory of one session (H22): what a client asks to have reserved, allocated, mapped and protected.

The page tables are those of the device's own reservations, which check everything once more. A reservation is in the session's
table as a buffer, so commands and recordings name it like one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, finalize

from remora.base.ids import ResourceType, describe_id
from remora.errors import BusyError, Error, UsageError
from remora.hal.buffer import Access, Buffer
from remora.hal.device import Device
from remora.hal.virtual_memory import PhysicalMemory, Placement, Reservation
from remora.server.quotas import size_text
from remora.wire.memory_calls import MemoryClose, PhysicalAllocate, VirtualMap, VirtualProtect, VirtualReserve, VirtualUnmap
from remora.wire.method import Done, Loaded

if TYPE_CHECKING:
    from remora.server.dispatch import Dispatcher

__all__ = ["MAX_RESERVED", "VirtualMemory"]

#: Bytes of addresses that one session may reserve; they cost next to nothing, but a process has no more than 2**47.
MAX_RESERVED = 1 << 44


class VirtualMemory:
    """Part of the dispatcher. Its lock is held over each change, so no command is submitted meanwhile."""

    def __init__(self, dispatcher: Dispatcher, devices: Sequence[Device]) -> None:
        self._dispatcher = dispatcher
        self._devices = devices
        self._addresses: WeakSet[Buffer] = WeakSet()

    def call(self, request: int, body: Any) -> None:
        """Do what a request asks for, at once, and answer it."""
        answer: Any
        try:
            with self._dispatcher.lock:
                answer = self._do(body)
        except Error as error:
            answer = error
        self._dispatcher.answer(request, answer)

    def _do(self, body: Any) -> Loaded | Done:
        match body:
            case VirtualReserve():
                return self._reserve(body)
            case PhysicalAllocate():
                return self._allocate(body)
            case VirtualMap(reservation, placements):
                physical = [self._physical(placed.physical) for placed in placements]
                self._reservation(reservation).map_all(
                    Placement(placed.offset, memory, placed.physical_offset, placed.length)
                    for placed, memory in zip(placements, physical, strict=True)
                )
            case VirtualUnmap(reservation, offset, length):
                self._reservation(reservation).unmap(offset, length)
            case VirtualProtect(reservation, offset, length, access):
                self._reservation(reservation).protect(offset, length, Access(access))
            case MemoryClose(resource):
                self._close(resource)
        return Done()

    def _reserve(self, body: VirtualReserve) -> Loaded:
        device = self._device(body.device)
        reserved = sum(buffer.size for buffer in self._addresses)
        if reserved + body.size > MAX_RESERVED:
            raise BusyError(
                f"the session may reserve {size_text(MAX_RESERVED)} of addresses: asked for {size_text(body.size)}, "
                f"{size_text(reserved)} are in use; close reservations"
            )
        reservation = device.reserve(body.size)
        self._addresses.add(reservation.buffer)
        return self._add(body.resource, ResourceType.BUFFER, reservation)

    def _allocate(self, body: PhysicalAllocate) -> Loaded:
        """The quota is charged until nothing maps the memory any more, whatever is released before."""
        device, memory = self._device(body.device), self._dispatcher.quotas.memory
        memory.take(body.size)
        try:
            physical = device.physical(body.size)
        except BaseException:
            memory.give_back(body.size)
            raise
        finalize(physical, memory.give_back, body.size)
        return self._add(body.resource, ResourceType.PHYSICAL_MEMORY, physical)

    def _add(self, provisional: int, kind: ResourceType, thing: Reservation | PhysicalMemory) -> Loaded:
        """The provisional id of a reservation came on another lane than those of buffers, and tells nothing about theirs."""
        try:
            return Loaded(self._dispatcher.table.add(provisional, kind, thing, in_order=False))
        except BaseException:
            thing._end()
            raise

    def _close(self, resource: int) -> None:
        """The client has checked that nothing is mapped; what it gave up before may still be on its way on the queue lane."""
        thing = self._dispatcher.table.get(resource)
        if not isinstance(thing, Reservation | PhysicalMemory):
            raise UsageError(f"{describe_id(resource)} is no reservation: release it")
        self._dispatcher.table.release(resource, lambda _: thing._end())

    def _device(self, ordinal: int) -> Device:
        if ordinal >= len(self._devices):
            raise UsageError(f"there is no device {ordinal}; the server has {len(self._devices)}")
        return self._devices[ordinal]

    def _reservation(self, resource: int) -> Reservation:
        found = self._dispatcher.table.get(resource)
        if not isinstance(found, Reservation):
            raise UsageError(f"{describe_id(resource)} is no reservation")
        return found

    def _physical(self, resource: int) -> PhysicalMemory:
        found: PhysicalMemory = self._dispatcher.table.find(resource, ResourceType.PHYSICAL_MEMORY)
        return found
