"""From a description to what is submitted: regions, recordings, and what they touch (requirement G05)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remora.graph.executable import ExecutableGraph, Shape
from remora.graph.nodes import CallNode, Operation, TransferNode, slots_of, storages_of, use_of
from remora.graph.placement import Kind
from remora.graph.plan import Plan, Region, Step, make_plan
from remora.graph.region import Call, Launchable, Recording, Transfer
from remora.graph.slot import SlotKey
from remora.graph.uses import Use, summarize
from remora.graph.view import View

if TYPE_CHECKING:
    from remora.graph.contract import KernelContract
    from remora.graph.nodes import Place
    from remora.graph.runtime import Runtime

__all__ = ["prepare"]


def prepare(
    runtime: Runtime,
    name: str,
    operations: tuple[Operation, ...],
    slots: tuple[SlotKey, ...],
    contracts: tuple[tuple[str, KernelContract, tuple[Place, ...]], ...],
) -> ExecutableGraph:
    """Plan, record every region on its device, and count it. What fails leaves nothing."""
    steps = [
        Step(operation.lane, tuple(use_of(place, access) for place, access in operation.places), operation.alone)
        for operation in operations
    ]
    plan = make_plan(steps)
    regions: list[Launchable] = []
    try:
        for number, region in enumerate(plan.regions):
            those = operations[region.first : region.stop]
            regions.append(_make(runtime, region, those, len(slots), f"{name} region {number}"))
    except BaseException:
        for made in regions:
            made.close()
        raise
    shape = Shape(name, operations, plan, slots, tuple(each for each in contracts if any(not isinstance(p, View) for p in each[2])))
    with runtime.scheduler.lock:
        runtime.scheduler.counters.graphs_prepared += 1
    return ExecutableGraph(
        runtime.scheduler, runtime.options.graph_slots, shape, tuple(regions), _summary(plan), _moved(operations)
    )


def _make(runtime: Runtime, region: Region, operations: tuple[Operation, ...], slots: int, label: str) -> Launchable:
    """What a region does when its turn comes."""
    fixed = tuple(use for use in region.uses if not isinstance(use.allocation, SlotKey))
    touched = storages_of(operations)
    shared = tuple((storage, access) for storage, access in touched.items() if storage.placement.kind is Kind.SHARED)
    first = operations[0]
    if isinstance(first, CallNode):
        return Call(region.lane, fixed, shared, first.call)
    if isinstance(first, TransferNode):
        return Transfer(region.lane, fixed, shared, first.view.on(0), first.data, upload=first.upload)
    engine = runtime.scheduler.lanes[region.lane].engine
    commands = runtime.device(engine).command_buffer(slots, label=label)
    with commands:
        for operation in operations:
            operation.record(commands, engine)
    open_places = tuple((key.index, start, stop, access) for key, start, stop, access in slots_of(operations))
    return Recording(region.lane, fixed, shared, commands, open_places)


def _summary(plan: Plan) -> tuple[Use, ...]:
    return summarize(use for region in plan.regions for use in region.uses if not isinstance(use.allocation, SlotKey))


def _moved(operations: tuple[Operation, ...]) -> tuple[int, int, int]:
    up, on, down = (sum(each) for each in zip(*(operation.moved for operation in operations), strict=True))
    return up, on, down
