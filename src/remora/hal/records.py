"""What a command buffer holds: records, the places they name, and what `execute` may change in them (requirements H18, H21)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from remora.hal.buffer import Buffer, BufferView, check_range
from remora.hal.executable import Constants, Grid, Kernel

if TYPE_CHECKING:
    from remora.errors import Error
    from remora.hal.event import Event

__all__ = [
    "Binding",
    "CopyRecord",
    "DispatchRecord",
    "EventAction",
    "EventRecord",
    "FillRecord",
    "LabelRecord",
    "Patch",
    "Record",
    "Slot",
    "UpdateRecord",
    "label_path",
    "name_record",
    "resolve",
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


class LabelRecord(NamedTuple):
    """A name for what follows, for traces; empty text ends the last one."""

    text: str


Record: TypeAlias = DispatchRecord | FillRecord | UpdateRecord | CopyRecord | EventRecord | LabelRecord


@dataclass(frozen=True, slots=True)
class Patch:
    """What `execute` changes in one recorded dispatch: its grid, its constants, some of its bindings by position.

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
