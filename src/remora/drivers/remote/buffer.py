"""Buffers on the server, named by ids that this side makes (H14, H15)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remora.hal.buffer import Access, Buffer, Mapping
from remora.wire.sharing_calls import decode_place

if TYPE_CHECKING:
    from remora.drivers.remote.device import RemoteDevice

__all__ = ["RemoteBuffer"]


class RemoteBuffer(Buffer):
    """`resource` is the provisional id until the server's own arrives. A dropped buffer is released like a closed one.

    Where the connection shares memory a mapping is the server's memory itself, else a copy.
    """

    __slots__ = ("_in_place", "resource")
    device: RemoteDevice

    def __init__(self, device: RemoteDevice, size: int, resource: int) -> None:
        super().__init__(device, size)
        self.resource = resource
        self._in_place: set[int] = set()  # which memory of mappings is the server's own

    def _map(self, access: Access, offset: int, size: int, timeout: float | None) -> memoryview:
        shared = self._memory(offset, size, timeout) if size else None
        if shared is not None:
            self._in_place.add(id(shared))
            return shared
        if access & Access.DISCARD:
            return memoryview(bytearray(size))
        return self.read(offset, size, timeout=timeout)

    def _memory(self, offset: int, size: int, timeout: float | None) -> memoryview | None:
        """The bytes themselves, once what was submitted to the first queue is done with them; None where they have to be copied."""
        segments = self.device.host.segments
        if segments is None or self._pages is not None:
            return None
        point, found = self.device.queues[0].locate(self, offset, size)
        point.wait(timeout)
        place = decode_place(found)
        segment = None if place is None else segments.get(place.segment)
        return None if place is None or segment is None else segment.part(place.offset, size)

    def _flush(self, mapping: Mapping, offset: int, size: int, timeout: float | None) -> None:
        if id(mapping._memory) in self._in_place:
            self._check_open()
            self.device.host.link.session.check()
            return
        self.write(mapping.view[offset : offset + size], mapping.offset + offset, timeout=timeout)

    def _invalidate(self, mapping: Mapping, offset: int, size: int, timeout: float | None) -> None:
        if id(mapping._memory) in self._in_place:
            self.device.queue.wait_idle(timeout)
            return
        self.read_into(mapping._memory[offset : offset + size], mapping.offset + offset, timeout=timeout)

    def _unmap(self, mapping: Mapping) -> None:
        if id(mapping._memory) in self._in_place:
            self._in_place.discard(id(mapping._memory))
            if mapping.access & Access.WRITE:
                self.device.host.link.session.check()
        elif mapping.access & Access.WRITE:
            self.write(mapping.view, mapping.offset)

    def _release(self) -> None:
        self.device.forget(self)

    def __del__(self) -> None:
        try:
            self._end()
        except AttributeError:  # an interruption came before it was made
            return
