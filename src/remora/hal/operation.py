"""What a profile says of one operation (requirement H24)."""

from __future__ import annotations

from enum import IntEnum
from time import monotonic_ns
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from remora.hal.executable import Grid

__all__ = ["Clock", "Draft", "OperationKind", "OperationRecord", "Stamp"]


class OperationKind(IntEnum):
    """What an operation does. Example: `[record for record in records if record.kind is remora.OperationKind.DISPATCH]`."""

    OTHER = 0
    BARRIER = 1
    DISPATCH = 2
    FILL = 3
    UPDATE = 4
    READ = 5
    COPY = 6
    EXECUTE = 7
    HOST_CALL = 8
    READ_FILE = 9
    WRITE_FILE = 10
    ALLOCATE = 11
    DEALLOCATE = 12
    LABEL = 13
    """The part of an EXECUTE between `push_label` and `pop_label`; its record comes before the one of the EXECUTE."""


class OperationRecord(NamedTuple):
    """One operation that ran. Times are nanoseconds of this process's `time.monotonic_ns`.

    Example: `sum(record.end_ns - record.start_ns for record in records if record.name == "add_i32")`. The times of a remote device
    are moved to this clock; `Profile.clock` says how exactly. `submit_ns` is when the program submitted it.
    """

    kind: OperationKind
    name: str
    """The kernel of a DISPATCH, the text of a LABEL."""
    label: str
    """Of the command buffer for an EXECUTE; all open labels, joined by slashes, for a LABEL."""
    queue: int
    """The queue's ordinal."""
    value: int
    """Its place on the queue's timeline: the value of the timepoint that submitting it returned."""
    submit_ns: int
    start_ns: int
    end_ns: int
    bytes: int = 0
    """That it moved or filled."""
    grid: Grid = (0, 0, 0)
    dispatches: int = 0
    """How many kernels it launched."""
    failed: bool = False

    @property
    def title(self) -> str:
        """For people: the kernel, the label, or what kind it is."""
        return self.name or self.label or self.kind.name.lower()


class Clock(NamedTuple):
    """How the times in a profile's records were made: device clock minus this process's, and how far off that may be (ns)."""

    offset_ns: int = 0
    error_ns: int = 0


class Stamp:
    """Under which value, and as what, operations are recorded that a server submits for its client.

    A transfer of the client may take several operations here. Only the last of them makes a record: it is no BARRIER and no READ.
    """

    __slots__ = ("bytes", "kind", "start_ns", "submit_ns", "value")

    def __init__(self, value: int, kind: OperationKind | None = None, size: int = 0) -> None:
        self.value = value
        self.kind = kind
        self.bytes = size
        self.submit_ns = monotonic_ns()
        self.start_ns = 0


class Draft:
    """What is known of an operation when it is submitted."""

    __slots__ = ("bytes", "dispatches", "grid", "kind", "label", "name", "ran_ns", "stamp", "submit_ns")

    def __init__(
        self,
        kind: OperationKind,
        name: str = "",
        label: str = "",
        size: int = 0,
        grid: Grid = (0, 0, 0),
        dispatches: int = 0,
    ) -> None:
        self.kind = kind
        self.name = name
        self.label = label
        self.bytes = size
        self.grid = grid
        self.dispatches = dispatches
        self.stamp: Stamp | None = None
        self.ran_ns: tuple[int, int] | None = None  # (start, end) of what this process runs itself for a remote queue
        self.submit_ns = monotonic_ns()

    def what(self) -> tuple[OperationKind, str, str, Grid, int, int]:
        """(kind, name, label, grid, dispatches, bytes)."""
        return self.kind, self.name, self.label, self.grid, self.dispatches, self.bytes
