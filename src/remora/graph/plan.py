"""From nodes in the order of their recording to regions: what is submitted as one, on which lane, after what. Pure.

A region is the longest run of neighbours on one lane. A node that is `alone` (a callback, a transfer from host memory, a copy
between devices) is a region of its own. Lanes change who runs what, never what has to come before what.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from remora.graph.frontier import HazardFrontier
from remora.graph.uses import Use, summarize

__all__ = ["Plan", "Region", "Step", "make_plan"]


class Step(NamedTuple):
    """What the plan has to know of a node."""

    lane: int
    uses: tuple[Use, ...]
    alone: bool = False


class Region(NamedTuple):
    """Nodes `first` to `stop`, one submission. `after`: the regions it depends on. `uses` are summarized."""

    lane: int
    first: int
    stop: int
    after: tuple[int, ...]
    uses: tuple[Use, ...]


class Plan(NamedTuple):
    """`regions` in recording order. `last`: those that nothing waits for; when they are done all is. `edges`: node after node."""

    regions: tuple[Region, ...]
    last: tuple[int, ...]
    edges: tuple[tuple[int, ...], ...]


def make_plan(steps: Sequence[Step]) -> Plan:
    """Form regions and infer dependencies, in time linear in the number of nodes and of different ranges."""
    nodes, frontier = HazardFrontier(), HazardFrontier()
    edges = tuple(tuple(sorted(nodes.add(number, 0, step.uses))) for number, step in enumerate(steps))
    regions: list[Region] = []
    newest: dict[int, int] = {}
    waited: set[int] = set()
    for first, stop in _runs(steps):
        lane, number = steps[first].lane, len(regions)
        uses = summarize(use for step in steps[first:stop] for use in step.uses)
        after = set(frontier.add(number, 0, uses))
        if lane in newest:  # a lane runs its regions in order
            waited.add(newest[lane])
        newest[lane] = number
        waited |= after
        regions.append(Region(lane, first, stop, tuple(sorted(after)), uses))
    return Plan(tuple(regions), tuple(number for number in range(len(regions)) if number not in waited), edges)


def _runs(steps: Sequence[Step]) -> list[tuple[int, int]]:
    """(first, stop) of each region."""
    starts = [
        number
        for number, step in enumerate(steps)
        if not number or step.alone or steps[number - 1].alone or step.lane != steps[number - 1].lane
    ]
    return list(zip(starts, [*starts[1:], len(steps)], strict=True))
