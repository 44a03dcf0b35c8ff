"""A buffer, a block of the GPU's memory, and the ranges of it that operations name."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from remora.hal.device_memory import Block
from remora.hal.memory_buffer import CopiedBuffer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remora.hal.buffer import Buffer, BufferView

__all__ = ["HipBuffer", "Place", "place", "places"]


class HipBuffer(CopiedBuffer[Block]):
    """A mapping is a copy (H20)."""

    __slots__ = ()


class Place(NamedTuple):
    """A range of a block, whose address may come late. It keeps the block until the operation is done."""

    block: Block
    offset: int
    size: int

    @property
    def address(self) -> int:
        """Raises NotMadeError before the block is there."""
        return self.block.address + self.offset


def place(buffer: Buffer | BufferView) -> Place:
    """Where a buffer or view lies."""
    owner: HipBuffer = buffer.buffer  # type: ignore[assignment]  # the queue has checked that it is
    return Place(owner.memory, buffer.offset, buffer.size)


def places(bindings: Sequence[Buffer | BufferView]) -> list[Place]:
    """Where each lies."""
    return [place(binding) for binding in bindings]
