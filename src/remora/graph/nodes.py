"""Nodes as they are recorded: what each does, on which lane, and what it touches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from remora.graph.lane import HOST, LaneName
from remora.graph.placement import Kind
from remora.graph.slot import GraphSlot, SlotKey
from remora.graph.uses import READ, WRITE, Use
from remora.graph.view import View
from remora.hal.buffer import BufferView
from remora.hal.command_buffer import CommandBuffer, Slot

if TYPE_CHECKING:
    from collections.abc import Callable

    from remora.graph.contract import KernelContract
    from remora.graph.storage import Storage
    from remora.hal.executable import Grid, Kernel

__all__ = ["CallNode", "CopyNode", "FillNode", "KernelNode", "Node", "Operation", "Place", "TransferNode", "lane_of", "use_of"]

Place: TypeAlias = "View | GraphSlot"


@dataclass(frozen=True, slots=True)
class Node:
    """A node's number and what it does. For people: there are no explicit edges."""

    index: int
    name: str


class Operation(Protocol):
    """What a node does. `places`: what it touches, and how. `alone`: it is a region of its own."""

    name: str
    lane: int
    alone: bool
    places: tuple[tuple[Place, int], ...]

    def record(self, commands: CommandBuffer, engine: int) -> None:
        """Put it into a recording of this engine."""

    @property
    def moved(self) -> tuple[int, int, int]:
        """Bytes that it moves up, on the device, and down."""


class _Operation:
    __slots__ = ("lane", "name", "places")
    alone = False
    moved = (0, 0, 0)

    def __init__(self, name: str, lane: int, places: tuple[tuple[Place, int], ...]) -> None:
        self.name = name
        self.lane = lane
        self.places = places

    def record(self, commands: CommandBuffer, engine: int) -> None:
        raise AssertionError("it is not recorded")


class FillNode(_Operation):
    """Repeat a pattern."""

    __slots__ = ("pattern", "target")

    def __init__(self, target: Place, pattern: bytes, lane: int) -> None:
        super().__init__("fill", lane, ((target, WRITE),))
        self.target = target
        self.pattern = pattern

    def record(self, commands: CommandBuffer, engine: int) -> None:
        commands.fill(_bound(self.target, engine), self.pattern)


class CopyNode(_Operation):
    """Copy between memory of one engine."""

    __slots__ = ("source", "target")

    def __init__(self, source: Place, target: Place, lane: int) -> None:
        super().__init__("copy", lane, ((source, READ), (target, WRITE)))
        self.source = source
        self.target = target

    def record(self, commands: CommandBuffer, engine: int) -> None:
        commands.copy(_bound(self.source, engine), _bound(self.target, engine), self.source.size)

    @property
    def moved(self) -> tuple[int, int, int]:  # type: ignore[override]
        size = self.source.size
        up, down = self.lane == LaneName.UPLOAD, self.lane == LaneName.DOWNLOAD
        return (size if up else 0, 0 if up or down else size, size if down else 0)


class KernelNode(_Operation):
    """Run a kernel."""

    __slots__ = ("constants", "grid", "kernel", "views")

    def __init__(
        self, kernel: Kernel, grid: Grid, views: tuple[Place, ...], constants: bytes, contract: KernelContract, lane: int
    ) -> None:
        places = tuple((view, int(each.access)) for view, each in zip(views, contract.bindings, strict=True))
        super().__init__(kernel.name, lane, places)
        self.kernel = kernel
        self.grid = grid
        self.views = views
        self.constants = constants

    def record(self, commands: CommandBuffer, engine: int) -> None:
        commands.dispatch(self.kernel, self.grid, [_bound(view, engine) for view in self.views], self.constants)


class TransferNode(_Operation):
    """Move host memory of this process up or down."""

    __slots__ = ("data", "upload", "view")
    alone = True

    def __init__(self, view: View, data: memoryview, *, upload: bool) -> None:
        lane = LaneName.UPLOAD if upload else LaneName.DOWNLOAD
        super().__init__("upload" if upload else "download", lane, ((view, WRITE if upload else READ),))
        self.view = view
        self.data = data
        self.upload = upload

    @property
    def moved(self) -> tuple[int, int, int]:  # type: ignore[override]
        return (self.data.nbytes, 0, 0) if self.upload else (0, 0, self.data.nbytes)


class CallNode(_Operation):
    """Call a function of the host, which may use these bytes."""

    __slots__ = ("call",)
    alone = True

    def __init__(self, call: Callable[[], object], name: str, places: tuple[tuple[Place, int], ...]) -> None:
        super().__init__(name, HOST, places)
        self.call = call


def _bound(place: Place, engine: int) -> BufferView | Slot:
    if isinstance(place, GraphSlot):
        return Slot(place.key.index, place.offset, place.size)
    return place.on(engine)


def use_of(place: Place, access: int) -> Use:
    """The bytes for the frontier. What two engines share is used as a whole, because it is staged as a whole."""
    if isinstance(place, GraphSlot):
        return Use(place.key, place.offset, place.offset + place.size, access)
    storage = place.storage
    if storage.placement.kind is Kind.SHARED:
        return Use(storage.key, 0, storage.size, access)
    return Use(storage.key, place.offset, place.offset + place.size, access)


def lane_of(engine: int) -> int:
    """The lane of an engine's kernels."""
    return LaneName.COMPUTE if engine == 0 else HOST + engine


def storages_of(operations: tuple[Operation, ...]) -> dict[Storage, int]:
    """Every allocation that they name, and how."""
    found: dict[Storage, int] = {}
    for operation in operations:
        for place, access in operation.places:
            if isinstance(place, View):
                found[place.storage] = found.get(place.storage, 0) | access
    return found


def slots_of(operations: tuple[Operation, ...]) -> tuple[tuple[SlotKey, int, int, int], ...]:
    """Every use of a slot: (key, start, stop, access)."""
    return tuple(
        (place.key, place.offset, place.offset + place.size, access)
        for operation in operations
        for place, access in operation.places
        if isinstance(place, GraphSlot)
    )
