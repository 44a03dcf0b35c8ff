"""Where the arguments of a kernel lie: addresses of 8 bytes, then constants, each at a multiple of its own size."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remora.drivers.cuda.executable import Program

__all__ = ["ADDRESS_BYTES", "MAX_ARGUMENTS", "ArgumentBlock", "Piece", "layout", "offsets"]

ADDRESS_BYTES: Final = 8
#: Bytes of arguments that every GPU takes.
MAX_ARGUMENTS: Final = 4096
#: What `extra` of a launch points to: CU_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE, _END.
BUFFER_POINTER, BUFFER_SIZE, END = 1, 2, 0


class Piece(NamedTuple):
    """Bytes `start` to `end` of the packed constants go to `place` of the arguments."""

    start: int
    end: int
    place: int


def offsets(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """(offset, size) of values of these sizes, one behind the other."""
    found, end = [], 0
    for size in sizes:
        start = -(-end // size) * size
        found.append((start, size))
        end = start + size
    return found


def layout(bindings: int, sizes: Sequence[int]) -> tuple[list[Piece], int]:
    """The pieces in which constants packed without padding are copied to their places, and the bytes of all arguments."""
    pieces: list[Piece] = []
    source, end = 0, ADDRESS_BYTES * bindings
    for place, size in offsets([ADDRESS_BYTES] * bindings + list(sizes))[bindings:]:
        if pieces and pieces[-1].place + source - pieces[-1].start == place:
            pieces[-1] = pieces[-1]._replace(end=source + size)
        else:
            pieces.append(Piece(source, source + size, place))
        source, end = source + size, place + size
    return pieces, end


class ArgumentBlock:
    """Memory for the arguments of one launch, in the form that the vendor's driver takes them. It is copied by the launch."""

    __slots__ = ("_bytes", "_extra", "_packed", "_size", "address")

    def __init__(self) -> None:
        self._bytes = ctypes.create_string_buffer(MAX_ARGUMENTS)
        self._packed = memoryview(self._bytes).cast("B")
        self._size = ctypes.c_size_t()
        self._extra = (ctypes.c_void_p * 5)(
            BUFFER_POINTER, ctypes.addressof(self._bytes), BUFFER_SIZE, ctypes.addressof(self._size), END
        )
        self.address = ctypes.addressof(self._extra)

    def fill(self, program: Program, addresses: Sequence[int], constants: bytes) -> int:
        """Write arguments; `address`, which a launch calls `extra`. They stay until the next `fill`."""
        program.pack(self._packed, addresses, constants)
        self._size.value = program.argument_bytes
        return self.address
