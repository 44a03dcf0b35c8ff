"""Buffers over a driver's memory: a mapping is the memory itself where the host addresses it, else a copy (requirement H20)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from remora.errors import ClosedError
from remora.hal.buffer import Access, Buffer, Mapping
from remora.hal.memory import HostMemory, Memory

if TYPE_CHECKING:
    from remora.hal.device import Device

__all__ = ["CopiedBuffer", "MappedBuffer", "MemoryBuffer"]

M = TypeVar("M", bound=Memory)
H = TypeVar("H", bound=HostMemory)


class MemoryBuffer(Buffer, Generic[M]):
    """Operations take `memory` when they are submitted, so closing the buffer meanwhile is safe."""

    __slots__ = ("_memory",)

    def __init__(self, device: Device, memory: M) -> None:
        super().__init__(device, memory.size)
        self._memory: M | None = memory

    @property
    def memory(self) -> M:
        """What operations touch and keep alive. Raises ClosedError when another thread closed the buffer just now."""
        memory = self._memory
        if memory is None:
            raise ClosedError(f"{self!r} was closed; allocate a new one")
        return memory

    @property
    def holder(self) -> object:
        """See `Buffer.holder`."""
        return self._memory

    def _take(self) -> M:
        memory, self._memory = self.memory, None
        return memory

    def _release(self) -> None:
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.retire()


class MappedBuffer(MemoryBuffer[H]):
    """A mapping is the memory."""

    __slots__ = ()

    def _map(self, access: Access, offset: int, size: int, timeout: float | None) -> memoryview:
        self.device.queue.wait_idle(timeout)
        return self.memory.at(offset, size)

    def _unmap(self, mapping: Mapping) -> None:
        """Nothing to publish."""


class CopiedBuffer(MemoryBuffer[M]):
    """A mapping is a copy, which comes and goes by way of the first queue."""

    __slots__ = ()

    def _map(self, access: Access, offset: int, size: int, timeout: float | None) -> memoryview:
        if access & Access.DISCARD:
            self.device.queue.wait_idle(timeout)
            return memoryview(bytearray(size))
        return self.read(offset, size, timeout=timeout)

    def _flush(self, mapping: Mapping, offset: int, size: int, timeout: float | None) -> None:
        self.write(mapping.view[offset : offset + size], mapping.offset + offset, timeout=timeout)

    def _invalidate(self, mapping: Mapping, offset: int, size: int, timeout: float | None) -> None:
        self.read_into(mapping._memory[offset : offset + size], mapping.offset + offset, timeout=timeout)

    def _unmap(self, mapping: Mapping) -> None:
        if mapping.access & Access.WRITE:
            self.write(mapping.view, mapping.offset)
