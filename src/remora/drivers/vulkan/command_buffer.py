"""Recordings: each record becomes a command of the device, or work of the host where the device has no such command.

Vulkan fills and updates whole words only, so what begins or ends within a word is done by the host, between two submissions. So is
a kernel that reports errors: nothing behind it may run when it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from remora.drivers.vulkan.buffer import memory_of
from remora.drivers.vulkan.commands import Command, Copy, Fill, Launch, Update
from remora.hal.buffer import Buffer, BufferView
from remora.hal.host_queue import INLINE_NS, Step
from remora.hal.records import CopyRecord, DispatchRecord, FillRecord, UpdateRecord, resolve

if TYPE_CHECKING:
    from remora.drivers.vulkan.queue import VulkanQueue

__all__ = ["groups_of", "reports", "step_of"]

#: Bytes of one update that a command buffer is made to carry; more goes through the host.
MOST_CARRIED = 1 << 20
WORD = 4
#: Commands in one submission.
MOST_TOGETHER = 1024


def step_of(
    queue: VulkanQueue, record: DispatchRecord | FillRecord | UpdateRecord | CopyRecord, table: Sequence[Buffer | BufferView]
) -> Step:
    """A record made ready. It holds the memory and the code that it uses."""
    if isinstance(record, DispatchRecord):
        bindings = [resolve(binding, table) for binding in record.bindings]
        return Step(queue._run, (queue.launch(record.kernel, record.grid, bindings, record.constants),), INLINE_NS)
    target = resolve(record.target, table)
    memory, offset = memory_of(target), target.offset
    if isinstance(record, CopyRecord):
        source = resolve(record.source, table)
        return Step(queue._run, (Copy(memory_of(source), source.offset, memory, offset, record.size),), INLINE_NS)
    if isinstance(record, FillRecord):
        if offset % WORD or target.size % WORD:
            return Step(queue._mover.fill, (memory, offset, target.size, record.pattern), INLINE_NS)
        word = record.pattern * (WORD // len(record.pattern))
        return Step(queue._run, (Fill(memory, offset, target.size, word),), INLINE_NS)
    if offset % WORD or len(record.data) % WORD or len(record.data) > MOST_CARRIED:
        return Step(queue._mover.write, (memory, offset, memoryview(record.data)), INLINE_NS)
    return Step(queue._run, (Update(memory, offset, record.data),), INLINE_NS)


def groups_of(steps: dict[int, Step], run: Callable[[Command], None]) -> Iterator[dict[int, Step]]:
    """The steps in their order, those together that may be one submission."""
    group: dict[int, Step] = {}
    for number, step in steps.items():
        joins = step.work == run and not reports(step.args)
        if group and (not joins or len(group) == MOST_TOGETHER):
            yield group
            group = {}
        if joins:
            group[number] = step
        else:
            yield {number: step}
    if group:
        yield group


def reports(args: tuple[Any, ...]) -> bool:
    """Whether it is a kernel that may report an error."""
    return isinstance(args[0], Launch) and args[0].program.report is not None
