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

from remora.errors import ClosedError, NotFoundError, Status, UnsupportedError, UsageError
from remora.hal.buffer import Access, Buffer, BufferView
from remora.hal.named_globals import NamedGlobals
from remora.hal.page_table import Use, uses_of
from remora.hal.specialization import CONSTANT_CODES, ExecutableInfo, GlobalRule, values_of

if TYPE_CHECKING:
    from remora.hal.device import Device
    from remora.hal.exports import Export
    from remora.hal.target import Target

__all__ = [
    "MAX_CLUSTER",
    "MAX_SHARED_BYTES",
    "NO_CLUSTER",
    "BindingRule",
    "ConstantRule",
    "Constants",
    "Executable",
    "Grid",
    "GridRule",
    "Kernel",
    "KernelInfo",
]

Grid: TypeAlias = "tuple[int, int, int]"
Constants: TypeAlias = "bytes | Sequence[int | float]"

MAX_GRID = (1 << 32) - 1, (1 << 32) - 1, (1 << 16) - 1
#: A cluster of one workgroup is none.
NO_CLUSTER = 1, 1, 1
#: Most workgroups in a cluster, and most bytes of dynamic shared memory of a workgroup, that a manifest may ask for.
MAX_CLUSTER = 16
MAX_SHARED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class BindingRule:
    """What a kernel asks of one binding: at least `bytes + scale * constants[constant]` bytes, at an aligned offset.

    Example: `BindingRule("x", Access.READ, constant="n", scale=4)` is read, and has 4 bytes for each of `n` elements.
    """

    name: str
    access: Access = Access.READ_WRITE
    bytes: int = 0
    constant: str = ""
    """Name of the constant that the extent grows with, or empty."""
    scale: int = 0
    alignment: int = 4


@dataclass(frozen=True, slots=True)
class ConstantRule:
    """One constant: its name and type ("u32", "i32", "f32", "u64", "i64", "f64"). Example: `ConstantRule("factor", "f32")`."""

    name: str
    type: str = "u32"


@dataclass(frozen=True, slots=True)
class GridRule:
    """How many workgroups cover a number of elements: each workgroup takes `elements` of them per dimension.

    `fixed` gives a grid that the compiler baked in; then no other is accepted. Example: `GridRule((1024, 1, 1))`.
    """

    elements: Grid = (1, 1, 1)
    fixed: Grid | None = None


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """The contract of one entry point, as the manifest has it. `export` is its name inside the artifacts.

    Launch attributes (D04): `shared_bytes` is the dynamic shared memory of a workgroup, beside what its code declares; `cluster` is
    how many workgroups run together, in each direction, and a grid is whole clusters.

    Example: `KernelInfo("scale", (BindingRule("x"),), (ConstantRule("n"),), workgroup=(128, 1, 1), shared_bytes=100 << 10)`.
    """

    name: str
    bindings: tuple[BindingRule, ...] = ()
    constants: tuple[ConstantRule, ...] = ()
    workgroup: Grid = (1, 1, 1)
    grid: GridRule = GridRule()
    export: str = ""
    shared_bytes: int = 0
    cluster: Grid = NO_CLUSTER


class Kernel:
    """One entry point of an executable. Made by `device.load(bundle)`; `executable["name"]` gives it.

    Example: `queue.dispatch(add, add.grid_for(n), [x, y, out], (n,))`.
    """

    __slots__ = ("_cluster", "_extents", "_pack", "constant_bytes", "executable", "info", "name", "ordinal")

    def __init__(self, executable: Executable, ordinal: int, info: KernelInfo) -> None:
        self.executable = executable
        self.ordinal = ordinal
        self.info = info
        self.name = info.name
        self._cluster = None if info.cluster == NO_CLUSTER else info.cluster
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
        """The workgroup counts that cover this many elements (one number per dimension, up to three), in whole clusters.

        Raises UsageError for more than three numbers or a negative one.
        """
        if len(elements) > len(MAX_GRID) or any(count < 0 for count in elements):
            raise UsageError(f"{self.name}: give up to three counts of elements, none negative, not {elements}")
        rule = self.info.grid
        if rule.fixed is not None:
            return rule.fixed
        sizes = (*elements, 1, 1, 1)[:3]
        counts = [-(-size // each) for size, each in zip(sizes, rule.elements, strict=True)]
        x, y, z = (-(-count // each) * each for count, each in zip(counts, self.info.cluster, strict=True))
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

    def check(self, grid: Grid, bindings: Sequence[Buffer | BufferView], constants: bytes) -> Sequence[Use]:
        """Check a dispatch against the contract. Raises UsageError that names the binding and says what it needs.

        Returns how it uses virtual memory, which only its submission can check.
        """
        self.check_shape(grid, len(bindings))
        device, values = self.executable.device, self._pack.unpack(constants)
        for binding, (_, fixed, constant, scale, alignment) in zip(bindings, self._extents, strict=True):
            owner = binding.buffer
            size = fixed if constant < 0 else fixed + scale * values[constant]
            if owner.device is not device or owner._guarded or binding.size < size or binding.offset % alignment:
                return self._check_each(bindings, constants)
        return ()

    def _check_each(self, bindings: Sequence[Buffer | BufferView], constants: bytes) -> Sequence[Use]:
        for index, binding in enumerate(bindings):
            self.check_binding(index, binding, *self.binding_need(index, constants))
        rules = self.info.bindings
        return uses_of((binding, binding.size, rule.access) for binding, rule in zip(bindings, rules, strict=True))

    def check_shape(self, grid: Grid, bindings: int) -> None:
        """Check what a dispatch has without looking into its bindings: their number, and the grid."""
        self.check_count(bindings)
        self.check_grid(grid)

    def check_operands(self, bindings: Sequence[Buffer | BufferView], constants: bytes) -> Sequence[Use]:
        """Check a dispatch as `check` does, but for its grid, which is not known yet."""
        self.check_count(len(bindings))
        return self._check_each(bindings, constants)

    def check_count(self, bindings: int) -> None:
        """Raise UsageError unless a dispatch has this many bindings."""
        if bindings != len(self._extents):
            wanted = ", ".join(rule.name for rule in self.info.bindings) or "none"
            raise UsageError(f"{self.name} takes {len(self._extents)} bindings ({wanted}), got {bindings}")

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

    def check_grid(self, grid: Grid) -> None:
        """Raise UsageError unless the kernel can be run over this grid."""
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
        if self._cluster is not None and any(count % each for count, each in zip(grid, self._cluster, strict=True)):
            raise UsageError(f"{self.name} runs in clusters of {self._cluster} workgroups; the grid {grid} is no multiple of that")


class Executable(Mapping[str, Kernel]):
    """Machine code loaded on a device: a mapping of kernel names to kernels. Made by `device.load(bundle)`.

    `info` is what the manifest says of it, `constants` are the values that it was specialized with.

    Example: `kernels = device.load(bundle); add = kernels["add"]`.
    """

    closed = False
    """Whether `close()` was called."""

    def __init__(
        self, device: Device, target: Target, told: ExecutableInfo | Sequence[KernelInfo], words: Sequence[int] = ()
    ) -> None:
        self.device = device
        self.target = target
        self.info = info = ExecutableInfo.of(told)
        self.constants = values_of(info.constants, words)
        self._told_exports: tuple[Export, ...] | None = None
        self._kernels = {kernel.name: Kernel(self, ordinal, kernel) for ordinal, kernel in enumerate(info.kernels)}

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

    @property
    def exports(self) -> tuple[Export, ...]:
        """What the artifact itself says of its entry points, by ordinal; those that the manifest does not name too.

        Loading has compared it with the manifest. A remote device asks for it when it is first read, one round trip for 256
        exports. Raises UnsupportedError where the driver does not look into artifacts.
        """
        if self.closed:
            raise self._closed_error()
        if self._told_exports is None:  # not a cached_property, which holds a lock that all executables of the process share
            self._told_exports = self._exports()
        return self._told_exports

    @cached_property
    def globals(self) -> NamedGlobals:
        """The named globals, as buffers: `executable.globals["total"]`."""
        return NamedGlobals(self)

    def close(self) -> None:
        """Unload the code once everything submitted so far is done with it, and close its globals. Safe to repeat.

        Raises UsageError while a global is mapped.
        """

    def _exports(self) -> tuple[Export, ...]:
        """Driver: what the artifact records of its entry points."""
        raise UnsupportedError(f"{self.device.info.driver} devices do not look into artifacts; `info` is what the manifest says")

    def _global(self, rule: GlobalRule) -> Buffer:
        """Driver: a new buffer that is this global's memory; the executable is open, and the rule is one of its own."""
        raise UnsupportedError(f"{self.device.info.driver} devices have no named globals; pass the memory as a binding")

    def _close_globals(self) -> None:
        """Driver: what `close` does first."""
        if self.info.globals:
            self.globals.close()

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"the executable of {', '.join(self._kernels)} was closed; load it again")
