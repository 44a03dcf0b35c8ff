"""Recordings in the form that pool.c plays: at `seal` a recording becomes streams of packed operations, one native call each.

A stream ends only where an event is set, cleared or waited for. What a binding table decides is left open in the stream, and a
list of relocations says where. An execution with a table or patches works on its own copy of the stream: C fills the table's
addresses in, then the patched dispatches are packed over the recorded ones, which have the same size. Other executions share the
stream as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from ctypes import addressof, c_char
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from remora.drivers.cpu._ffi import HostPin
from remora.errors import ClosedError, Status, UsageError
from remora.hal.buffer import Buffer, BufferView
from remora.hal.host_queue import INLINE_NS
from remora.hal.records import (
    Binding,
    CopyRecord,
    DispatchRecord,
    EventAction,
    EventRecord,
    FillRecord,
    LabelRecord,
    Record,
    Slot,
    UpdateRecord,
    resolve,
)

if TYPE_CHECKING:
    from remora.drivers.cpu.buffer import CpuBuffer
    from remora.drivers.cpu.executable import CpuKernel, Program
    from remora.drivers.cpu.memory import Block

__all__ = ["Recording", "Run", "block_of"]

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
    """A patched dispatch: the number of its record, and `numbers` for the addresses of its bindings followed by their sizes."""

    number: int
    program: Program
    record: DispatchRecord
    numbers: Sequence[int]


class Stream:
    """Consecutive operations, packed. `places` are relocations, `calls` the byte offset of each dispatch by record number."""

    def __init__(self) -> None:
        self.packed = bytearray()
        self.places = bytearray()
        self.calls: dict[int, int] = {}

    def dispatch(self, number: int, record: DispatchRecord, program: Program, blocks: set[Block]) -> None:
        """Append a kernel launch."""
        at = self._grow(HEAD.size + program.call_bytes)
        HEAD.pack_into(self.packed, at, DISPATCH, HEAD.size + program.call_bytes, number, 0)
        call = at + HEAD.size
        self.calls[number] = call
        numbers = self._bindings(record.bindings, call + program.bindings_at, blocks)
        program.pack_into(self.packed, call, program.address, *record.grid, 0, record.constants, *numbers)

    def fill(self, number: int, record: FillRecord, blocks: set[Block]) -> None:
        """Append a fill."""
        at = self._grow(FILL_OPERATION.size)
        target = self._address(record.target, at + 16, at + 24, blocks)
        pattern, step = int.from_bytes(record.pattern, "little"), len(record.pattern)
        FILL_OPERATION.pack_into(
            self.packed, at, FILL, FILL_OPERATION.size, number, 0, target, max(record.target.size, 0), pattern, step
        )

    def copy(self, number: int, record: CopyRecord, blocks: set[Block]) -> None:
        """Append a copy between device memory."""
        at = self._grow(COPY_OPERATION.size)
        target, source = self._address(record.target, at + 16, 0, blocks), self._address(record.source, at + 24, 0, blocks)
        COPY_OPERATION.pack_into(self.packed, at, COPY, COPY_OPERATION.size, number, 0, target, source, record.size)

    def update(self, number: int, record: UpdateRecord, address: int, blocks: set[Block]) -> None:
        """Append a copy from host memory at `address`."""
        at = self._grow(COPY_OPERATION.size)
        target = self._address(record.target, at + 16, 0, blocks)
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
        for number, program, record, numbers in patches:
            program.pack_into(memory, self.calls[number], program.address, *record.grid, 0, record.constants, *numbers)
        return Run(address, len(self.packed), self._numbers, memory)

    def _grow(self, size: int) -> int:
        at = len(self.packed)
        self.packed += bytes(size)
        return at

    def _bindings(self, bindings: Sequence[Binding], at: int, blocks: set[Block]) -> list[int]:
        """Addresses, then sizes; zeros and a relocation for each slot."""
        count = len(bindings)
        addresses = [self._address(each, at + 8 * index, at + 8 * (count + index), blocks) for index, each in enumerate(bindings)]
        return addresses + [max(binding.size, 0) for binding in bindings]

    def _address(self, binding: Binding, at: int, size_at: int, blocks: set[Block]) -> int:
        if isinstance(binding, Slot):
            self.places += RELOCATION.pack(at, size_at, binding.index, binding.offset, binding.size)
            return 0
        block = block_of(binding)
        blocks.add(block)
        return block.address + binding.offset


class Recording:
    """A sealed command buffer: streams with event records between them, what keeps their memory and code, and what they cost."""

    def __init__(self, records: Sequence[Record], slots: int) -> None:
        self.records = records
        self._parts: list[Stream | tuple[int, EventRecord]] = []
        self._blocks: set[Block] = set()
        self._calls: dict[int, tuple[Stream, Program]] = {}
        self._workgroups: dict[Program, int] = {}
        self._open_fills: dict[int, int] = {}  # how often each slot is filled to its end
        self._fixed_ns = 0.0
        self._entries = struct.Struct(f"={2 * slots}Q")
        for number, record in enumerate(records):
            self._append(number, record)
        for part in self._parts:
            if isinstance(part, Stream):
                part.freeze()

    def bind(
        self, relocate: Relocate, table: Sequence[Buffer | BufferView], patched: dict[int, DispatchRecord]
    ) -> tuple[list[Run | tuple[int, EventRecord]], list[Block]]:
        """The parts for one execution, and the memory beside the recording's own that they use."""
        blocks: list[Block] = []
        entries = self._entries.pack(*flat(table, blocks))
        patches: dict[Stream, list[Call]] = {}
        for number, record in patched.items():
            stream, program = self._calls[number]
            numbers = flat([resolve(binding, table) for binding in record.bindings], blocks)
            patches.setdefault(stream, []).append(Call(number, program, record, numbers[::2] + numbers[1::2]))
        return [
            part.bind(relocate, entries, patches.get(part, ())) if isinstance(part, Stream) else part for part in self._parts
        ], blocks

    def cost_ns(self, table: Sequence[Buffer | BufferView], patched: dict[int, DispatchRecord]) -> float:
        """Expected duration; INLINE_NS or more when a kernel's is unknown or an event is waited for."""
        workgroups = self._workgroups
        if patched:
            workgroups = dict(workgroups)
            for number, record in patched.items():
                before = cast("DispatchRecord", self.records[number])
                workgroups[self._calls[number][1]] += workgroups_of(number, record) - workgroups_of(number, before)
        cost_ns = self._fixed_ns + NS_PER_BYTE * sum(table[slot].size * count for slot, count in self._open_fills.items())
        for program, count in workgroups.items():
            ns_each = program.record.ns_per_workgroup
            cost_ns += ns_each * count if ns_each >= 0 else INLINE_NS
        return cost_ns

    def _append(self, number: int, record: Record) -> None:
        if isinstance(record, LabelRecord):
            return
        if isinstance(record, EventRecord):
            self._parts.append((number, record))
            self._fixed_ns += INLINE_NS if record.action is EventAction.WAIT else 0
            return
        stream = self._parts[-1] if self._parts else None
        if not isinstance(stream, Stream):
            stream = Stream()
            self._parts.append(stream)
        self._fixed_ns += NS_PER_OPERATION
        if isinstance(record, DispatchRecord):
            self._append_dispatch(stream, number, record)
        else:
            self._fixed_ns += NS_PER_BYTE * self._append_transfer(stream, number, record)

    def _append_dispatch(self, stream: Stream, number: int, record: DispatchRecord) -> None:
        program = cast("CpuKernel", record.kernel).program
        if program is None:
            raise ClosedError(f"record {number}: the executable of {record.kernel.name} was closed; load it again")
        self._calls[number] = stream, program
        self._workgroups[program] = self._workgroups.get(program, 0) + workgroups_of(number, record)
        stream.dispatch(number, record, program, self._blocks)

    def _append_transfer(self, stream: Stream, number: int, record: FillRecord | UpdateRecord | CopyRecord) -> int:
        """Append what moves bytes; returns how many, as far as they are known."""
        if isinstance(record, FillRecord):
            if isinstance(record.target, Slot) and record.target.size < 0:
                self._open_fills[record.target.index] = self._open_fills.get(record.target.index, 0) + 1
                self._fixed_ns -= NS_PER_BYTE * record.target.offset
            stream.fill(number, record, self._blocks)
            return max(record.target.size, 0)
        if isinstance(record, UpdateRecord):
            stream.update(number, record, HostPin(memoryview(record.data)).address, self._blocks)  # `records` holds the bytes
            return len(record.data)
        stream.copy(number, record, self._blocks)
        return record.size


def flat(bindings: Sequence[Buffer | BufferView], blocks: list[Block]) -> list[int]:
    """Address and size of each binding in turn; their memory is added to `blocks`."""
    numbers: list[int] = []
    for binding in bindings:
        block = block_of(binding)
        blocks.append(block)
        numbers += (block.address + binding.offset, binding.size)
    return numbers


def workgroups_of(number: int, record: DispatchRecord) -> int:
    """How many workgroups a recorded dispatch has. Raises UsageError for more than the pool counts."""
    x, y, z = record.grid
    count = x * y * z
    if count > MAX_WORKGROUPS:
        raise UsageError(f"record {number}: {count} workgroups of {record.kernel.name} are over 2**62", code=Status.OUT_OF_RANGE)
    return count


def block_of(buffer: Buffer | BufferView) -> Block:
    """The memory behind a buffer or view. Raises ClosedError when another thread closed the buffer just now."""
    owner = cast("CpuBuffer", buffer.buffer)
    return owner._block or owner.block
