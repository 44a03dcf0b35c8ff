"""What a code object (HSACO) says of itself: its processor, its kernels with their arguments, its memory (requirement H19).

A code object is an ELF shared library. Its flags name the processor, a note holds MessagePack that describes each kernel, and the
dynamic symbols are the kernels' descriptors (`add.kd`) and the memory of the program. `read_code_object` reads all of it without
the vendor's library, which is given the bytes afterwards.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeVar

from remora.drivers.hip.elf import Elf
from remora.drivers.hip.msgpack import unpack
from remora.drivers.hip.targets import Processor, processor_of
from remora.errors import UsageError

__all__ = ["Argument", "CodeObject", "KernelCode", "read_code_object"]

#: ABI number of the ELF header -> code object version. Version 3 and older say otherwise which features they need.
VERSIONS: Final = {2: 4, 3: 5, 4: 6}
METADATA_NAME, METADATA_KIND = b"AMDGPU", 32
HIDDEN: Final = "hidden_"
MAX_KERNELS: Final = 1 << 16

T = TypeVar("T")


class Argument(NamedTuple):
    """One argument that the caller gives. `kind` is `global_buffer` for an address, `by_value` for a constant; there are others."""

    offset: int
    size: int
    kind: str


class KernelCode(NamedTuple):
    """One entry point as the compiler described it."""

    name: str
    symbol: str
    """Of its descriptor: the name with `.kd`."""
    argument_bytes: int
    """Of all arguments, those included that the runtime fills in by itself."""
    arguments: tuple[Argument, ...]
    hidden: int
    """How many arguments the runtime fills in."""
    most: int
    """The most items that a workgroup may have; 0 is unknown."""
    workgroup: tuple[int, int, int]
    """The only shape of a workgroup that it was compiled for, or zeros."""
    shared_bytes: int
    """Shared memory (AMD's LDS) that its code declares."""


class CodeObject(NamedTuple):
    """All of it."""

    processor: Processor
    version: int
    kernels: dict[str, KernelCode]
    memory: dict[str, int]
    """Bytes of each symbol that is no kernel."""


def read_code_object(data: bytes) -> CodeObject:
    """Read it whole. Raises UsageError that says what is wrong with it, and nothing else, whatever the bytes are."""
    elf = Elf(data)
    if elf.abi not in VERSIONS:
        raise UsageError(
            f"the code object has ABI number {elf.abi}; this driver takes versions 4 to 6 (numbers 2 to 4): "
            "compile with -mcode-object-version=5"
        )
    processor = processor_of(elf.flags)
    sizes = {symbol.name: symbol.size for symbol in elf.symbols()}
    kernels = {kernel.name: kernel for kernel in _kernels(elf)}
    for kernel in kernels.values():
        if kernel.symbol not in sizes:
            raise UsageError(f"the code object describes {kernel.name} and has no symbol {kernel.symbol}: link it again")
    memory = {name: size for name, size in sizes.items() if not name.endswith(".kd") and name not in kernels}
    return CodeObject(processor, VERSIONS[elf.abi], kernels, memory)


def _kernels(elf: Elf) -> list[KernelCode]:
    for note in elf.notes():
        if note.name == METADATA_NAME and note.kind == METADATA_KIND:
            told = _of(dict, unpack(note.content), "the metadata")
            described = _of(list, told.get("amdhsa.kernels", []), "amdhsa.kernels")
            if len(described) > MAX_KERNELS:
                raise UsageError(f"the code object has {len(described)} kernels, more than {MAX_KERNELS}: split the program")
            return [_kernel(_of(dict, each, "a kernel")) for each in described]
    raise UsageError("the code object has no metadata of its kernels (the note NT_AMDGPU_METADATA): link it again")


def _kernel(told: dict[str, Any]) -> KernelCode:
    name = _of(str, told.get(".name"), ".name")
    given, hidden = [], 0
    for each in _of(list, told.get(".args", []), ".args"):
        argument = _argument(_of(dict, each, "an argument"))
        if argument.kind.startswith(HIDDEN):
            hidden += 1
        else:
            given.append(argument)
    kernel = KernelCode(
        name,
        _of(str, told.get(".symbol"), ".symbol"),
        _size(told, ".kernarg_segment_size"),
        tuple(given),
        hidden,
        _size(told, ".max_flat_workgroup_size", 0),
        _workgroup(told.get(".reqd_workgroup_size")),
        _size(told, ".group_segment_fixed_size", 0),
    )
    end = max((argument.offset + argument.size for argument in given), default=0)
    if end > kernel.argument_bytes:
        raise UsageError(f"{name} has {kernel.argument_bytes} bytes of arguments, and one of them ends at {end}: build it again")
    return kernel


def _argument(told: dict[str, Any]) -> Argument:
    return Argument(_size(told, ".offset"), _size(told, ".size"), _of(str, told.get(".value_kind"), ".value_kind"))


def _workgroup(told: Any) -> tuple[int, int, int]:
    if told is None:
        return (0, 0, 0)
    x, y, z = (*(_count(each, ".reqd_workgroup_size") for each in _of(list, told, ".reqd_workgroup_size")[:3]), 1, 1, 1)[:3]
    return x, y, z


def _size(told: dict[str, Any], name: str, default: int | None = None) -> int:
    return _count(told.get(name, default), name)


def _count(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value < 1 << 32:
        raise UsageError(f"the metadata of the code object is damaged: {what} is {_shown(value)}; build the bundle again")
    return value


def _of(kind: type[T], value: Any, what: str) -> T:
    if not isinstance(value, kind):
        raise UsageError(f"the metadata of the code object is damaged: {what} is {_shown(value)}; build the bundle again")
    return value


def _shown(value: Any) -> str:
    return repr(value)[:40]
