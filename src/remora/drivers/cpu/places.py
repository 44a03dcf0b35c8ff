"""Where bindings are: the block and the range, kept from the submission of an operation to its turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

from remora.hal.buffer import Buffer, BufferView

if TYPE_CHECKING:
    from remora.drivers.cpu.buffer import AnyBlock, CpuBuffer

__all__ = ["Place", "block_of", "entries_of", "numbers_of", "place"]


class Place(NamedTuple):
    """`size` bytes at `offset` of a block."""

    block: AnyBlock
    offset: int
    size: int


def place(binding: Buffer | BufferView) -> Place:
    """The place of a buffer or view."""
    return Place(block_of(binding), binding.offset, binding.size)


def block_of(buffer: Buffer | BufferView) -> AnyBlock:
    """The memory behind a buffer or view. Raises ClosedError when another thread closed the buffer just now."""
    owner = cast("CpuBuffer", buffer.buffer)
    return owner._memory or owner.memory


def numbers_of(places: Sequence[Place]) -> list[int]:
    """The addresses, then the sizes, as a dispatch has them. Raises NotMadeError when one has no memory yet."""
    return [block.address + offset for block, offset, _ in places] + [size for _, _, size in places]


def entries_of(places: Sequence[Place]) -> list[int]:
    """Address and size of each in turn, as a binding table has them. Raises NotMadeError when one has no memory yet."""
    return [number for block, offset, size in places for number in (block.address + offset, size)]
