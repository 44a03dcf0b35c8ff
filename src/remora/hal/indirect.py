"""Grids that a buffer holds: three little-endian u32, x y z, read when the dispatch's turn has come (requirement H17)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from remora.errors import Status, UsageError

if TYPE_CHECKING:
    from remora.hal.buffer import Buffer, BufferView
    from remora.hal.executable import Grid, Kernel

__all__ = ["GRID_ALIGNMENT", "GRID_BYTES", "check_grid_place", "read_grid"]

_GRID: Final = struct.Struct("<III")
GRID_BYTES: Final = _GRID.size
GRID_ALIGNMENT: Final = 4


def check_grid_place(place: Buffer | BufferView) -> None:
    """Raise UsageError unless a grid fits there and begins at a multiple of 4 bytes."""
    if place.size < GRID_BYTES:
        raise UsageError(f"a grid has {GRID_BYTES} bytes, three u32; this has {place.size}", code=Status.OUT_OF_RANGE)
    if place.offset % GRID_ALIGNMENT:
        raise UsageError(f"a grid must start at a multiple of {GRID_ALIGNMENT} bytes, not {place.offset}")


def read_grid(kernel: Kernel, data: memoryview) -> Grid:
    """The grid in these bytes. Raises UsageError when the kernel cannot be run over it."""
    grid: Grid = _GRID.unpack(data)
    kernel.check_grid(grid)
    return grid
