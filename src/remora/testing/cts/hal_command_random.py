"""HAL conformance: random recordings, tables and patches against bytearrays (H18)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.errors import UsageError
from remora.hal.records import Patch, Slot
from remora.testing.cts.compare import same
from remora.testing.cts.hal_factory import LONG, HalFactory, words
from remora.testing.cts.hal_random import UNCHECKED

if TYPE_CHECKING:
    from collections.abc import Callable

    from remora.hal.buffer import Buffer
    from remora.hal.command_buffer import CommandBuffer
    from remora.hal.device import Device
    from remora.hal.executable import Executable

__all__ = ["TestRandomRecordings"]

#: Bytes of each buffer, and of each view of one that a table may have.
SIZE, ENTRY = 256, 96
BUFFERS, SLOTS = 3, 3
Memory: TypeAlias = "list[bytearray]"
"""BUFFERS buffers, and one that holds a grid."""
Table: TypeAlias = "list[tuple[int, int]]"
"""Buffer and first byte of each entry."""
Patched: TypeAlias = "dict[int, tuple[int, int]]"
"""Constants of dispatches by record number."""


@dataclass
class Place:
    """A range of a buffer, or of a slot: `number` is below BUFFERS for the one, from BUFFERS on for the other."""

    number: int
    offset: int
    size: int

    def binding(self, buffers: list[Buffer]) -> Any:
        """As it is recorded."""
        if self.number < BUFFERS:
            return buffers[self.number].view(self.offset, self.size)
        return Slot(self.number - BUFFERS, self.offset, self.size)

    def range(self, table: Table) -> tuple[int, int]:
        """(buffer, first byte) under a table of such pairs."""
        if self.number < BUFFERS:
            return self.number, self.offset
        buffer, start = table[self.number - BUFFERS]
        return buffer, start + self.offset


@dataclass
class Model:
    """A recording beside what its records do to bytearrays."""

    commands: CommandBuffer
    kernels: Executable
    executes: bool
    steps: list[Callable[[Memory, Table, Patched], bool]] = field(default_factory=list)
    dispatches: list[tuple[int, int]] = field(default_factory=list)
    """Number and most words of each recorded dispatch."""

    def fill(self, buffers: list[Buffer], target: Place, other: Place, seed: int) -> None:
        """Record a fill, of a whole number of patterns."""
        width = (1, 2, 4)[seed % 3]
        place = Place(target.number, target.offset // width * width, target.size // width * width)
        pattern = bytes((seed + index) & 0xFF for index in range(width))
        self.commands.fill(place.binding(buffers), pattern)
        self._writes(place, pattern * (place.size // width))

    def update(self, buffers: list[Buffer], target: Place, other: Place, seed: int) -> None:
        """Record an update, of the whole place or its first half."""
        data = bytes((seed * 7 + index) & 0xFF for index in range(target.size // (1 + seed % 2)))
        self.commands.update(target.binding(buffers), data)
        self._writes(target, data)

    def copy(self, buffers: list[Buffer], target: Place, other: Place, seed: int) -> None:
        """Record a copy. What overlaps for sure is refused now, what the table decides when it is executed."""
        size = min(target.size, other.size)
        if other.number == target.number and size and abs(target.offset - other.offset) < size:
            with pytest.raises(UsageError, match="overlap"):
                self.commands.copy(other.binding(buffers), target.binding(buffers), size)
            return
        self.commands.copy(other.binding(buffers), target.binding(buffers), size)

        def run(memory: Memory, table: Table, _patches: Patched) -> bool:
            (source, first), (to, start) = other.range(table), target.range(table)
            memory[to][start : start + size] = memory[source][first : first + size]
            return not (source == to and size and abs(first - start) < size)

        self.steps.append(run)

    def dispatch(self, buffers: list[Buffer], target: Place, other: Place, seed: int) -> None:
        """Record `fill_index` on as many words as there is room for."""
        place = Place(target.number, target.offset // 4 * 4, target.size)
        count, first = place.size // 4, seed
        number = self.commands.dispatch(self.kernels["fill_index"], (1, 1, 1), [place.binding(buffers)], (count, first))
        self.dispatches.append((number, count))

        def run(memory: Memory, table: Table, patches: Patched) -> bool:
            to, start = place.range(table)
            length, value = patches.get(number, (count, first))
            if self.executes:
                memory[to][start : start + 4 * length] = words(*range(value, value + length))
            return True

        self.steps.append(run)

    def indirect(self, buffers: list[Buffer], target: Place, other: Place, seed: int) -> None:
        """Record `fill_index` over a grid that is in the last buffer, of one workgroup or of none, and is written before or not."""
        place = Place(target.number, target.offset // 4 * 4, target.size)
        count, grid = place.size // 4, buffers[BUFFERS]
        written = words(seed % 3, 1, 1) if seed % 3 < 2 else b""
        self.commands.update(grid, written)
        number = self.commands.dispatch_indirect(self.kernels["fill_index"], grid, [place.binding(buffers)], (count, seed))
        self.dispatches.append((number, count))

        def run(memory: Memory, table: Table, patches: Patched) -> bool:
            to, start = place.range(table)
            length, value = patches.get(number, (count, seed))
            memory[BUFFERS][: len(written)] = written
            if self.executes and memory[BUFFERS][0]:
                memory[to][start : start + 4 * length] = words(*range(value, value + length))
            return True

        self.steps.append(run)

    def label(self, buffers: list[Buffer], target: Place, other: Place, seed: int) -> None:
        """Record a label around nothing."""
        self.commands.push_label(str(seed))
        self.commands.pop_label()

    def _writes(self, place: Place, data: bytes) -> None:
        def run(memory: Memory, table: Table, _patches: Patched) -> bool:
            to, start = place.range(table)
            memory[to][start : start + len(data)] = data
            return True

        self.steps.append(run)


PLACES = st.builds(
    lambda number, offset, size: Place(number, offset % ENTRY, min(size, ENTRY - offset % ENTRY)),
    st.integers(0, BUFFERS + SLOTS - 1),
    st.integers(0, ENTRY - 1),
    st.integers(0, ENTRY),
)
RECORDS = st.lists(
    st.tuples(st.sampled_from(("fill", "update", "copy", "dispatch", "indirect", "label")), PLACES, PLACES, st.integers(0, 1000)),
    max_size=25,
)
#: For each execution: the queue, where each slot's view begins, and a number for each dispatch that is patched.
EXECUTIONS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.lists(st.tuples(st.integers(0, BUFFERS - 1), st.integers(0, (SIZE - ENTRY) // 4)), min_size=SLOTS, max_size=SLOTS),
        st.dictionaries(st.integers(0, 24), st.integers(0, 1000), max_size=4),
    ),
    min_size=1,
    max_size=4,
)


class TestRandomRecordings:
    """H18: whatever is recorded and however it is executed, buffers hold what bytearrays would."""

    @settings(max_examples=60, deadline=None, suppress_health_check=UNCHECKED, database=None)
    @given(records=RECORDS, executions=EXECUTIONS, one_shot=st.booleans())
    def test_h18_buffers_hold_what_bytearrays_would(
        self, factory: HalFactory, device: Device, records: list[Any], executions: list[Any], one_shot: bool
    ) -> None:
        executions = executions[:1] if one_shot else executions
        memory = [*(bytearray(SIZE) for _ in range(BUFFERS)), bytearray(12)]
        buffers = list(map(device.upload, memory))
        kernels = device.load(factory.vector)
        with device.command_buffer(SLOTS, one_shot=one_shot) as commands:
            model = Model(commands, kernels, factory.executes)
            for kind, target, other, seed in records:
                getattr(model, kind)(buffers, target, other, seed)
        last = device.queue.barrier()
        for queue, starts, chosen in executions:
            table = [(buffer, 4 * start) for buffer, start in starts]
            views = [buffers[buffer].view(start, ENTRY) for buffer, start in table]
            patches = {
                number: (seed % (most + 1), seed) for at, (number, most) in enumerate(model.dispatches) if (seed := chosen.get(at))
            }
            wanted = {number: Patch(constants=constants) for number, constants in patches.items()}
            after = [bytearray(each) for each in memory]
            on = device.queues[queue % len(device.queues)]
            if all(step(after, table, patches) for step in model.steps):
                last = on.execute(commands, views, wanted, wait=last)
                memory = after
            else:
                with pytest.raises(UsageError, match="overlap"):
                    on.execute(commands, views, wanted, wait=last)
        last.wait(LONG)
        for buffer, expected in zip(buffers, memory, strict=True):
            assert same(buffer.read(timeout=LONG), expected)
            buffer.close()
        commands.close()
