"""How a kernel is launched, and whether the code is what its manifest says (requirement H19).

The arguments are the addresses of the bindings, then the constants, each at a multiple of its own size: what an OpenCL C kernel
`add(global T *a, global const T *b, uint n, double f)` has. Hidden arguments, which the compiler adds behind them, are filled in by
the runtime.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from remora.drivers.hip.stream import MAX_ARGUMENTS
from remora.errors import ClosedError, Status, UsageError
from remora.hal.executable import Executable, Grid, Kernel, KernelInfo
from remora.hal.exports import Export, check_export
from remora.hal.specialization import CONSTANT_CODES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remora.drivers.hip.code_object import KernelCode

__all__ = ["MAX_GRID", "HipKernel", "Program", "check_grid", "check_kernel", "check_shared", "export_of", "program_of"]

ADDRESS, CONSTANT = "global_buffer", "by_value"
ADDRESS_BYTES: Final = 8
#: Most workgroups of a grid per dimension, and most items in one dimension.
MAX_GRID: Final = (1 << 31) - 1, (1 << 16) - 1, (1 << 16) - 1
MAX_ITEMS: Final = (1 << 32) - 1
#: Bytes of a constant -> struct code. Constants are moved as whole numbers, so that every bit stays.
CODES: Final = {4: "I", 8: "Q"}


class Program:
    """A function of loaded code, and where its arguments lie. It keeps the code loaded."""

    def __init__(self, code: object, function: int, info: KernelInfo) -> None:
        self.code = code
        self.function = function
        self.name = info.name
        self.workgroup = info.workgroup
        self.shared_bytes = info.shared_bytes
        codes = "".join(CODES[size] for size in constant_sizes(info))
        self._constants = struct.Struct(f"<{codes}")
        self._arguments = struct.Struct(f"@{len(info.bindings)}Q{codes}")  # @ aligns each as C does
        if self._arguments.size > MAX_ARGUMENTS:
            raise UsageError(f"{self.name} takes {self._arguments.size} bytes of arguments; a kernel can have {MAX_ARGUMENTS}")

    def pack(self, arguments: Any, addresses: Sequence[int], constants: bytes) -> int:
        """Write the arguments of one launch; how many bytes they are."""
        self._arguments.pack_into(arguments, 0, *addresses, *self._constants.unpack(constants))
        return self._arguments.size


class HipKernel(Kernel):
    """A kernel with its program, until the executable is closed."""

    __slots__ = ("program",)

    def __init__(self, executable: Executable, ordinal: int, info: KernelInfo, program: Program) -> None:
        super().__init__(executable, ordinal, info)
        self.program: Program | None = program


def program_of(kernel: Kernel) -> Program:
    """The loaded code. Raises ClosedError after its executable was closed."""
    program: Program | None = kernel.program  # type: ignore[attr-defined]  # it is a HipKernel
    if program is None:
        raise ClosedError(f"the executable of {kernel.name} was closed; load it again")
    return program


def check_grid(kernel: Kernel, grid: Grid) -> None:
    """Raise UsageError for more workgroups or items than a GPU takes in one dimension."""
    items = [count * size for count, size in zip(grid, kernel.info.workgroup, strict=True)]
    if any(count > most for count, most in zip(grid, MAX_GRID, strict=True)) or max(items) > MAX_ITEMS:
        raise UsageError(
            f"{kernel.name}: a GPU takes grids of up to {MAX_GRID} workgroups with {MAX_ITEMS} items in one dimension, not {grid}",
            code=Status.OUT_OF_RANGE,
        )


def constant_sizes(info: KernelInfo) -> list[int]:
    """Bytes of each constant."""
    return [struct.calcsize(f"<{CONSTANT_CODES[rule.type]}") for rule in info.constants]


def export_of(code: KernelCode) -> Export:
    """As `Executable.exports` shows it: the addresses that begin the arguments are bindings, what follows is constants."""
    kinds = [argument.kind for argument in code.arguments]
    bindings = next((number for number, kind in enumerate(kinds) if kind != ADDRESS), len(kinds))
    words = sum(argument.size for argument in code.arguments[bindings:]) // 4
    return Export(code.name, bindings, words, code.workgroup)


def check_kernel(kernel: Kernel, code: KernelCode) -> None:
    """Compare the manifest with what the code object says of the kernel. Raises UsageError."""
    check_export(kernel, export_of(code), exact=True)
    wanted = arguments_of(kernel.info)
    there = [(argument.offset, argument.size, argument.kind) for argument in code.arguments]
    if there != wanted:
        raise UsageError(
            f"{kernel.name}: the manifest gives arguments at {wanted} (offset, bytes, kind), the code has {there}: "
            "they are the addresses of the bindings, then the constants"
        )
    x, y, z = kernel.info.workgroup
    if code.most and x * y * z > code.most:
        raise UsageError(
            f"{kernel.name} was compiled for workgroups of up to {code.most} items, its manifest says {kernel.info.workgroup}: "
            "build the bundle again"
        )


def check_shared(info: KernelInfo, code: KernelCode, most: int) -> None:
    """Raise UsageError for more dynamic shared memory (AMD's LDS) than a workgroup of this GPU has, which is `most` in all."""
    if info.shared_bytes and info.shared_bytes + code.shared_bytes > most:
        beside = f", beside {code.shared_bytes} that the code declares" if code.shared_bytes else ""
        raise UsageError(
            f"{info.name} asks for {info.shared_bytes} bytes of dynamic shared memory; this GPU gives a workgroup "
            f"{max(most - code.shared_bytes, 0)}{beside}: build it for smaller tiles"
        )


def arguments_of(info: KernelInfo) -> list[tuple[int, int, str]]:
    """(offset, bytes, kind) of each argument that a manifest asks for."""
    found, end = [], 0
    kinds = [(ADDRESS_BYTES, ADDRESS)] * len(info.bindings) + [(size, CONSTANT) for size in constant_sizes(info)]
    for size, kind in kinds:
        start = -(-end // size) * size
        found.append((start, size, kind))
        end = start + size
    return found
