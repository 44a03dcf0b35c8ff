"""A prepared graph: submitted any number of times, in a bounded number of slots (requirements G05, G07, G12)."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from remora.errors import BusyError, ClosedError, DeviceLostError, Status, UsageError
from remora.graph.completion import Completion
from remora.graph.contract import check_bindings
from remora.graph.nodes import storages_of
from remora.graph.slot import GraphSlot, SlotKey
from remora.graph.submission import Outcome, Submission
from remora.graph.uses import WRITE, Use
from remora.graph.view import View

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from remora.errors import Error
    from remora.graph.contract import KernelContract
    from remora.graph.nodes import Operation, Place
    from remora.graph.plan import Plan
    from remora.graph.region import Launchable
    from remora.graph.scheduler import Scheduler
    from remora.graph.storage import Storage
    from remora.hal.buffer import BufferView

__all__ = ["ExecutableGraph", "Shape"]


class Shape(NamedTuple):
    """What was described: for binding, drawing and messages. `contracts`: kernels with slots among their bindings."""

    name: str
    operations: tuple[Operation, ...]
    plan: Plan
    slots: tuple[SlotKey, ...]
    contracts: tuple[tuple[str, KernelContract, tuple[Place, ...]], ...]


class _Taken:
    """A slot's submission, and who looks at it."""

    __slots__ = ("observer", "submission")

    def __init__(self, submission: Submission, observer: weakref.ref[Completion]) -> None:
        self.submission = submission
        self.observer = observer

    @property
    def free(self) -> bool:
        """Over, and nobody looks at it any more."""
        observer = self.observer()
        return self.submission.outcome is not Outcome.PENDING and (observer is None or observer.closed)


class ExecutableGraph:
    """Made by `graph.prepare()`. It holds its buffers and recordings until `close()`, or until nobody has it. Any thread may call.

    Example: `replay = graph.prepare(); replay.submit().wait(timeout=5)`.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        capacity: int,
        shape: Shape,
        regions: tuple[Launchable, ...],
        summary: tuple[Use, ...],
        moved: tuple[int, int, int],
    ) -> None:
        self.shape = shape
        self.summary = summary
        self.quarantined: Error | None = None
        """Why it is submitted no more: a device failed while it ran it."""
        self._scheduler = scheduler
        self._regions = regions
        self._moved = moved
        self._slots: list[_Taken | None] = [None] * capacity
        self._touches = {storage: bool(access & WRITE) for storage, access in storages_of(shape.operations).items()}
        self._lanes = tuple({region.lane for region in regions})
        self._closed = False

    def __repr__(self) -> str:
        return f"<ExecutableGraph {self.shape.name}: {len(self.shape.operations)} nodes, {len(self._regions)} regions>"

    @property
    def regions(self) -> tuple[str, ...]:
        """What is submitted as one, in order, for people: `lane: nodes`."""
        return tuple(
            f"{self._scheduler.lanes[region.lane].name}: "
            + " ".join(operation.name for operation in self.shape.operations[region.first : region.stop])
            for region in self.shape.plan.regions
        )

    def submit(self, bindings: Mapping[GraphSlot, View] | None = None) -> Completion:
        """Run it once, after all earlier work on the same bytes that it conflicts with. Never waits for the device.

        Raises BusyError when a guard holds one of its buffers, when `max_submissions` are pending, or when each of its slots is
        in flight or still looked at; DeviceLostError when what it needs has failed; UsageError for bindings that do not fit.
        """
        return self.submit_after((), bindings)

    def submit_after(self, producers: Sequence[Completion], bindings: Mapping[GraphSlot, View] | None = None) -> Completion:
        """As `submit`, and after these completions. When one of them fails or is cancelled this fails, having done nothing.

        Raises UsageError for a completion of another runtime.
        """
        scheduler = self._scheduler
        for producer in producers:
            if producer._scheduler is not scheduler:
                raise UsageError("a producer belongs to another runtime: wait for it, then submit")
        with scheduler.lock:
            self._check()
            table, keys, touches = self._bind(bindings or {})
            scheduler.admit(touches, self._lanes)
            index = self._free_slot()
            submission = Submission(self, touches, table, [producer._submission for producer in producers])
            submission.copied = self._moved
            completion = Completion(scheduler, submission)
            self._slots[index] = _Taken(submission, weakref.ref(completion))
            scheduler.accept(submission, self._regions, self.shape.plan.last, keys)
        return completion

    def show(self, path: str | Path | None = None) -> str:
        """The graph as SVG: lanes, regions, nodes and inferred edges. With `path` it is written there as well."""
        from remora.graph.drawing import draw

        picture = draw(self.shape, [lane.name for lane in self._scheduler.lanes])
        if path is not None:
            from pathlib import Path

            Path(path).write_text(picture)
        return picture

    def close(self) -> None:
        """Let go of the recordings; what is in flight goes on. Safe to repeat."""
        self._closed = True
        for region in self._regions:
            region.close()

    def __enter__(self) -> ExecutableGraph:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _check(self) -> None:
        if self._closed:
            raise ClosedError(f"{self!r} was closed; prepare it again")
        if self.quarantined is not None:
            raise DeviceLostError(
                f"{self!r} is quarantined, because it failed on a device: {self.quarantined.message}",
                origin=self.quarantined.origin,
            )

    def _free_slot(self) -> int:
        for poll in (False, True):
            if poll:
                self._scheduler.look(poll=True)
            for index, taken in enumerate(self._slots):
                if taken is None or taken.free:
                    return index
        raise BusyError(
            f"all {len(self._slots)} slots of {self!r} are in flight, or their completions are still held (graph_slots): "
            "wait for one and drop it"
        )

    def _bind(self, bindings: Mapping[GraphSlot, View]) -> tuple[Sequence[BufferView], Sequence[Use], dict[Storage, bool]]:
        """The binding table, the bytes of each entry, and everything that is touched."""
        slots = self.shape.slots
        if not slots and not bindings:
            return (), (), self._touches
        views: dict[SlotKey, View] = {}
        for slot, view in bindings.items():
            if slot.offset or slot.size != slot.key.size or slots[slot.key.index : slot.key.index + 1] != (slot.key,):
                raise UsageError(f"{slot!r} is no whole slot of this graph")
            if view.storage.scheduler is not self._scheduler:
                raise UsageError("the view belongs to another runtime; use buffers of this one")
            if view.size < slot.size:
                raise UsageError(f"{slot!r} got {view.size} bytes", code=Status.OUT_OF_RANGE)
            views[slot.key] = view
        missing = [key.index for key in slots if key not in views]
        if missing:
            raise UsageError(f"submit(bindings=...) must name every slot; {missing} are missing")
        for name, contract, places in self.shape.contracts:
            check_bindings(name, contract, [_resolved(place, views) for place in places])
        touches = dict(self._touches)
        for operation in self.shape.operations:
            for place, access in operation.places:
                if isinstance(place, GraphSlot):
                    storage = views[place.key].storage
                    touches[storage] = touches.get(storage, False) or bool(access & WRITE)
        chosen = [views[key] for key in slots]
        keys = [Use(view.key, view.offset, view.offset + view.size, 0) for view in chosen]
        return [view.on(0) for view in chosen], keys, touches


def _resolved(place: Place, views: Mapping[SlotKey, View]) -> View:
    return views[place.key].view(place.offset, place.size) if isinstance(place, GraphSlot) else place
