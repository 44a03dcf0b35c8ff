"""What a bundle says of its code as a whole: kernels, specialization constants, named globals (H19).

A specialization constant has one value for the life of an executable, given when it is loaded. The code sees all of them as a table
of 32-bit words; a rule says which word a constant begins at. A global is memory that the code itself owns, under a name.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING, Any, TypeAlias

from remora.errors import NotFoundError, Status, UsageError

if TYPE_CHECKING:
    from remora.hal.executable import KernelInfo

__all__ = ["CONSTANT_CODES", "ExecutableInfo", "GlobalRule", "Number", "SpecializationRule", "Values", "specialize", "values_of"]

Number: TypeAlias = "int | float"
#: Values by name; or the whole table as bytes, 32-bit words in little-endian order.
Values: TypeAlias = "Mapping[str, Number] | bytes"

#: struct codes of the types that a constant may have; each takes whole 32-bit words.
CONSTANT_CODES = {"u32": "I", "i32": "i", "f32": "f", "u64": "Q", "i64": "q", "f64": "d"}


@dataclass(frozen=True, slots=True)
class SpecializationRule:
    """One specialization constant: its name, its type (as `ConstantRule` has it) and the word of the table that it begins at.

    Without a `default` a value has to be given.
    """

    name: str
    type: str = "u32"
    ordinal: int = 0
    default: Number | None = None

    @property
    def words(self) -> int:
        """How many words it takes."""
        return struct.calcsize("<" + CONSTANT_CODES[self.type]) // 4

    def pack(self, value: Any) -> bytes:
        """The bytes of a value. Raises UsageError when the type does not hold it."""
        try:
            return struct.pack("<" + CONSTANT_CODES[self.type], value if self.type[0] == "f" else index(value))
        except (struct.error, OverflowError, TypeError) as error:
            shown = f"{self.name} is {self.type}; {value!r} does not fit ({error})"
            raise UsageError(f"the specialization constant {shown}", code=Status.OUT_OF_RANGE) from None


@dataclass(frozen=True, slots=True)
class GlobalRule:
    """One named global: its size in bytes. `export` is its symbol inside the artifacts; empty means `name`."""

    name: str
    size: int
    export: str = ""


@dataclass(frozen=True, slots=True)
class ExecutableInfo:
    """What an executable offers, as the manifest has it: kernels, specialization constants, named globals."""

    kernels: tuple[KernelInfo, ...]
    constants: tuple[SpecializationRule, ...] = ()
    globals: tuple[GlobalRule, ...] = ()

    @classmethod
    def of(cls, told: ExecutableInfo | Iterable[KernelInfo]) -> ExecutableInfo:
        """An info as it is, or one with nothing but kernels."""
        return told if isinstance(told, ExecutableInfo) else cls(tuple(told))

    @property
    def words(self) -> int:
        """32-bit words in the table of specialization constants."""
        return sum(rule.words for rule in self.constants)


def specialize(rules: Sequence[SpecializationRule], given: Values) -> tuple[int, ...]:
    """The table's words: what was given, defaults for the rest. The rules cover the table without gaps.

    Raises NotFoundError for a name that is not declared, UsageError for a value that does not fit or is missing.
    """
    size = 4 * sum(rule.words for rule in rules)
    if isinstance(given, bytes):
        if len(given) != size:
            raise UsageError(f"the code takes {size} bytes of specialization constants, got {len(given)}")
        return struct.unpack(f"<{size // 4}I", given)
    declared = ", ".join(f"{rule.name}: {rule.type}" for rule in rules) or "none"
    for name in given:
        if name not in {rule.name for rule in rules}:
            raise NotFoundError(f"there is no specialization constant {name!r}; the code has: {declared}")
    table = bytearray(size)
    for rule in rules:
        value = given.get(rule.name, rule.default)
        if value is None:
            raise UsageError(
                f"the specialization constant {rule.name} ({rule.type}) has no default: give constants={{{rule.name!r}: ...}}"
            )
        table[4 * rule.ordinal : 4 * (rule.ordinal + rule.words)] = rule.pack(value)
    return struct.unpack(f"<{size // 4}I", table)


def values_of(rules: Sequence[SpecializationRule], words: Sequence[int]) -> dict[str, Number]:
    """The value of each constant in a table."""
    table = struct.pack(f"<{len(words)}I", *words)
    return {rule.name: struct.unpack_from("<" + CONSTANT_CODES[rule.type], table, 4 * rule.ordinal)[0] for rule in rules}
