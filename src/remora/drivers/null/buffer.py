"""A buffer: host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remora.hal.buffer import Access, Buffer, Mapping

if TYPE_CHECKING:
    from remora.drivers.null.device import NullDevice

__all__ = ["NullBuffer"]


class NullBuffer(Buffer):
    """A bytearray. Operations take the memoryview `memory` when they are submitted, so closing the buffer meanwhile is safe."""

    __slots__ = ("_booked", "_drop", "memory")

    def __init__(self, device: NullDevice, size: int) -> None:
        super().__init__(device, size)
        self.memory = memoryview(bytearray(size))
        self._booked = device._count
        self._drop = device._drop

    def _map(self, access: Access, offset: int, size: int, timeout: float | None) -> memoryview:
        """Host memory is mapped as it is; a driver with memory of its own copies the range out here, unless DISCARD is set."""
        self.device.queue.wait_idle(timeout)
        return self.memory[offset : offset + size]

    def _unmap(self, mapping: Mapping) -> None:
        """Nothing to do: the mapping was the memory. A driver with memory of its own copies a writable range back in here."""

    def _release(self) -> None:
        """Give the memory back. Operations in flight hold their own references to it."""
        self.memory = memoryview(b"")
        self._booked(-1, -self.size)

    def __del__(self) -> None:
        if not self._closed:
            self._drop(self.size)
