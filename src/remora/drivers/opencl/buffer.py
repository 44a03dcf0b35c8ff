"""A buffer: memory of the device, which the host sees as a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from remora.drivers.opencl.memory import Memory
from remora.hal.memory_buffer import CopiedBuffer

if TYPE_CHECKING:
    from remora.hal.buffer import Buffer, BufferView

__all__ = ["OpenclBuffer", "Place", "memory_of", "place"]


class Place(NamedTuple):
    """`size` bytes at `offset` of a memory: what an operation keeps of a binding."""

    memory: Memory
    offset: int
    size: int


class OpenclBuffer(CopiedBuffer[Memory]):
    """A mapping is a copy (H20)."""

    __slots__ = ()


def memory_of(buffer: Buffer | BufferView) -> Memory:
    """What an operation touches; the reference keeps it alive until the operation is done."""
    owner = cast("OpenclBuffer", buffer.buffer)
    return owner._memory or owner.memory


def place(binding: Buffer | BufferView) -> Place:
    """The place of a buffer or view."""
    return Place(memory_of(binding), binding.offset, binding.size)
