"""Command buffers: recorded once, checked whole, executed any number of times (requirements H18, H21).

A recording is a list of records in the order in which they run; each sees the effects of those before it. A binding is a buffer,
a view, or a `Slot`: a place that `queue.execute` fills from its binding table. `seal` ends the recording; a mistake in any
record is found when it is recorded, or at `execute` for what only the table or a patch decides, and then nothing of it runs.

The records themselves are in records.py. What a binding table must hold is summed up while recording (`_needs`), so that a check
of it costs as much as it has slots, however long the recording is.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from remora.errors import ClosedError, Status, UsageError
from remora.hal.buffer import Buffer, BufferView
from remora.hal.dlpack import host_bytes
from remora.hal.executable import Constants, Executable, Grid, Kernel
from remora.hal.indirect import GRID_ALIGNMENT, GRID_BYTES, check_grid_place
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
    Patch,
    Record,
    Slot,
    UpdateRecord,
    resolve,
    uses_of_records,
)

if TYPE_CHECKING:
    from types import TracebackType

    from remora.hal.device import Device
    from remora.hal.event import Event
    from remora.hal.page_table import Use

__all__ = [
    "MAX_LABEL",
    "MAX_SLOTS",
    "MAX_UPDATE",
    "Binding",
    "CommandBuffer",
    "CopyRecord",
    "DispatchRecord",
    "EventAction",
    "EventRecord",
    "FillRecord",
    "IndirectRecord",
    "LabelRecord",
    "Patch",
    "Record",
    "Slot",
    "UpdateRecord",
    "resolve",
]

MAX_SLOTS = 1 << 16
#: Bytes that an update may carry inside a recording.
MAX_UPDATE = 64 << 10
#: Bytes of a label in UTF-8.
MAX_LABEL = 256


@dataclass(slots=True)
class SlotCopies:
    """The copies between one pair of places: they may overlap only where the target starts `low` to `high` behind the source."""

    numbers: list[int] = field(default_factory=list)
    low: int = 0
    high: int = 0

    def add(self, number: int, source: int, target: int, size: int) -> None:
        """Take a copy in, from and to these offsets in its places."""
        self.numbers.append(number)
        self.low = min(self.low, source - target - size)
        self.high = max(self.high, source - target + size)


@final
class CommandBuffer:
    r"""A recording. Made by `device.command_buffer()`; record, `seal()`, then `queue.execute(commands)`.

    Example:
        with device.command_buffer(slots=1) as commands:
            commands.fill(remora.Slot(0), b"\0")
            commands.dispatch(kernel, grid, [remora.Slot(0)], (n,))
        queue.execute(commands, [buffer]).wait(5)

    `one_shot` says that it will be executed once: a remote device then sends it along instead of keeping it.
    It holds the buffers, kernels and events that its records name until it is closed; closing one of those before makes `execute`
    raise ClosedError. Recording is for one thread at a time; a sealed command buffer may be executed by any.
    """

    def __init__(self, device: Device, slots: int, *, one_shot: bool, label: str) -> None:
        if not 0 <= slots <= MAX_SLOTS:
            raise UsageError(f"a binding table has 0 to {MAX_SLOTS} slots, not {slots}")
        if text_bytes(label) > MAX_LABEL:
            raise UsageError(f"a label has up to {MAX_LABEL} bytes of UTF-8")
        self.device = device
        self.slots = slots
        self.one_shot = one_shot
        self.label = label
        self.records: list[Record] = []
        self.prepared: Any = None
        """The driver's own form, made by `seal`."""
        self._needs: dict[int, tuple[int, int]] = {}
        self._open_fills: set[tuple[Slot, int]] = set()
        self._slot_copies: dict[tuple[int | Buffer, int | Buffer], SlotCopies] = {}
        self._owners: dict[int, tuple[Buffer | Executable, int]] = {}  # what records name, and the first that does, by id()
        self._virtual = False  # whether a record names virtual memory
        self._labels = 0
        self._use = threading.Lock()
        self._used = False
        self._sealed = False
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "sealed" if self._sealed else "recording"
        return f"<CommandBuffer {self.label or 'unnamed'}: {len(self.records)} records, {self.slots} slots, {state}>"

    def __len__(self) -> int:
        """The number of records."""
        return len(self.records)

    # -- recording ------------------------------------------------------------------------------------------------------------

    def dispatch(self, kernel: Kernel, grid: Grid, bindings: Sequence[Binding], constants: Constants = b"") -> int:
        """Record a kernel launch; returns its number, by which `execute` can patch it. Raises as `Queue.dispatch` does."""
        packed, needs = self._check_launch(kernel, bindings, constants)
        kernel.check_grid(grid)
        record = DispatchRecord(kernel, grid, tuple(bindings), packed)
        return self._add_launch(record, record.bindings, needs)

    def dispatch_indirect(self, kernel: Kernel, grid: Binding, bindings: Sequence[Binding], constants: Constants = b"") -> int:
        """Record a launch over the grid that the first 12 bytes of `grid` hold at this record's turn: x y z as u32 (H17, H18).

        The records before it may write them. `execute` can patch its constants and bindings by the number that this returns, not
        its grid. Raises as `Queue.dispatch_indirect` does; a grid that turns out to be too large fails the queue.
        """
        packed, needs = self._check_launch(kernel, bindings, constants)
        if isinstance(grid, Slot):
            self._check_slot(grid, GRID_BYTES, GRID_ALIGNMENT, f"{kernel.name}: the grid")
            needs.append((grid, GRID_BYTES, GRID_ALIGNMENT))
        else:
            self._own(grid)
            check_grid_place(grid)
        record = IndirectRecord(kernel, grid, tuple(bindings), packed)
        return self._add_launch(record, (grid, *record.bindings), needs)

    def _check_launch(
        self, kernel: Kernel, bindings: Sequence[Binding], constants: Constants
    ) -> tuple[bytes, list[tuple[Binding, int, int]]]:
        """Check all of a launch but its grid: (packed constants, what its slots need)."""
        self._check_recording()
        if kernel.executable.device is not self.device:
            raise UsageError(f"{kernel.name} was loaded on another device; load the bundle on this one")
        if kernel.executable.closed:
            raise ClosedError(f"the executable of {kernel.name} was closed; load it again")
        packed = kernel.pack(constants)
        kernel.check_count(len(bindings))
        needs: list[tuple[Binding, int, int]] = []
        for index, binding in enumerate(bindings):
            size, alignment = kernel.binding_need(index, packed)
            if isinstance(binding, Slot):
                self._check_slot(binding, size, alignment, f"{kernel.name}: binding {index}")
                needs.append((binding, size, alignment))
            else:
                kernel.check_binding(index, binding, size, alignment)
        return packed, needs

    def fill(self, target: Binding, pattern: bytes = b"\0") -> int:
        """Record a fill with a pattern of 1, 2 or 4 bytes."""
        self._check_recording()
        step = len(pattern)
        if step not in (1, 2, 4):
            raise UsageError(f"a fill pattern has 1, 2 or 4 bytes, not {step}")
        self._check(target, 0, step, "fill")
        if target.size >= 0 and target.size % step:
            raise UsageError(f"{target.size} bytes are no whole number of {step}-byte patterns")
        if isinstance(target, Slot) and target.size < 0:
            self._open_fills.add((target, step))
        return self._add(FillRecord(target, bytes(pattern)), (target,), ((target, 0, step),))

    def update(self, target: Binding, data: Any) -> int:
        """Record a copy of up to 64 KiB of host bytes, taken now, to the start of `target`."""
        self._check_recording()
        view = host_bytes(data)
        if view.nbytes > MAX_UPDATE:
            raise UsageError(f"an update carries up to {MAX_UPDATE} bytes, not {view.nbytes}; upload a buffer and copy it")
        self._check(target, view.nbytes, 1, "update")
        return self._add(UpdateRecord(target, bytes(view)), (target,), ((target, view.nbytes, 1),))

    def copy(self, source: Binding, target: Binding, size: int | None = None) -> int:
        """Record a copy of `size` bytes (all of `source`, which then is no open slot) to the start of `target`.

        The two ranges must not overlap; for slots that is found out by `execute`.
        """
        self._check_recording()
        if size is None:
            size = source.size
        if size < 0:
            raise UsageError("a copy from a slot of open size needs `size`, zero or more bytes")
        self._check(source, size, 1, "copy")
        self._check(target, size, 1, "copy")
        pair = place_of(source), place_of(target)
        if pair[0] == pair[1]:
            check_apart(source.offset, target.offset, size, "copy")
        elif isinstance(source, Slot) or isinstance(target, Slot):
            self._slot_copies.setdefault(pair, SlotCopies()).add(len(self.records), source.offset, target.offset, size)
        return self._add(CopyRecord(source, target, size), (source, target), ((source, size, 1), (target, size, 1)))

    def signal_event(self, event: Event) -> int:
        """Record that the event is set, once everything before is done."""
        return self._event(event, EventAction.SIGNAL)

    def reset_event(self, event: Event) -> int:
        """Record that the event is cleared, once everything before is done."""
        return self._event(event, EventAction.RESET)

    def wait_event(self, event: Event) -> int:
        """Record a wait: what follows runs once the event is set. Meanwhile the queue stands still; other queues go on."""
        return self._event(event, EventAction.WAIT)

    def barrier(self) -> int:
        """Record that what follows comes after everything before. Records run in order anyway; this says that it matters."""
        self._check_recording()
        return self._add(BarrierRecord())

    def push_label(self, text: str) -> int:
        """Name what follows, for traces and errors, until `pop_label`. Labels nest."""
        self._check_recording()
        if not 0 < text_bytes(text) <= MAX_LABEL:
            raise UsageError(f"a label has 1 to {MAX_LABEL} bytes of UTF-8")
        self._labels += 1
        return self._add(LabelRecord(text))

    def pop_label(self) -> int:
        """End the innermost label."""
        self._check_recording()
        if not self._labels:
            raise UsageError("no label is open; push_label() first", code=Status.FAILED_PRECONDITION)
        self._labels -= 1
        return self._add(LabelRecord(""))

    def seal(self) -> CommandBuffer:
        """End the recording and give it to the driver. Safe to repeat."""
        self._check_open()
        if not self._sealed:
            if self._labels:
                raise UsageError(f"{self._labels} labels are still open: pop_label() them", code=Status.FAILED_PRECONDITION)
            self.device._check_open()
            self.device._prepare(self)
            self._sealed = True
        return self

    def close(self) -> None:
        """Forget it, once every execution submitted so far is done. Safe to repeat."""
        if not self._closed:
            self._closed = True
            if self._sealed:
                self.device._discard(self)
            self.prepared = None
            self.records = []
            self._owners = {}

    def __enter__(self) -> CommandBuffer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Seal it; a recording that an error cut short is closed."""
        if kind is None:
            self.seal()
        else:
            self.close()

    # -- for Queue.execute ----------------------------------------------------------------------------------------------------

    def check_execute(
        self, table: Sequence[Buffer | BufferView], patches: Mapping[int, Patch]
    ) -> tuple[dict[int, Launch], Sequence[Use]]:
        """Check a table and patches; the patched records by number, and how the execution would use virtual memory.

        Raises UsageError; then nothing was submitted. A patched record's bindings are not resolved: those that the patch leaves
        alone may be slots.
        """
        self._check_open()
        if not self._sealed:
            raise UsageError("seal() the command buffer first", code=Status.FAILED_PRECONDITION)
        self._check_owners()
        virtual = self._check_table(table) or self._virtual
        for pair, copies in self._slot_copies.items():
            self._check_copies(pair, copies, table)
        patched = {number: self._patched(number, patch, table) for number, patch in patches.items()} if patches else {}
        if patched and not virtual:
            virtual = any(resolve(place, table).buffer._guarded for record in patched.values() for place in record.bindings)
        return patched, uses_of_records(self.records, table, patched) if virtual else ()

    def take(self) -> None:
        """Use it up, when it is for one execution. Raises UsageError when it was executed before; `give_back` undoes it."""
        if self.one_shot:
            with self._use:
                if self._used:
                    raise UsageError(
                        "a one-shot command buffer was executed before: record a new one, or record it without one_shot",
                        code=Status.FAILED_PRECONDITION,
                    )
                self._used = True

    def give_back(self) -> None:
        """The queue refused the execution."""
        self._used = False

    def _check_owners(self) -> None:
        for owner, number in self._owners.values():
            if owner.closed:
                what = "buffer" if isinstance(owner, Buffer) else "executable"
                raise ClosedError(f"record {number} names {owner!r}, which was closed: record anew with an open {what}")

    def _check_table(self, table: Sequence[Buffer | BufferView]) -> bool:
        """Check a table; whether virtual memory is in it."""
        virtual = False
        if len(table) != self.slots:
            raise UsageError(f"the binding table has {len(table)} entries, the command buffer {self.slots} slots")
        for entry in table:
            self._own(entry)
            virtual = virtual or entry.buffer._guarded
        for index, (size, alignment) in self._needs.items():
            entry = table[index]
            if entry.size < size:
                raise UsageError(f"slot {index} needs {size} bytes, got {entry.size}", code=Status.OUT_OF_RANGE)
            if entry.offset % alignment:
                raise UsageError(f"slot {index} must start at a multiple of {alignment} bytes, not {entry.offset}")
        for slot, step in self._open_fills:
            size = table[slot.index].size - slot.offset
            if size % step:
                raise UsageError(f"slot {slot.index}: a fill of {size} bytes is no whole number of {step}-byte patterns")
        return virtual

    def _check_copies(
        self, pair: tuple[int | Buffer, int | Buffer], copies: SlotCopies, table: Sequence[Buffer | BufferView]
    ) -> None:
        """Copies between two places that may turn out to be in the same buffer."""
        source, target = (table[place] if isinstance(place, int) else place for place in pair)
        distance = target.offset - source.offset
        if source.buffer is not target.buffer or not copies.low < distance < copies.high:
            return
        for number in copies.numbers:
            record = self.records[number]
            assert isinstance(record, CopyRecord)
            check_apart(record.source.offset, record.target.offset + distance, record.size, f"record {number}, a copy")

    def _patched(self, number: int, patch: Patch, table: Sequence[Buffer | BufferView]) -> Launch:
        record = self.records[number] if 0 <= number < len(self.records) else None
        if not isinstance(record, DispatchRecord | IndirectRecord):
            raise UsageError(f"record {number} is no dispatch; dispatch() returned the numbers that can be patched")
        kernel = record.kernel
        if patch.grid is not None:
            if isinstance(record, IndirectRecord):
                raise UsageError(f"record {number}: the grid of {kernel.name} is what its buffer holds; write it there")
            kernel.check_grid(patch.grid)
        packed = record.constants if patch.constants is None else kernel.pack(patch.constants)
        bindings = list(record.bindings)
        for index, patched in patch.bindings.items():
            if not 0 <= index < len(bindings):
                raise UsageError(f"record {number}: {kernel.name} has no binding {index}, only {len(bindings)}")
            if isinstance(patched, Slot):
                self._check_slot(patched, 0, 1, f"record {number}: binding {index}")
            bindings[index] = patched
        for index, binding in enumerate(bindings):
            kernel.check_binding(index, resolve(binding, table), *kernel.binding_need(index, packed))
        if isinstance(record, IndirectRecord):
            return record._replace(bindings=tuple(bindings), constants=packed)
        return DispatchRecord(kernel, patch.grid or record.grid, tuple(bindings), packed)

    # -- inside ---------------------------------------------------------------------------------------------------------------

    def _event(self, event: Event, action: EventAction) -> int:
        self._check_recording()
        if event.device is not self.device:
            raise UsageError("the event belongs to another device; use one of this device.event()")
        return self._add(EventRecord(event, action))

    def _add_launch(self, record: Launch, places: Sequence[Binding], needs: Sequence[tuple[Binding, int, int]]) -> int:
        executable = record.kernel.executable
        self._owners.setdefault(id(executable), (executable, len(self.records)))
        return self._add(record, places, needs)

    def _add(self, record: Record, bindings: Sequence[Binding] = (), needs: Sequence[tuple[Binding, int, int]] = ()) -> int:
        """Take a record in, all of which was checked: from here on nothing raises."""
        number = len(self.records)
        for binding in bindings:
            if not isinstance(binding, Slot):
                self._owners.setdefault(id(binding.buffer), (binding.buffer, number))
                self._virtual = self._virtual or binding.buffer._guarded
        for slot, size, alignment in needs:
            if isinstance(slot, Slot):
                most, strictest = self._needs.get(slot.index, (0, 1))
                self._needs[slot.index] = max(most, slot.offset + max(size, slot.size)), max(strictest, alignment)
        self.records.append(record)
        return number

    def _check(self, target: Binding, size: int, alignment: int, what: str) -> None:
        """Check a plain target that must hold `size` bytes."""
        if isinstance(target, Slot):
            self._check_slot(target, size, alignment, what)
            return
        self._own(target)
        if target.size < size:
            raise UsageError(f"{what}: {size} bytes do not fit into {target.size}", code=Status.OUT_OF_RANGE)
        if target.offset % alignment:
            raise UsageError(f"{what}: it must start at a multiple of {alignment} bytes, not {target.offset}")

    def _check_slot(self, slot: Slot, size: int, alignment: int, what: str) -> None:
        """Check what can be known of a slot without the table."""
        if not 0 <= slot.index < self.slots:
            raise UsageError(f"{what}: there is no slot {slot.index}; the command buffer has {self.slots}")
        if slot.offset < 0 or slot.size < -1:
            raise UsageError(f"{what}: a slot's offset and size are not negative (size -1: to the end)", code=Status.OUT_OF_RANGE)
        if 0 <= slot.size < size:
            raise UsageError(f"{what}: needs {size} bytes, the slot gives {slot.size}", code=Status.OUT_OF_RANGE)
        if slot.offset % alignment:
            raise UsageError(f"{what}: must start at a multiple of {alignment} bytes, not {slot.offset}")

    def _own(self, binding: Buffer | BufferView) -> None:
        owner = binding.buffer
        if owner.device is not self.device:
            raise UsageError("the buffer belongs to another device; copy it through host memory")
        if owner._closed:
            owner._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self!r} was closed; record a new one")

    def _check_recording(self) -> None:
        self._check_open()
        if self._sealed:
            raise UsageError("the command buffer is sealed: record a new one", code=Status.FAILED_PRECONDITION)


def check_apart(source: int, target: int, size: int, what: str) -> None:
    """Raise UsageError when `size` bytes from two offsets in one buffer share a byte."""
    if abs(source - target) < size:
        raise UsageError(f"{what}: source and target overlap; copy through another buffer")


def place_of(binding: Binding) -> int | Buffer:
    """The slot's number, or the buffer."""
    return binding.index if isinstance(binding, Slot) else binding.buffer


def text_bytes(text: str) -> int:
    """The bytes of a text in UTF-8. Raises UsageError for one that has none, which holds half of a surrogate pair."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise UsageError(f"{text!r} is no text that can be written in UTF-8") from None
