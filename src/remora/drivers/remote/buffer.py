"""Buffers on the server, named by ids that this side makes (H14, H15)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remora.errors import Error
from remora.hal.buffer import Access, Buffer, Mapping

if TYPE_CHECKING:
    from remora.drivers.remote.device import RemoteDevice

__all__ = ["RemoteBuffer"]


class RemoteBuffer(Buffer):
    """`resource` is the provisional id until the server's own arrives. A dropped buffer is released like a closed one."""

    __slots__ = ("failure", "resource")
    device: RemoteDevice

    def __init__(self, device: RemoteDevice, size: int, resource: int) -> None:
        super().__init__(device, size)
        self.resource = resource
        self.failure: Error | None = None

    def fail(self, error: Error) -> None:
        """The server could not make it: every use raises why."""
        self.failure = error
        if not self._closed:
            self._closed = True
            self._release()

    def _check_open(self) -> None:
        if self.failure is not None:
            raise self.failure.copy()
        super()._check_open()

    def _map(self, access: Access, offset: int, size: int, timeout: float | None) -> memoryview:
        if access & Access.DISCARD:
            return memoryview(bytearray(size))
        return self.read(offset, size, timeout=timeout)

    def _unmap(self, mapping: Mapping) -> None:
        if mapping.access & Access.WRITE:
            self.write(mapping.view, mapping.offset)

    def _release(self) -> None:
        self.device.forget(self)

    def __del__(self) -> None:
        if not self._closed:
            self._closed = True
            self._release()
