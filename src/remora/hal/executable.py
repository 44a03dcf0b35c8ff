"""Executables and kernels: loaded machine code and the contract of each entry point (requirements H19, G04).

The contract travels in the bundle's manifest, so the same check runs wherever the kernel runs: before a dispatch leaves the
client, and again in the process that owns the device.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from remora.errors import NotFoundError, Status, UsageError
from remora.hal.buffer import Access, Buffer, BufferView

if TYPE_CHECKING:
    from remora.hal.device import Device
    from remora.hal.target import Target

__all__ = ["BindingRule", "ConstantRule", "Constants", "Executable", "Grid", "GridRule", "Kernel", "KernelInfo"]

Grid: TypeAlias = "tuple[int, int, int]"
Constants: TypeAlias = "bytes | Sequence[int | float]"

#: struct codes of the constant types a manifest may name; every constant takes whole 32-bit words, as the IREE ABI passes them.
CONSTANT_CODES = {"u32": "I", "i32": "i", "f32": "f", "u64": "Q", "i64": "q", "f64": "d"}
MAX_GRID = (1 << 32) - 1, (1 << 32) - 1, (1 << 16) - 1


@dataclass(frozen=True, slots=True)
class BindingRule:
    """What a kernel asks of one binding: at least `bytes + scale * constants[constant]` bytes, at an aligned offset."""

    name: str
    access: Access = Access.READ_WRITE
    bytes: int = 0
    constant: str = ""
    """Name of the constant that the extent grows with, or empty."""
    scale: int = 0
    alignment: int = 4


@dataclass(frozen=True, slots=True)
class ConstantRule:
    """One constant: its name and type ("u32", "i32", "f32", "u64", "i64", "f64")."""

    name: str
    type: str = "u32"


@dataclass(frozen=True, slots=True)
class GridRule:
    """How many workgroups cover a number of elements: each workgroup takes `elements` of them per dimension.

    `fixed` gives a grid that the compiler baked in; then no other is accepted.
    """

    elements: Grid = (1, 1, 1)
    fixed: Grid | None = None


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """The contract of one entry point, as the manifest has it. `export` is its name inside the artifacts."""

    name: str
    bindings: tuple[BindingRule, ...] = ()
    constants: tuple[ConstantRule, ...] = ()
    workgroup: Grid = (1, 1, 1)
    grid: GridRule = GridRule()
    export: str = ""


class Kernel:
    """One entry point of an executable. Made by `device.load(bundle)`; `executable["name"]` gives it.

    Example: `queue.dispatch(add, add.grid_for(n), [x, y, out], (n,))`.
    """

    __slots__ = ("_extents", "_pack", "constant_bytes", "executable", "info", "name", "ordinal")

    def __init__(self, executable: Executable, ordinal: int, info: KernelInfo) -> None:
        self.executable = executable
        self.ordinal = ordinal
        self.info = info
        self.name = info.name
        self._pack = struct.Struct("<" + "".join(CONSTANT_CODES[rule.type] for rule in info.constants))
        self.constant_bytes = self._pack.size
        names = [rule.name for rule in info.constants]
        self._extents = tuple(
            (index, rule.bytes, names.index(rule.constant) if rule.constant else -1, rule.scale, rule.alignment)
            for index, rule in enumerate(info.bindings)
        )

    def __repr__(self) -> str:
        return f"<Kernel {self.name}: {len(self.info.bindings)} bindings, {len(self.info.constants)} constants>"

    def grid_for(self, *elements: int) -> Grid:
        """The workgroup counts that cover this many elements (one number per dimension, up to three).

        Raises UsageError for more than three numbers or a negative one.
        """
        if len(elements) > len(MAX_GRID) or any(count < 0 for count in elements):
            raise UsageError(f"{self.name}: give up to three counts of elements, none negative, not {elements}")
        rule = self.info.grid
        if rule.fixed is not None:
            return rule.fixed
        sizes = (*elements, 1, 1, 1)[:3]
        x, y, z = (-(-size // each) for size, each in zip(sizes, rule.elements, strict=True))
        return x, y, z

    def pack(self, constants: Constants) -> bytes:
        """The constants as the device gets them. Raises UsageError when their number, type or size is wrong."""
        if isinstance(constants, bytes):
            if len(constants) != self.constant_bytes:
                raise UsageError(f"{self.name} takes {self.constant_bytes} bytes of constants, got {len(constants)}")
            return constants
        try:
            return self._pack.pack(*constants)
        except (struct.error, OverflowError, TypeError) as error:
            wanted = ", ".join(f"{rule.name}: {rule.type}" for rule in self.info.constants) or "none"
            raise UsageError(f"{self.name} takes the constants ({wanted}), got {constants!r}: {error}") from None

    def check(self, grid: Grid, bindings: Sequence[Buffer | BufferView], constants: bytes) -> None:
        """Check a dispatch against the contract. Raises UsageError that names the binding and says what it needs."""
        self.check_shape(grid, len(bindings))
        device, values = self.executable.device, self._pack.unpack(constants)
        for binding, (index, fixed, constant, scale, alignment) in zip(bindings, self._extents, strict=True):
            owner = binding.buffer
            size = fixed if constant < 0 else fixed + scale * values[constant]
            if owner.device is not device or owner._closed or binding.size < size or binding.offset % alignment:
                self.check_binding(index, binding, size, alignment)

    def check_shape(self, grid: Grid, bindings: int) -> None:
        """Check what a dispatch has without looking into its bindings: their number, and the grid."""
        if bindings != len(self._extents):
            wanted = ", ".join(rule.name for rule in self.info.bindings) or "none"
            raise UsageError(f"{self.name} takes {len(self._extents)} bindings ({wanted}), got {bindings}")
        self._check_grid(grid)

    def binding_need(self, index: int, constants: bytes) -> tuple[int, int]:
        """(bytes, alignment) that binding `index` must have under these packed constants."""
        _, fixed, constant, scale, alignment = self._extents[index]
        return (fixed if constant < 0 else fixed + scale * int(self._pack.unpack(constants)[constant])), alignment

    def check_binding(self, index: int, binding: Buffer | BufferView, size: int, alignment: int) -> None:
        """Check one binding against `binding_need`. Raises UsageError that says what it needs."""
        owner = binding.buffer
        if owner.device is not self.executable.device:
            raise UsageError(f"{self.name}: binding {index} belongs to another device; copy it through host memory")
        if owner._closed:
            owner._check_open()
        if binding.size < size:
            name = self.info.bindings[index].name
            raise UsageError(
                f"{self.name}: binding {index} ({name}) needs {size} bytes, got {binding.size}", code=Status.OUT_OF_RANGE
            )
        if binding.offset % alignment:
            raise UsageError(f"{self.name}: binding {index} must start at a multiple of {alignment} bytes, not {binding.offset}")

    def _check_grid(self, grid: Grid) -> None:
        fixed = self.info.grid.fixed
        if fixed is not None and grid != fixed:
            raise UsageError(f"{self.name} was compiled for the grid {fixed}, got {grid}")
        try:
            x, y, z = grid
            x | y | z  # TypeError unless they are integers
        except (TypeError, ValueError):
            raise UsageError(f"{self.name}: a grid is three whole numbers (x, y, z), not {grid!r}") from None
        if not (0 <= x <= MAX_GRID[0] and 0 <= y <= MAX_GRID[1] and 0 <= z <= MAX_GRID[2]):
            raise UsageError(f"{self.name}: the grid {grid} is outside 0 to {MAX_GRID}", code=Status.OUT_OF_RANGE)


class Executable(Mapping[str, Kernel]):
    """Machine code loaded on a device: a mapping of kernel names to kernels. Made by `device.load(bundle)`.

    Example: `kernels = device.load(bundle); add = kernels["add"]`.
    """

    closed = False
    """Whether `close()` was called."""

    def __init__(self, device: Device, target: Target, infos: Sequence[KernelInfo]) -> None:
        self.device = device
        self.target = target
        self._kernels = {info.name: Kernel(self, ordinal, info) for ordinal, info in enumerate(infos)}

    @cached_property
    def ordered(self) -> tuple[Kernel, ...]:
        """The kernels by ordinal."""
        return tuple(self._kernels.values())

    def __getitem__(self, name: str) -> Kernel:
        try:
            return self._kernels[name]
        except KeyError:
            there = ", ".join(self._kernels) or "none"
            raise NotFoundError(f"there is no kernel {name!r}; this executable has: {there}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._kernels

    def __iter__(self) -> Iterator[str]:
        return iter(self._kernels)

    def __len__(self) -> int:
        return len(self._kernels)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.target}: {', '.join(self._kernels)}>"

    def close(self) -> None:
        """Unload the code once everything submitted so far is done with it. Safe to repeat."""
