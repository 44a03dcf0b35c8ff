"""What a command buffer holds: records, the places they name, and what `execute` may change in them (requirements H18, H21)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from remora.hal.buffer import Access, Buffer, BufferView, check_range
from remora.hal.executable import Constants, Grid, Kernel
from remora.hal.indirect import GRID_BYTES
from remora.hal.page_table import Use, uses_of

if TYPE_CHECKING:
    from remora.errors import Error
    from remora.hal.event import Event

__all__ = [
    "BarrierRecord",
    "Binding",
    "CopyRecord",
    "DispatchRecord",
    "EventAction",
    "EventRecord",
    "FillRecord",
    "IndirectRecord",
    "LabelRecord",
    "Launch",
    "Patch",
    "Record",
    "Slot",
    "UpdateRecord",
    "count_dispatches",
    "label_path",
    "name_record",
    "resolve",
    "uses_of_records",
]


@dataclass(frozen=True, slots=True)
class Slot:
    """Bytes `offset` to `offset + size` of whatever the binding table has at `index` (to its end when size is -1).

    Example: `commands.fill(remora.Slot(0, 16), b"x"); queue.execute(commands.seal(), [buffer])` leaves the first 16 bytes alone.
    """

    index: int
    offset: int = 0
    size: int = -1


Binding: TypeAlias = "Buffer | BufferView | Slot"


class DispatchRecord(NamedTuple):
    """Run a kernel. `constants` are packed."""

    kernel: Kernel
    grid: Grid
    bindings: tuple[Binding, ...]
    constants: bytes


class IndirectRecord(NamedTuple):
    """Run a kernel over the grid that is at `grid` when the records before have run. `constants` are packed."""

    kernel: Kernel
    grid: Binding
    bindings: tuple[Binding, ...]
    constants: bytes


Launch: TypeAlias = DispatchRecord | IndirectRecord


class FillRecord(NamedTuple):
    """Repeat a pattern of 1, 2 or 4 bytes."""

    target: Binding
    pattern: bytes


class UpdateRecord(NamedTuple):
    """Copy bytes that the recording carries."""

    target: Binding
    data: bytes


class CopyRecord(NamedTuple):
    """Copy `size` bytes."""

    source: Binding
    target: Binding
    size: int


class EventAction(IntEnum):
    """What a recording does with an event."""

    SIGNAL = 0
    RESET = 1
    WAIT = 2


class EventRecord(NamedTuple):
    """Set, clear or wait for an event."""

    event: Event
    action: EventAction


class BarrierRecord(NamedTuple):
    """Nothing: a point that everything before it precedes."""


class LabelRecord(NamedTuple):
    """A name for what follows, for traces; empty text ends the last one."""

    text: str


Record: TypeAlias = Launch | FillRecord | UpdateRecord | CopyRecord | EventRecord | BarrierRecord | LabelRecord


@dataclass(frozen=True, slots=True)
class Patch:
    """What `execute` changes in one recorded dispatch: its grid, its constants, some of its bindings by position.

    The grid of an indirect dispatch is what its buffer holds, so it has none to change.

    Example: `number = commands.dispatch(...)`, later `queue.execute(commands, patches={number: remora.Patch(constants=(n,))})`.
    """

    grid: Grid | None = None
    constants: Constants | None = None
    bindings: Mapping[int, Binding] = field(default_factory=dict)


def resolve(binding: Binding, table: Sequence[Buffer | BufferView]) -> Buffer | BufferView:
    """What a binding means under a table. Raises UsageError (OUT_OF_RANGE) when the entry is too small for the slot."""
    if not isinstance(binding, Slot):
        return binding
    entry = table[binding.index]
    if binding.offset == 0 and binding.size in (-1, entry.size):
        return entry
    offset, size = check_range(binding.offset, None if binding.size < 0 else binding.size, entry.size)
    return BufferView(entry.buffer, entry.offset + offset, size)


def uses_of_records(records: Sequence[Record], table: Sequence[Buffer | BufferView], patched: Mapping[int, Launch]) -> list[Use]:
    """How the records use virtual memory under a table, each place once."""
    found: dict[tuple[int, int, int], Use] = {}
    for number, record in enumerate(records):
        touched = ((resolve(place, table), size, access) for place, size, access in touches(patched.get(number, record)))
        for use in uses_of((binding, binding.size if size < 0 else size, access) for binding, size, access in touched):
            key = id(use.pages), use.offset, use.size
            known = found.get(key, use)
            found[key] = known._replace(access=known.access | use.access)
    return list(found.values())


def touches(record: Record) -> list[tuple[Binding, int, Access]]:
    """The places that a record names, how many bytes of each it touches (-1: all), and how."""
    match record:
        case DispatchRecord(kernel, _, bindings, _):
            return [(place, -1, rule.access) for place, rule in zip(bindings, kernel.info.bindings, strict=True)]
        case IndirectRecord(kernel, grid, bindings, constants):
            return [(grid, GRID_BYTES, Access.READ), *touches(DispatchRecord(kernel, (0, 0, 0), bindings, constants))]
        case FillRecord(target, _):
            return [(target, -1, Access.WRITE)]
        case UpdateRecord(target, data):
            return [(target, len(data), Access.WRITE)]
        case CopyRecord(source, target, size):
            return [(source, size, Access.READ), (target, size, Access.WRITE)]
    return []


def count_dispatches(records: Sequence[Record]) -> int:
    """How many kernels the records launch."""
    return sum(type(record) is DispatchRecord or type(record) is IndirectRecord for record in records)


def label_path(records: Sequence[Record], number: int) -> str:
    """The labels that are open at a record, outermost first, joined by slashes."""
    path: list[str] = []
    for record in records[:number]:
        if isinstance(record, LabelRecord):
            if record.text:
                path.append(record.text)
            else:
                path.pop()
    return "/".join(path)


def name_record(error: Error, records: Sequence[Record], number: int) -> Error:
    """The error of a record that failed, which from now on says where that is in the recording."""
    path = label_path(records, number)
    error.message = f"record {number}{f' ({path})' if path else ''}: {error.message}"
    return error
