"""What an operation names: memory whose address may come late, code that may be closed, a grid that a GPU may not take."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from remora.drivers.cuda.buffer import CudaMemory, block_of
from remora.drivers.cuda.executable import MAX_GRID
from remora.errors import ClosedError, Status, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remora.drivers.cuda.executable import CudaKernel, Program
    from remora.hal.buffer import Buffer, BufferView
    from remora.hal.executable import Grid, Kernel
    from remora.hal.records import DispatchRecord

__all__ = ["Launching", "Place", "check_grid", "launching", "place", "places", "program_of"]


class Place(NamedTuple):
    """A range of a block, whose address may come late."""

    block: CudaMemory
    offset: int
    size: int

    @property
    def address(self) -> int:
        """Raises NotMadeError before the block is there."""
        return self.block.address + self.offset


class Launching(NamedTuple):
    """One run of a kernel, every binding resolved. It keeps memory and code alive."""

    program: Program
    grid: Grid
    constants: bytes
    bindings: list[Place]

    def addresses(self) -> tuple[int, ...]:
        """Of the bindings. Raises NotMadeError before their memory is there."""
        return tuple(binding.address for binding in self.bindings)


def launching(record: DispatchRecord, bindings: list[Place]) -> Launching:
    """A record's launch, with these bindings. Raises UsageError for a grid that no GPU takes, ClosedError for closed code."""
    check_grid(record.kernel, record.grid)
    return Launching(program_of(record.kernel), record.grid, record.constants, bindings)


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
