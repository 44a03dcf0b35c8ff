"""What a kernel may touch: the contract that dependencies are inferred from (requirement G04).

A contract is trusted, never proved. `contract_of` takes it from the manifest of the kernel's bundle; `KernelContract(...)` states
one by hand, which may ask for more, and `KernelContract.from_json` reads one that a tool wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from json import JSONDecodeError, dumps, loads
from typing import Any, Protocol

from remora.errors import Status, UsageError
from remora.hal.buffer import Access
from remora.hal.executable import Kernel

__all__ = ["BindingContract", "KernelContract", "Range", "check_bindings", "contract_of"]

MAX_BYTES = (1 << 63) - 1
_ACCESS = {"read": Access.READ, "write": Access.WRITE, "read_write": Access.READ_WRITE}
_NAMES = {access: name for name, access in _ACCESS.items()}


class Range(Protocol):
    """What is bound: some bytes of an allocation."""

    @property
    def key(self) -> object:
        """The allocation."""

    @property
    def offset(self) -> int: ...

    @property
    def size(self) -> int: ...


@dataclass(frozen=True, slots=True)
class BindingContract:
    """One binding: at least `bytes` bytes, over-reading included, at a multiple of `alignment`. `layout` is a label for people.

    WRITE says that old contents are not wanted; it is ordered like READ_WRITE. Raises UsageError for numbers that make no sense.
    """

    bytes: int
    access: Access = Access.READ_WRITE
    alignment: int = 4
    layout: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.bytes <= MAX_BYTES:
            raise UsageError(f"a binding has 1 to 2**63 - 1 bytes, not {self.bytes}")
        if self.alignment < 1 or self.alignment & (self.alignment - 1):
            raise UsageError(f"an alignment is a power of two, not {self.alignment}")
        if self.access not in _NAMES:
            raise UsageError(f"a binding is read, written or both, not {self.access!r}")


@dataclass(frozen=True, slots=True)
class KernelContract:
    """All bindings in order, and the exact bytes of the constants, which are part of the specialization.

    Example: `KernelContract((BindingContract(4096, Access.READ), BindingContract(4096, Access.WRITE)), b"")`.
    """

    bindings: tuple[BindingContract, ...]
    constants: bytes = b""

    def to_json(self) -> str:
        """The contract as JSON."""
        bindings = [
            {"bytes": each.bytes, "access": _NAMES[each.access], "alignment": each.alignment, "layout": each.layout}
            for each in self.bindings
        ]
        return dumps({"bindings": bindings, "constants": self.constants.hex()})

    @classmethod
    def from_json(cls, text: str) -> KernelContract:
        """A contract that `to_json` wrote. Raises UsageError that names the field for anything else."""
        try:
            value = loads(text)
        except JSONDecodeError as error:
            raise UsageError(f"the contract is no JSON: {error}") from None
        told = _exactly(value, {"bindings": list, "constants": str}, "the contract")
        try:
            constants = bytes.fromhex(told["constants"])
        except ValueError:
            raise UsageError(f"constants are bytes in hex, not {told['constants']!r}") from None
        fields = {"bytes": int, "access": str, "alignment": int, "layout": str}
        bindings = []
        for index, each in enumerate(told["bindings"]):
            entry = _exactly(each, fields, f"binding {index}")
            if entry["access"] not in _ACCESS:
                raise UsageError(f"binding {index}: access is one of {', '.join(_ACCESS)}, not {entry['access']!r}")
            bindings.append(BindingContract(entry["bytes"], _ACCESS[entry["access"]], entry["alignment"], entry["layout"]))
        return cls(tuple(bindings), constants)


def _exactly(value: Any, fields: dict[str, type], what: str) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != fields.keys():
        raise UsageError(f"{what} has exactly the fields {', '.join(fields)}")
    for name, kind in fields.items():
        if type(value[name]) is not kind:
            raise UsageError(f"{what}: {name} is of type {kind.__name__}, not {value[name]!r}")
    return value


def contract_of(kernel: Kernel, sizes: Sequence[int], constants: bytes) -> KernelContract:
    """What the manifest says of a kernel under these packed constants, for bindings of these sizes.

    Where the manifest tells no extent the kernel may touch all of what is bound. Raises UsageError for a wrong number of bindings.
    """
    kernel.check_count(len(sizes))
    bindings = []
    for index, (rule, size) in enumerate(zip(kernel.info.bindings, sizes, strict=True)):
        need, alignment = kernel.binding_need(index, constants)
        bindings.append(BindingContract(max(need or size, 1), rule.access, alignment, rule.name))
    return KernelContract(tuple(bindings), constants)


def check_bindings(name: str, contract: KernelContract, ranges: Sequence[Range], *, aliasing: bool = False) -> None:
    """Raise UsageError unless these ranges keep the contract: number, size, alignment, and no shared byte that one of them writes.

    `aliasing` leaves the last check out.
    """
    if len(ranges) != len(contract.bindings):
        raise UsageError(f"{name} takes {len(contract.bindings)} bindings, got {len(ranges)}")
    for index, (given, wanted) in enumerate(zip(ranges, contract.bindings, strict=True)):
        label = f"{name}: binding {index}" + (f" ({wanted.layout})" if wanted.layout else "")
        if given.size < wanted.bytes:
            raise UsageError(f"{label} needs {wanted.bytes} bytes, got {given.size}", code=Status.OUT_OF_RANGE)
        if given.offset % wanted.alignment:
            raise UsageError(f"{label} must start at a multiple of {wanted.alignment} bytes, not {given.offset}")
    if not aliasing:
        _check_aliases(name, contract, ranges)


def _check_aliases(name: str, contract: KernelContract, ranges: Sequence[Range]) -> None:
    order = sorted((index for index in range(len(ranges)) if ranges[index].size), key=lambda index: ranges[index].offset)
    open_ranges: dict[object, list[int]] = {}
    for index in order:
        given, access = ranges[index], contract.bindings[index].access
        live = [other for other in open_ranges.get(given.key, ()) if ranges[other].offset + ranges[other].size > given.offset]
        for other in live:
            if (access | contract.bindings[other].access) & Access.WRITE:
                first, second = sorted((index, other))
                raise UsageError(
                    f"{name}: bindings {first} and {second} share bytes and one is written; "
                    "bind apart, or record with aliasing=True if the kernel is made for it"
                )
        open_ranges[given.key] = [*live, index]
