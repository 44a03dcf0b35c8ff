"""A buffer: host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from remora.drivers.null.memory import Memory
from remora.hal.memory_buffer import MappedBuffer

if TYPE_CHECKING:
    from remora.hal.buffer import Buffer, BufferView

__all__ = ["NullBuffer", "memory_of"]


class NullBuffer(MappedBuffer[Memory]):
    """Host memory is mapped as it is; a driver with memory of its own derives from `CopiedBuffer`."""

    __slots__ = ()


def memory_of(buffer: Buffer | BufferView) -> Memory:
    """What an operation touches; the reference keeps it alive until the operation is done."""
    owner = cast("NullBuffer", buffer.buffer)
    return owner._memory or owner.memory
