"""Buffers: device memory, which the program may or may not see."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, cast

from remora.drivers.vulkan.memory import Memory
from remora.hal.memory_buffer import CopiedBuffer, MappedBuffer

if TYPE_CHECKING:
    from collections.abc import Callable

    from remora.hal.buffer import Buffer, BufferView

__all__ = ["AnyBuffer", "StagedBuffer", "VulkanBuffer", "memory_of"]

AnyBuffer: TypeAlias = "VulkanBuffer | StagedBuffer"


class VulkanBuffer(MappedBuffer[Memory]):
    """The program sees the memory."""

    __slots__ = ()

    def host_memory(self) -> memoryview | None:
        """See `Buffer.host_memory`. Raises NotMadeError when it is late."""
        return self.memory.at(0, self.size)

    def memory_at_turn(self) -> Callable[[], memoryview] | None:
        """See `Buffer.memory_at_turn`."""
        memory = self.memory
        return lambda: memory.at(0, memory.size)


class StagedBuffer(CopiedBuffer[Memory]):
    """The program does not see the memory."""

    __slots__ = ()


def memory_of(buffer: Buffer | BufferView) -> Memory:
    """What an operation touches; the reference keeps it alive until the operation is done."""
    owner = cast("AnyBuffer", buffer.buffer)
    return owner._memory or owner.memory
