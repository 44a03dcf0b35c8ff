"""Buffers on the server, named by ids that this side makes (H14, H15)."""

from __future__ import annotations

from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any

from remora.hal.buffer import Access, Buffer, Mapping, check_range
from remora.hal.dlpack import host_bytes
from remora.link.borrowing import copy_in_pieces
from remora.link.courtesy import Courtesy
from remora.wire.commands import MAX_INLINE
from remora.wire.sharing_calls import decode_place

if TYPE_CHECKING:
    from remora.drivers.remote.device import RemoteDevice

__all__ = ["RemoteBuffer"]


class RemoteBuffer(Buffer):
    """`resource` is the provisional id until the server's own arrives. A dropped buffer is released like a closed one.

    Where the connection shares memory a mapping is the server's memory itself, else a copy; and `write` and `read_into` copy in the
    calling thread, once the first queue is done with what was submitted to it before: one small round trip and one copy.
    """

    __slots__ = ("_copies", "_in_place", "_owed", "resource")
    device: RemoteDevice

    def __init__(self, device: RemoteDevice, size: int, resource: int) -> None:
        super().__init__(device, size)
        self.resource = resource
        self._in_place: set[int] = set()  # which memory of mappings is the server's own
        self._copies: set[int] = set()  # threads that copy to or from the memory now
        self._owed = [True]  # the one release

    def write(self, data: Any, offset: int = 0, *, timeout: float | None = None) -> None:
        """See `Buffer.write`."""
        view = host_bytes(data)
        memory = self._memory_for(offset, view.nbytes, timeout, ready=True)
        if memory is None:
            super().write(view, offset, timeout=timeout)
        else:
            self._copy(memory, view)

    def read_into(self, into: Any, offset: int = 0, *, timeout: float | None = None) -> None:
        """See `Buffer.read_into`."""
        view = host_bytes(into, writable=True)
        memory = self._memory_for(offset, view.nbytes, timeout)
        if memory is None:
            super().read_into(view, offset, timeout=timeout)
        else:
            self._copy(view, memory)

    def _copy(self, target: memoryview, source: memoryview) -> None:
        """A buffer that is closed meanwhile is released afterwards: until then the memory is nobody else's."""
        link, thread = self.device.host.link, get_ident()
        try:
            self._copies.add(thread)
            copy_in_pieces(target, source, Courtesy(link.commands_moved))
        finally:
            self._copies.discard(thread)
            if self._closed:
                self._release()
        link.session.check()

    def _memory_for(self, offset: int, size: int, timeout: float | None, *, ready: bool = False) -> memoryview | None:
        """The bytes themselves, where a copy of so many pays; None where they travel, as an operation that a profile shows."""
        if size <= MAX_INLINE or not self.device.in_place or self.device._profile is not None:
            return None
        check_range(offset, size, self.size)
        self._check_open()
        return self._memory(offset, size, timeout, ready=ready)

    def _map(self, access: Access, offset: int, size: int, timeout: float | None) -> memoryview:
        shared = self._memory(offset, size, timeout) if size else None
        if shared is not None:
            self._in_place.add(id(shared))
            return shared
        if access & Access.DISCARD:
            return memoryview(bytearray(size))
        return self.read(offset, size, timeout=timeout)

    def _memory(self, offset: int, size: int, timeout: float | None, *, ready: bool = False) -> memoryview | None:
        """The bytes themselves, once what was submitted to the first queue is done with them; None where they have to be copied.

        `ready`: about to be written, all of them.
        """
        segments = self.device.host.segments
        if segments is None or self._pages is not None:
            return None
        point, found = self.device.queues[0].locate(self, offset, size)
        point.wait(timeout)
        place = decode_place(found)
        self.device.in_place = place is not None
        segment = None if place is None else segments.get(place.segment)
        if place is None or segment is None:
            return None
        if ready:
            segment.warm(place.offset, size)
        return segment.part(place.offset, size)

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

    @property
    def copying(self) -> bool:
        """Whether a thread copies to or from the memory now."""
        return bool(self._copies)

    def _release(self) -> None:
        if self._copies:
            return  # the last of them comes here again
        with suppress(IndexError):
            self._owed.pop()
            self.device.forget(self)

    def __del__(self) -> None:
        try:
            self._end()
        except AttributeError:  # an interruption came before it was made
            return
