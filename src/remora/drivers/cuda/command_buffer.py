"""Recordings as CUDA graphs: one call launches all of a sealed recording.

What differs from execution to execution in dispatches (slots, patches) is set in their nodes before the launch (`graph.py`). A
recording with events, with grids that the GPU computes, or with fills, updates and copies of slots or virtual memory (pages change)
is walked, record by record, like one that is executed once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from remora.drivers.cuda.graph import Graph
from remora.drivers.cuda.places import Launching, Place, launching, place
from remora.drivers.cuda.stream import Stream
from remora.hal.host_queue import Step
from remora.hal.late import NotMadeError
from remora.hal.records import (
    CopyRecord,
    DispatchRecord,
    EventRecord,
    FillRecord,
    IndirectRecord,
    Slot,
    UpdateRecord,
    resolve,
    touches,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remora.drivers.cuda.device import CudaDevice
    from remora.hal.buffer import Buffer, BufferView
    from remora.hal.command_buffer import CommandBuffer
    from remora.hal.records import Binding, Launch, Record

__all__ = ["Changes", "Recording", "copy", "fill", "launch", "step_of", "write"]

#: How long a thread takes to begin a recorded dispatch, in nanoseconds.
NS_PER_LAUNCH = 3_000


#: What a stream does by one call.
Playable: TypeAlias = DispatchRecord | FillRecord | UpdateRecord | CopyRecord


class Changes(NamedTuple):
    """What one execution decides. It keeps memory and code alive."""

    slots: list[Place]
    """Where what the table has for each of the recording's slots lies."""
    patches: dict[int, Launching]
    """By the number of the record."""


class Recording:
    """What the driver keeps of a sealed command buffer. Any thread may execute it."""

    def __init__(self, device: CudaDevice, commands: CommandBuffer) -> None:
        self._device = device
        self._walked = commands.one_shot or not all(map(has_node, commands.records))
        self._records = {number: record for number, record in enumerate(commands.records) if isinstance(record, Playable)}
        self._slots = tuple(dict.fromkeys(slot for record in self._records.values() for slot in slots_of(record)))
        self._works = {} if self._walked else {number: work_of(record, kept) for number, record in self._records.items()}
        self._lock = threading.Lock()
        self._graph: Graph | None = None
        self._dispatches = sum(isinstance(record, DispatchRecord) for record in self._records.values())
        if self._records and not self._walked and not self._slots:
            with suppress(NotMadeError):  # memory that comes late: at the turn of the first execution
                self._graph = self._capture([], patchable=False)

    def changes(self, table: Sequence[Buffer | BufferView], patched: Mapping[int, Launch]) -> Changes | None:
        """What an execution sets in the graph; None when the recording must be walked."""
        if self._walked:
            return None
        patches: dict[int, Launching] = {}
        for number, record in patched.items():
            recorded = self._records[number]
            if not (isinstance(record, DispatchRecord) and isinstance(recorded, DispatchRecord)):
                return None
            if not (all(recorded.grid) and all(record.grid)):  # a launch of nothing is no node
                return None
            patches[number] = launching(record, [place(resolve(binding, table)) for binding in record.bindings])
        return Changes([place(resolve(slot, table)) for slot in self._slots], patches)

    def launch(self, stream: Stream, changes: Changes) -> None:
        """Run it in a stream. The memory that it names is there by now."""
        if not self._records:
            return
        patchable = bool(self._slots or changes.patches)
        with self._lock:
            if self._graph is None or (patchable and not self._graph.patchable):
                self._graph = self._capture(changes.slots, patchable=patchable)
            self._graph.launch(stream, [slot.address for slot in changes.slots], changes.patches)
        stream.dispatches += self._dispatches

    def _capture(self, slots: Sequence[Place], *, patchable: bool) -> Graph:
        """With the memory of this execution in the slots."""
        self._device.context.enter()
        there = dict(zip(self._slots, slots, strict=True))
        stream = Stream()
        try:
            steps = {number: captured_step(stream, work, there) for number, work in self._works.items()}
            return Graph(self._device, stream, steps, self._taken() if patchable else None, [slot.address for slot in slots])
        finally:
            stream.destroy()

    def _taken(self) -> dict[int, list[int]]:
        """For each dispatch, which slot each of its bindings is; -1 for none."""
        numbers: dict[Binding, int] = {slot: number for number, slot in enumerate(self._slots)}
        return {
            number: [numbers[binding] if isinstance(binding, Slot) else -1 for binding in record.bindings]
            for number, record in self._records.items()
            if isinstance(record, DispatchRecord)
        }


def slots_of(record: Record) -> list[Slot]:
    """What a binding table decides of it."""
    return [binding for binding, _, _ in touches(record) if isinstance(binding, Slot)]


def has_node(record: Record) -> bool:
    """Whether a graph can hold it: a dispatch always, a transfer whose place is known and stays the same memory."""
    if isinstance(record, DispatchRecord):
        return True
    if isinstance(record, EventRecord | IndirectRecord):
        return False
    return not any(isinstance(binding, Slot) or binding.buffer._guarded for binding, _, _ in touches(record))


class Work(NamedTuple):
    """What a record does to a stream: `call(stream, *args)`. It keeps memory and code alive."""

    call: Callable[..., None]
    args: tuple[Any, ...]


def work_of(record: Playable, place_of: Callable[[Binding], Any]) -> Work:
    """One record's, by where its bindings are."""
    if isinstance(record, DispatchRecord):
        return Work(launch, (launching(record, [place_of(binding) for binding in record.bindings]),))
    target = place_of(record.target)
    if isinstance(record, FillRecord):
        return Work(fill, (target, record.pattern))
    if isinstance(record, UpdateRecord):
        return Work(write, (target, memoryview(record.data)))
    return Work(copy, (place_of(record.source), target, record.size))


def kept(binding: Binding) -> Place | Slot:
    """Where a binding lies, from now on and whether or not its buffer is closed; a slot stands for itself."""
    return binding if isinstance(binding, Slot) else place(binding)


def step_of(stream: Stream, record: Playable, table: Sequence[Buffer | BufferView]) -> Step:
    """One record made ready for a stream, under a binding table."""
    return ready(stream, work_of(record, lambda binding: place(resolve(binding, table))))


def captured_step(stream: Stream, work: Work, there: Mapping[Slot, Place]) -> Step:
    """As `step_of`, by where the slots of dispatches are; nothing else has any."""
    if work.call is not launch:
        return ready(stream, work)
    (wanted,) = work.args
    bindings = [there[binding] if isinstance(binding, Slot) else binding for binding in wanted.bindings]
    return ready(stream, Work(launch, (wanted._replace(bindings=bindings),)))


def ready(stream: Stream, work: Work) -> Step:
    """The work as a step of a stream."""
    return Step(work.call, (stream, *work.args), NS_PER_LAUNCH if work.call is launch else 0)


def launch(stream: Stream, wanted: Launching) -> None:
    """Run a kernel whose bindings have their addresses by now."""
    stream.launch(wanted.program, wanted.grid, wanted.constants, wanted.addresses())


def fill(stream: Stream, target: Place, pattern: bytes) -> None:
    """Repeat a pattern over a range."""
    stream.fill(target.address, target.size, pattern)


def write(stream: Stream, target: Place, data: memoryview) -> None:
    """Copy host bytes to the start of a range."""
    stream.write(target.address, data, data.nbytes)


def copy(stream: Stream, source: Place, target: Place, size: int) -> None:
    """Copy between two ranges."""
    stream.copy(source.address, target.address, size)
