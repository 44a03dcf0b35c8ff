"""Recordings in the form that pool.c plays: at `seal` a recording becomes streams of packed operations, one native call each.

A stream ends only where an event is set, cleared or waited for, and at a dispatch whose grid is in a buffer, which is read then.
What a binding table decides is left open in the stream, and a list of relocations says where. An execution with a table or patches
works on its own copy of the stream: C fills the table's addresses in, then patched dispatches are packed over the recorded ones of
the same size. Other executions share the stream as it is. A buffer without memory yet (hal.late) is a relocation too, against an
entry behind the table's.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from ctypes import addressof, c_char
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from remora.drivers.cpu._ffi import HostPin
from remora.drivers.cpu.places import Place, block_of, entries_of, numbers_of, place
from remora.errors import ClosedError, Status, UsageError
from remora.hal.buffer import Buffer, BufferView
from remora.hal.host_queue import INLINE_NS
from remora.hal.late import NotMadeError
from remora.hal.records import (
    BarrierRecord,
    Binding,
    CopyRecord,
    DispatchRecord,
    EventAction,
    EventRecord,
    FillRecord,
    IndirectRecord,
    LabelRecord,
    Launch,
    Record,
    Slot,
    UpdateRecord,
    resolve,
)

if TYPE_CHECKING:
    from remora.drivers.cpu.buffer import AnyBlock
    from remora.drivers.cpu.executable import CpuKernel, Program
    from remora.hal.executable import Kernel

__all__ = ["Execution", "IndirectCall", "Part", "Recording", "Run"]

#: `remora_relocate`: stream, relocations, how many, packed table.
Relocate: TypeAlias = "Callable[[int, bytes, int, bytes], None]"

#: Expected cost of moving one byte, and of one operation beside its work, in nanoseconds.
NS_PER_BYTE = 0.2
NS_PER_OPERATION = 100
MAX_WORKGROUPS = 1 << 62
#: Kinds of operations.
DISPATCH, FILL, COPY = 0, 1, 2
#: remora_operation_t, and with it remora_fill_t and remora_copy_t, of pool.c.
HEAD = struct.Struct("=IIII")
FILL_OPERATION = struct.Struct("=IIIIQQII")
COPY_OPERATION = struct.Struct("=IIIIQQQ")
#: remora_relocation_t.
RELOCATION = struct.Struct("=QQQQq")


class Run(NamedTuple):
    """A stream that is ready to play: no place in it is open."""

    address: int
    bytes: int
    calls: Sequence[int]
    """The numbers of its dispatches."""
    memory: Any
    """What is at the address."""


class Call(NamedTuple):
    """A patched dispatch: the number of its record, and where its bindings are."""

    number: int
    program: Program
    record: DispatchRecord
    places: list[Place]


class IndirectCall(NamedTuple):
    """A dispatch whose grid is read at its turn: the number of its record, and where everything is."""

    number: int
    kernel: Kernel
    program: Program
    grid: Place
    constants: bytes
    places: list[Place]


#: What an execution plays, in order.
Part: TypeAlias = "Run | IndirectCall | tuple[int, EventRecord]"


class Stream:
    """Consecutive operations, packed. `places` are relocations, `calls` the byte offset of each dispatch by record number."""

    def __init__(self) -> None:
        self.packed = bytearray()
        self.places = bytearray()
        self.calls: dict[int, int] = {}

    def dispatch(self, number: int, record: DispatchRecord, program: Program, memory: Held) -> None:
        """Append a kernel launch."""
        at = self._grow(HEAD.size + program.call_bytes)
        HEAD.pack_into(self.packed, at, DISPATCH, HEAD.size + program.call_bytes, number, 0)
        call = at + HEAD.size
        self.calls[number] = call
        numbers = self._bindings(record.bindings, call + program.bindings_at, memory)
        program.pack_into(self.packed, call, program.address, *record.grid, 0, record.constants, *numbers)

    def fill(self, number: int, record: FillRecord, memory: Held) -> None:
        """Append a fill."""
        at = self._grow(FILL_OPERATION.size)
        target = self._address(record.target, at + 16, at + 24, memory)
        pattern, step = int.from_bytes(record.pattern, "little"), len(record.pattern)
        FILL_OPERATION.pack_into(
            self.packed, at, FILL, FILL_OPERATION.size, number, 0, target, max(record.target.size, 0), pattern, step
        )

    def copy(self, number: int, record: CopyRecord, memory: Held) -> None:
        """Append a copy between device memory."""
        at = self._grow(COPY_OPERATION.size)
        target, source = self._address(record.target, at + 16, 0, memory), self._address(record.source, at + 24, 0, memory)
        COPY_OPERATION.pack_into(self.packed, at, COPY, COPY_OPERATION.size, number, 0, target, source, record.size)

    def update(self, number: int, record: UpdateRecord, address: int, memory: Held) -> None:
        """Append a copy from host memory at `address`."""
        at = self._grow(COPY_OPERATION.size)
        target = self._address(record.target, at + 16, 0, memory)
        COPY_OPERATION.pack_into(self.packed, at, COPY, COPY_OPERATION.size, number, 0, target, address, len(record.data))

    def freeze(self) -> None:
        """Nothing is appended any more."""
        self._type = c_char * len(self.packed)
        self._shared = self._type.from_buffer(self.packed)
        self._places = bytes(self.places)
        self._place_count = len(self.places) // RELOCATION.size
        self._numbers = tuple(self.calls)
        self._run = Run(addressof(self._shared), len(self.packed), self._numbers, self._shared)

    def bind(self, relocate: Relocate, entries: bytes, patches: Sequence[Call]) -> Run:
        """The stream for one execution, under a packed binding table."""
        if not self._place_count and not patches:
            return self._run
        memory = self._type.from_buffer_copy(self._shared)
        address = addressof(memory)
        relocate(address, self._places, self._place_count, entries)
        for number, program, record, places in patches:
            numbers = numbers_of(places)
            program.pack_into(memory, self.calls[number], program.address, *record.grid, 0, record.constants, *numbers)
        return Run(address, len(self.packed), self._numbers, memory)

    def _grow(self, size: int) -> int:
        at = len(self.packed)
        self.packed += bytes(size)
        return at

    def _bindings(self, bindings: Sequence[Binding], at: int, memory: Held) -> list[int]:
        """Addresses, then sizes; zeros and a relocation for each slot."""
        count = len(bindings)
        addresses = [self._address(each, at + 8 * index, at + 8 * (count + index), memory) for index, each in enumerate(bindings)]
        return addresses + [max(binding.size, 0) for binding in bindings]

    def _address(self, binding: Binding, at: int, size_at: int, memory: Held) -> int:
        if isinstance(binding, Slot):
            self.places += RELOCATION.pack(at, size_at, binding.index, binding.offset, binding.size)
            return 0
        block = block_of(binding)
        memory.blocks.add(block)
        try:
            return block.address + binding.offset
        except NotMadeError:
            self.places += RELOCATION.pack(at, size_at, memory.entry(block), binding.offset, binding.size)
            return 0


class Held:
    """The memory that a recording names itself: what keeps it alive, and what of it is still to come, as entries of the table."""

    def __init__(self, slots: int) -> None:
        self.blocks: set[AnyBlock] = set()
        self.late: list[Place] = []
        self._slots = slots

    def entry(self, block: AnyBlock) -> int:
        """The entry that stands for all of a late block."""
        self.late.append(Place(block, 0, block.size))
        return self._slots + len(self.late) - 1


class Recording:
    """A sealed command buffer: streams with what is no part of one between them, what keeps memory and code, and what it costs."""

    def __init__(self, records: Sequence[Record], slots: int) -> None:
        self.records = records
        self.parts: list[Stream | tuple[int, EventRecord] | int] = []
        self.memory = Held(slots)
        self._calls: dict[int, tuple[Stream, Program]] = {}
        self._indirect_programs: dict[int, Program] = {}
        self._workgroups: dict[Program, int] = {}
        self._open_fills: dict[int, int] = {}  # how often each slot is filled to its end
        self._fixed_ns = 0.0
        for number, record in enumerate(records):
            self._append(number, record)
        self.entries = struct.Struct(f"={2 * (slots + len(self.memory.late))}Q")
        for part in self.parts:
            if isinstance(part, Stream):
                part.freeze()

    def open(self, table: Sequence[Buffer | BufferView], patched: dict[int, Launch]) -> Execution:
        """One execution, which holds the memory that it uses."""
        patches: dict[Stream, list[Call]] = {}
        for number, record in patched.items():
            if isinstance(record, DispatchRecord):
                stream, program = self._calls[number]
                places = [place(resolve(binding, table)) for binding in record.bindings]
                patches.setdefault(stream, []).append(Call(number, program, record, places))
        indirect = {
            number: self._indirect(number, cast("IndirectRecord", patched.get(number, self.records[number])), table)
            for number in self._indirect_programs
        }
        return Execution(self, [place(entry) for entry in table], patches, indirect)

    def _indirect(self, number: int, record: IndirectRecord, table: Sequence[Buffer | BufferView]) -> IndirectCall:
        places = [place(resolve(binding, table)) for binding in record.bindings]
        grid, program = place(resolve(record.grid, table)), self._indirect_programs[number]
        return IndirectCall(number, record.kernel, program, grid, record.constants, places)

    def cost_ns(self, table: Sequence[Buffer | BufferView], patched: dict[int, Launch]) -> float:
        """Expected duration; INLINE_NS or more when a kernel's or its grid is unknown or an event is waited for."""
        workgroups = self._workgroups
        if patched:
            workgroups = dict(workgroups)
            for number, record in patched.items():
                if isinstance(record, DispatchRecord):
                    before = cast("DispatchRecord", self.records[number])
                    workgroups[self._calls[number][1]] += workgroups_of(number, record) - workgroups_of(number, before)
        cost_ns = self._fixed_ns + NS_PER_BYTE * sum(table[slot].size * count for slot, count in self._open_fills.items())
        for program, count in workgroups.items():
            ns_each = program.record.ns_per_workgroup
            cost_ns += ns_each * count if ns_each >= 0 else INLINE_NS
        return cost_ns

    def _append(self, number: int, record: Record) -> None:
        if isinstance(record, LabelRecord | BarrierRecord):
            return
        if isinstance(record, EventRecord):
            self.parts.append((number, record))
            self._fixed_ns += INLINE_NS if record.action is EventAction.WAIT else 0
            return
        if isinstance(record, IndirectRecord):
            self.parts.append(number)
            self._fixed_ns += INLINE_NS
            self._indirect_programs[number] = program_of(number, record)
            return
        stream = self.parts[-1] if self.parts else None
        if not isinstance(stream, Stream):
            stream = Stream()
            self.parts.append(stream)
        self._fixed_ns += NS_PER_OPERATION
        if isinstance(record, DispatchRecord):
            self._append_dispatch(stream, number, record)
        else:
            self._fixed_ns += NS_PER_BYTE * self._append_transfer(stream, number, record)

    def _append_dispatch(self, stream: Stream, number: int, record: DispatchRecord) -> None:
        program = program_of(number, record)
        self._calls[number] = stream, program
        self._workgroups[program] = self._workgroups.get(program, 0) + workgroups_of(number, record)
        stream.dispatch(number, record, program, self.memory)

    def _append_transfer(self, stream: Stream, number: int, record: FillRecord | UpdateRecord | CopyRecord) -> int:
        """Append what moves bytes; returns how many, as far as they are known."""
        if isinstance(record, FillRecord):
            if isinstance(record.target, Slot) and record.target.size < 0:
                self._open_fills[record.target.index] = self._open_fills.get(record.target.index, 0) + 1
                self._fixed_ns -= NS_PER_BYTE * record.target.offset
            stream.fill(number, record, self.memory)
            return max(record.target.size, 0)
        if isinstance(record, UpdateRecord):
            stream.update(number, record, HostPin(memoryview(record.data)).address, self.memory)  # `records` holds the bytes
            return len(record.data)
        stream.copy(number, record, self.memory)
        return record.size


class Execution:
    """A recording under a binding table and patches."""

    def __init__(
        self, recording: Recording, table: list[Place], patches: dict[Stream, list[Call]], indirect: dict[int, IndirectCall]
    ) -> None:
        self.recording = recording
        self._table = table
        self._patches = patches
        self._indirect = indirect

    def bind(self, relocate: Relocate) -> list[Part]:
        """The parts, ready to play. Raises NotMadeError when memory of a stream is still to come."""
        recording = self.recording
        entries = recording.entries.pack(*entries_of(self._table), *entries_of(recording.memory.late))
        return [self._ready(part, relocate, entries) for part in recording.parts]

    def _ready(self, part: Stream | tuple[int, EventRecord] | int, relocate: Relocate, entries: bytes) -> Part:
        if isinstance(part, Stream):
            return part.bind(relocate, entries, self._patches.get(part, ()))
        return self._indirect[part] if isinstance(part, int) else part


def program_of(number: int, record: Launch) -> Program:
    """The code of a recorded dispatch. Raises ClosedError when it was unloaded."""
    program = cast("CpuKernel", record.kernel).program
    if program is None:
        raise ClosedError(f"record {number}: the executable of {record.kernel.name} was closed; load it again")
    return program


def workgroups_of(number: int, record: DispatchRecord) -> int:
    """How many workgroups a recorded dispatch has. Raises UsageError for more than the pool counts."""
    x, y, z = record.grid
    count = x * y * z
    if count > MAX_WORKGROUPS:
        raise UsageError(f"record {number}: {count} workgroups of {record.kernel.name} are over 2**62", code=Status.OUT_OF_RANGE)
    return count
