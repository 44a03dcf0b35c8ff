"""What IREE's compiler says of its executables in its own text, and no artifact says: grids, bindings, workgroups (D11).

`--compile-to=executable-sources` has the bindings with access and shape, `--compile-to=executable-targets` the grid and the
workgroup that the code generator chose.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

from remora.builder.iree_grid import grid_rule
from remora.errors import UsageError
from remora.hal.buffer import Access
from remora.hal.executable import BindingRule, ConstantRule, Grid, GridRule, KernelInfo

__all__ = ["Chosen", "kernel_of", "read_bindings", "read_exports"]

_EXPORT = re.compile(r"hal\.executable\.export public @([\w$.-]+) ordinal\(\d+\) layout\((.*?)\) count\((.*?)\) -> ")
_CONSTANTS = re.compile(r"constants = (\d+)")
_WORKGROUP = re.compile(r"workgroup_size = \[(\d+) : index, (\d+) : index, (\d+) : index\]")
_FUNCTION = re.compile(r"func\.func @([\w$.-]+)")
_SUBSPAN = re.compile(
    r"hal\.interface\.binding\.subspan layout\(.*\) binding\((\d+)\) alignment\((\d+)\) offset\(%([\w-]+)\).*"
    r"dispatch\.tensor<(readonly|writeonly|readwrite):(?:tensor<(.*)>|(.*))>"
)
_ACCESS = {"readonly": Access.READ, "writeonly": Access.WRITE, "readwrite": Access.READ_WRITE}
_ITEM = re.compile(r"(?:[fiu]|bf|si|ui|index)(\d*)")
MAX_ALIGNMENT = 1 << 16


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the code generator chose for one export."""

    name: str
    constants: int
    workgroup: Grid
    grid: GridRule


def read_exports(text: str) -> tuple[Chosen, ...]:
    """Every export of an `executable-targets` text. Raises UsageError when there is none, or one that no rule describes."""
    lines = text.splitlines()
    found = []
    for at, line in enumerate(lines):
        if match := _EXPORT.search(line):
            end = next((index for index in range(at + 1, len(lines)) if lines[index].strip().startswith("}")), -1)
            if end < 0:
                raise UsageError(f"the compiler's text ends inside the count region of {match[1]}: run it again")
            arguments = [part.split(":")[0].strip() for part in match[3].split(",") if not part.strip().endswith("!hal.device")]
            size = _WORKGROUP.search(lines[end])
            workgroup = (int(size[1]), int(size[2]), int(size[3])) if size else (1, 1, 1)
            constants = _CONSTANTS.search(match[2])
            rule = grid_rule(match[1], [each.strip() for each in lines[at + 1 : end]], arguments)
            found.append(Chosen(match[1], int(constants[1]) if constants else 0, workgroup, rule))
    if not found:
        raise UsageError("the compiler made no executable of this model: it has nothing to dispatch")
    return tuple(found)


def read_bindings(text: str) -> dict[str, tuple[BindingRule, ...]]:
    """The bindings of each export, from an `executable-sources` text."""
    found: dict[str, dict[int, BindingRule]] = {}
    current = ""
    for line in text.splitlines():
        if match := _FUNCTION.search(line):
            current = match[1]
            found[current] = {}
        elif current and (match := _SUBSPAN.search(line)):
            index, rule = int(match[1]), _binding(match)
            known = found[current].get(index)
            found[current][index] = rule if known is None else _joined(known, rule)
    return {name: tuple(rules[index] for index in sorted(rules)) for name, rules in found.items() if rules}


def _binding(match: re.Match[str]) -> BindingRule:
    index, alignment, offset, access, tensor, scalar = match.groups()
    return BindingRule(f"b{index}", _ACCESS[access], _bytes(tensor or scalar, offset), alignment=min(int(alignment), MAX_ALIGNMENT))


def _joined(one: BindingRule, other: BindingRule) -> BindingRule:
    """Two uses of one binding."""
    access = one.access | other.access
    return BindingRule(one.name, access, max(one.bytes, other.bytes), alignment=max(one.alignment, other.alignment))


def _bytes(shape: str, offset: str) -> int:
    """At least so many bytes; 0 where the shape or the place is known at run time only."""
    *extents, item = shape.split("x")
    kind = _ITEM.fullmatch(item.strip())
    begin = re.fullmatch(r"c(\d+)(?:_\w+)?", offset)
    if kind is None or begin is None or not all(extent.isdigit() for extent in extents):
        return 0
    return int(begin[1]) + prod(map(int, extents)) * max(1, int(kind[1] or 64) // 8)


def kernel_of(chosen: Chosen, bindings: tuple[BindingRule, ...]) -> KernelInfo:
    """The contract: constants are words, in the compiler's order."""
    constants = tuple(ConstantRule(f"c{index}") for index in range(chosen.constants))
    return KernelInfo(chosen.name, bindings, constants, chosen.workgroup, chosen.grid, chosen.name)
