"""What an operation names: memory whose address may come late, code that may be closed, a grid that a GPU may not take."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from remora.drivers.cuda.buffer import block_of
from remora.drivers.cuda.executable import MAX_GRID
from remora.errors import ClosedError, Status, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remora.drivers.cuda.executable import CudaKernel, Program
    from remora.drivers.cuda.memory import Block
    from remora.hal.buffer import Buffer, BufferView
    from remora.hal.executable import Grid, Kernel

__all__ = ["Place", "check_grid", "place", "places", "program_of"]


class Place(NamedTuple):
    """A range of a block, whose address may come late."""

    block: Block
    offset: int
    size: int

    @property
    def address(self) -> int:
        """Raises NotMadeError before the block is there."""
        return self.block.address + self.offset


def program_of(kernel: Kernel) -> Program:
    """The loaded code. Raises ClosedError after its executable was closed."""
    program = cast("CudaKernel", kernel).program
    if program is None:
        raise ClosedError(f"the executable of {kernel.name} was closed; load it again")
    return program


def check_grid(kernel: Kernel, grid: Grid) -> None:
    """Raise UsageError for more workgroups than a GPU takes in one dimension."""
    if any(count > most for count, most in zip(grid, MAX_GRID, strict=True)):
        raise UsageError(f"{kernel.name}: a GPU takes grids of up to {MAX_GRID}, not {grid}", code=Status.OUT_OF_RANGE)


def place(buffer: Buffer | BufferView) -> Place:
    """Where a buffer or view lies."""
    return Place(block_of(buffer), buffer.offset, buffer.size)


def places(bindings: Sequence[Buffer | BufferView]) -> list[Place]:
    """Where each lies."""
    return [place(binding) for binding in bindings]
