"""What a SPIR-V module says of itself: entry points, their push constants, specialization constants, and the memory that it owns.

Every length and every id is checked before it is used (H25). What a module does with memory is not: code is trusted.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remora.errors import UnsupportedError, UsageError
from remora.hal.exports import Export

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Entry", "Module", "Owned", "parse_module"]

MAGIC = 0x07230203
HEAD_WORDS = 5
COMPUTE = 5
LOCAL_SIZE = 17
SPEC_ID, ARRAY_STRIDE, BINDING, DESCRIPTOR_SET, OFFSET = 1, 6, 33, 34, 35
PUSH_CONSTANT, STORAGE_BUFFER, PHYSICAL = 9, 12, 5349
#: Storage classes of what only a graphics program binds.
FOREIGN = {0: "an image or a sampler", 2: "a uniform buffer"}
ADDRESS_BYTES = 8


@dataclass(slots=True)
class Entry:
    """An entry point: what the driver has to hand to it. 0 bindings and constants also stand for a kernel that uses none."""

    name: str
    function: int
    workgroup: tuple[int, int, int] = (0, 0, 0)
    bindings: int = 0
    constants: int = 0

    @property
    def export(self) -> Export:
        """As `Executable.exports` shows it."""
        return Export(self.name, self.bindings, self.constants, self.workgroup)


@dataclass(frozen=True, slots=True)
class Owned:
    """Memory that the module declares as a storage buffer of descriptor set 0."""

    name: str
    binding: int
    size: int


@dataclass(frozen=True, slots=True)
class Module:
    """A checked module."""

    version: tuple[int, int]
    capabilities: frozenset[int]
    entries: tuple[Entry, ...]
    words: int
    """32-bit words of specialization constants: their ids run from 0 to this without gaps."""
    owned: tuple[Owned, ...]


@dataclass(slots=True)
class Kind:
    """A type: its bytes, or -1 where that is not known; for a pointer what it points to, for a structure its members."""

    size: int = -1
    storage: int = -1
    target: int = 0
    members: tuple[int, ...] = ()


@dataclass(slots=True)
class Function:
    """What a function touches, and which functions it calls."""

    uses: set[int] = field(default_factory=set)
    calls: set[int] = field(default_factory=set)


def damaged(what: str) -> UsageError:
    """The error for a module that is none."""
    return UsageError(f"the artifact is no SPIR-V module, or a damaged one: {what}; build the bundle again")


def parse_module(data: memoryview) -> Module:
    """Read a module. Raises UsageError when it is none, UnsupportedError when it wants what no compute device gives it."""
    if data.nbytes % 4 or data.nbytes < 4 * HEAD_WORDS:
        raise damaged(f"it has {data.nbytes} bytes")
    words = array("I", data.tobytes())
    if words[0] != MAGIC:
        raise damaged(f"it begins with {words[0]:#010x}, not {MAGIC:#010x}")
    reader = Reader()
    at = HEAD_WORDS
    while at < len(words):
        count = words[at] >> 16
        if not count or at + count > len(words):
            raise damaged(f"word {at} claims an instruction of {count} words")
        reader.take(words[at] & 0xFFFF, words[at + 1 : at + count], at)
        at += count
    return reader.finish((words[1] >> 16 & 0xFF, words[1] >> 8 & 0xFF))


def text_of(words: Sequence[int]) -> tuple[str, int]:
    """A string at the start of operands, and how many words it takes."""
    data = array("I", words).tobytes()
    end = data.find(b"\0")
    if end < 0:
        raise damaged("a string has no end")
    return data[:end].decode(errors="replace"), end // 4 + 1


class Reader:
    """Takes the instructions of a module in their order, which puts every id before its use."""

    def __init__(self) -> None:
        self.capabilities: set[int] = set()
        self.names: dict[int, str] = {}
        self.entries: list[Entry] = []
        self.sizes: dict[int, tuple[int, int, int]] = {}
        self.spec_ids: set[int] = set()
        self.decorations: dict[tuple[int, int], int] = {}
        self.offsets: dict[tuple[int, int], int] = {}
        self.kinds: dict[int, Kind] = {}
        self.constants: dict[int, int] = {}
        self.variables: dict[int, Kind] = {}
        self.functions: dict[int, Function] = {}
        self._function = Function()

    def take(self, operation: int, operands: Sequence[int], at: int) -> None:
        """One instruction; those that say nothing of interest pass."""
        known = INSTRUCTIONS.get(operation)
        if known is not None:
            least, method = known
            if len(operands) < least:
                raise damaged(f"word {at} has {len(operands)} operands of at least {least}")
            method(self, operands)

    def finish(self, version: tuple[int, int]) -> Module:
        """All instructions were taken."""
        for entry in self.entries:
            entry.workgroup = self.sizes.get(entry.function, (0, 0, 0))
            self._push_constants(entry)
        if self.spec_ids != set(range(len(self.spec_ids))):
            raise UsageError(
                f"the artifact's specialization constants have the ids {sorted(self.spec_ids)}: number them from 0, a word each"
            )
        if len({entry.name for entry in self.entries}) != len(self.entries):
            raise damaged("two of its entry points have one name")
        return Module(version, frozenset(self.capabilities), tuple(self.entries), len(self.spec_ids), self._owned())

    # -- instructions -----------------------------------------------------------------------------------------------------------

    def capability(self, operands: Sequence[int]) -> None:
        """OpCapability."""
        self.capabilities.add(operands[0])

    def name(self, operands: Sequence[int]) -> None:
        """OpName."""
        self.names[operands[0]] = text_of(operands[1:])[0]

    def entry_point(self, operands: Sequence[int]) -> None:
        """OpEntryPoint."""
        if operands[0] == COMPUTE:
            self.entries.append(Entry(text_of(operands[2:])[0], operands[1]))

    def execution_mode(self, operands: Sequence[int]) -> None:
        """OpExecutionMode."""
        if operands[1] == LOCAL_SIZE and len(operands) >= 5:
            self.sizes[operands[0]] = operands[2], operands[3], operands[4]

    def decorate(self, operands: Sequence[int]) -> None:
        """OpDecorate."""
        if operands[1] == SPEC_ID and len(operands) > 2:
            self.spec_ids.add(operands[2])
        elif len(operands) > 2:
            self.decorations[operands[0], operands[1]] = operands[2]

    def member_decorate(self, operands: Sequence[int]) -> None:
        """OpMemberDecorate."""
        if operands[2] == OFFSET and len(operands) > 3:
            self.offsets[operands[0], operands[1]] = operands[3]

    def number_type(self, operands: Sequence[int]) -> None:
        """OpTypeInt, OpTypeFloat."""
        self.kinds[operands[0]] = Kind(operands[1] // 8)

    def vector_type(self, operands: Sequence[int]) -> None:
        """OpTypeVector."""
        size = self.size(operands[1])
        self.kinds[operands[0]] = Kind(size * operands[2] if size >= 0 else -1)

    def array_type(self, operands: Sequence[int]) -> None:
        """OpTypeArray."""
        stride, length = self.decorations.get((operands[0], ARRAY_STRIDE), -1), self.constants.get(operands[2], -1)
        self.kinds[operands[0]] = Kind(stride * length if stride >= 0 and length >= 0 else -1)

    def struct_type(self, operands: Sequence[int]) -> None:
        """OpTypeStruct: as long as its member that ends last."""
        ends = []
        for member, kind in enumerate(operands[1:]):
            size, offset = self.size(kind), self.offsets.get((operands[0], member), -1)
            ends.append(offset + size if size >= 0 and offset >= 0 else -1)
        self.kinds[operands[0]] = Kind(-1 if -1 in ends else max(ends, default=0), members=tuple(operands[1:]))

    def pointer_type(self, operands: Sequence[int]) -> None:
        """OpTypePointer."""
        self.kinds[operands[0]] = Kind(ADDRESS_BYTES if operands[1] == PHYSICAL else -1, operands[1], operands[2])

    def forward_pointer(self, operands: Sequence[int]) -> None:
        """OpTypeForwardPointer."""
        self.kinds[operands[0]] = Kind(ADDRESS_BYTES if operands[1] == PHYSICAL else -1, operands[1])

    def constant(self, operands: Sequence[int]) -> None:
        """OpConstant."""
        self.constants[operands[1]] = operands[2]

    def variable(self, operands: Sequence[int]) -> None:
        """OpVariable outside of functions."""
        kind, storage = self.kinds.get(operands[0]), operands[2]
        if storage in FOREIGN:
            raise UnsupportedError(
                f"the artifact uses {FOREIGN[storage]}; kernels get addresses in push constants, and memory of their own in "
                "storage buffers of descriptor set 0"
            )
        if storage in {PUSH_CONSTANT, STORAGE_BUFFER} and kind is not None:
            self.variables[operands[1]] = kind

    def function(self, operands: Sequence[int]) -> None:
        """OpFunction."""
        self._function = self.functions[operands[1]] = Function()

    def call(self, operands: Sequence[int]) -> None:
        """OpFunctionCall; what is handed over by reference counts as used."""
        self._function.calls.add(operands[2])
        self._function.uses.update(operands[3:])

    def access(self, operands: Sequence[int]) -> None:
        """OpLoad, OpAccessChain and its kin, OpCopyObject: the third operand is what they look into."""
        self._function.uses.add(operands[2])

    # -- conclusions ------------------------------------------------------------------------------------------------------------

    def size(self, kind: int) -> int:
        """The bytes of a type, or -1."""
        known = self.kinds.get(kind)
        return -1 if known is None else known.size

    def _push_constants(self, entry: Entry) -> None:
        used = [variable for variable in self._reached(entry.function) if self._storage(variable) == PUSH_CONSTANT]
        if not used:
            return
        if len(used) > 1:
            raise damaged(f"{entry.name} has {len(used)} blocks of push constants")
        block = self.variables[used[0]].target
        members = self.kinds.get(block, Kind()).members
        addresses = [index for index, member in enumerate(members) if self.kinds.get(member, Kind()).storage == PHYSICAL]
        if [self.offsets.get((block, index)) for index in addresses] != [ADDRESS_BYTES * each for each in range(len(addresses))]:
            raise UsageError(
                f"the artifact's {entry.name} has other push constants before or between the addresses of its bindings"
            )
        size = self.size(block)
        if size < 0:
            raise UsageError(f"the artifact's {entry.name} has push constants of no fixed size")
        entry.bindings, entry.constants = len(addresses), (size - ADDRESS_BYTES * len(addresses) + 3) // 4

    def _reached(self, function: int) -> set[int]:
        """The ids that a function and all that it calls look into."""
        done: set[int] = set()
        waiting, used = [function], set()
        while waiting:
            each = waiting.pop()
            if each not in done and each in self.functions:
                done.add(each)
                used |= self.functions[each].uses
                waiting.extend(self.functions[each].calls)
        return used

    def _storage(self, variable: int) -> int:
        kind = self.variables.get(variable)
        return -1 if kind is None else kind.storage

    def _owned(self) -> tuple[Owned, ...]:
        found: dict[int, Owned] = {}
        for variable, kind in self.variables.items():
            if kind.storage != STORAGE_BUFFER:
                continue
            name = self.names.get(variable) or self.names.get(kind.target, "")
            binding, size = self.decorations.get((variable, BINDING), -1), self.size(kind.target)
            if self.decorations.get((variable, DESCRIPTOR_SET), -1) != 0 or binding < 0:
                raise UnsupportedError(f"the artifact's storage buffer {name!r} is not in descriptor set 0")
            if size <= 0:
                raise UnsupportedError(f"the artifact's storage buffer {name!r} has no fixed size: give its array a length")
            owned = found.setdefault(binding, Owned(name, binding, size))
            if owned.size != size:
                raise damaged(f"{name!r} has {size} bytes in one place and {owned.size} in another")
        return tuple(found[binding] for binding in sorted(found))


#: Operation -> the fewest operands, and what takes them.
INSTRUCTIONS: dict[int, tuple[int, Callable[[Reader, Sequence[int]], None]]] = {
    5: (2, Reader.name),
    15: (3, Reader.entry_point),
    16: (2, Reader.execution_mode),
    17: (1, Reader.capability),
    21: (3, Reader.number_type),
    22: (2, Reader.number_type),
    23: (3, Reader.vector_type),
    28: (3, Reader.array_type),
    30: (1, Reader.struct_type),
    32: (3, Reader.pointer_type),
    39: (2, Reader.forward_pointer),
    43: (3, Reader.constant),
    54: (4, Reader.function),
    57: (3, Reader.call),
    59: (3, Reader.variable),
    61: (3, Reader.access),
    65: (3, Reader.access),
    66: (3, Reader.access),
    67: (3, Reader.access),
    71: (2, Reader.decorate),
    72: (3, Reader.member_decorate),
    83: (3, Reader.access),
}
