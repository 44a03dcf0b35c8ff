"""G05: dependencies inferred from bytes equal those of a pairwise comparison, in time and memory that do not grow with history."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.graph.frontier import HazardFrontier
from remora.graph.plan import Step, make_plan
from remora.graph.uses import READ, READ_WRITE, WRITE, Use, conflict, summarize

NODES, SEEDS = 64, 1000


def touching(left, right):
    """The definition of a hazard between two nodes: a byte that both use and one writes."""
    return any(
        a.allocation == b.allocation and a.start < b.stop and b.start < a.stop and (a.access | b.access) & WRITE
        for a in left
        for b in right
        if a.start < a.stop and b.start < b.stop
    )


def history(seed):
    """Nodes with up to three uses of two small allocations; some uses are empty, some overlap within a node."""
    dice = random.Random(seed)
    size = dice.choice((8, 30, 200))
    nodes = []
    for _ in range(NODES):
        uses = []
        for _ in range(dice.randrange(1, 4)):
            start = dice.randrange(size)
            uses.append(
                Use(dice.choice("ab"), start, start + dice.randrange(size // 3 + 1), dice.choice((READ, WRITE, READ_WRITE)))
            )
        nodes.append(tuple(uses))
    return nodes


def ancestors(direct):
    """For each node, as bits, all that it comes after."""
    reached = []
    for after in direct:
        bits = 0
        for other in after:
            bits |= 1 << other | reached[other]
        reached.append(bits)
    return reached


@pytest.mark.parametrize("block", range(10))
def test_g05_random_histories_equal_the_pairwise_oracle(block):
    """64 nodes x 1,000 seeds. Every inferred edge is a hazard, and every hazard is an edge or follows from edges."""
    for seed in range(block * SEEDS // 10, (block + 1) * SEEDS // 10):
        nodes, frontier = history(seed), HazardFrontier()
        direct = [tuple(frontier.add(number, 0, uses)) for number, uses in enumerate(nodes)]
        reached = ancestors(direct)
        for number, uses in enumerate(nodes):
            hazards = [other for other in range(number) if touching(nodes[other], uses)]
            assert set(direct[number]) <= set(hazards), (seed, number)
            assert all(reached[number] >> other & 1 for other in hazards), (seed, number)


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_g06_by_lanes_every_hazard_is_ordered(lanes):
    """Waiting for the greatest number on each lane, and running a lane in order, orders every hazard."""
    for seed in range(60):
        nodes, frontier, dice = history(seed), HazardFrontier(), random.Random(seed)
        places, direct, newest = [], [], {}
        for number, uses in enumerate(nodes):
            lane = dice.randrange(lanes)
            place = (lane, number)
            needs = frontier.add(lane, number, uses)
            places.append(place)
            direct.append({*needs.values(), *newest.get(lane, ())})
            newest[lane] = (number,)
        reached = ancestors(direct)
        for number, uses in enumerate(nodes):
            assert all(reached[number] >> other & 1 for other in range(number) if touching(nodes[other], uses)), (seed, number)


def test_g05_2048_rewrites_are_a_chain():
    frontier = HazardFrontier()
    direct = [frontier.add(number, 0, [Use("a", 0, 100, WRITE)]) for number in range(2048)]
    assert direct[0] == {}
    assert [set(after) for after in direct[1:]] == [{number} for number in range(2047)]
    assert len(frontier) == 1


def test_r14_what_is_kept_does_not_grow_with_history():
    frontier, dice = HazardFrontier(), random.Random(3)
    for number in range(20_000):
        start = dice.randrange(64)
        frontier.add(dice.randrange(3), number, [Use("a", start, start + 8, dice.choice((READ, WRITE)))])
    assert len(frontier) <= 72


def test_one_node_may_read_and_write_the_same_bytes():
    frontier = HazardFrontier()
    assert frontier.add(0, 0, [Use("a", 0, 4, READ), Use("a", 2, 6, WRITE), Use("a", 0, 8, READ_WRITE)]) == {}
    assert frontier.add(1, 0, [Use("a", 7, 8, READ)]) == {0: 0}


def test_only_overlap_makes_a_hazard():
    frontier = HazardFrontier()
    frontier.add(0, 0, [Use("a", 0, 4, WRITE)])
    assert frontier.add(1, 0, [Use("a", 4, 8, WRITE), Use("b", 0, 4, WRITE), Use("a", 2, 2, WRITE)]) == {}
    assert frontier.add(2, 0, [Use("a", 3, 5, READ)]) == {0: 0, 1: 0}


def test_readers_wait_for_nobody_but_the_writer_and_a_writer_for_all():
    frontier = HazardFrontier()
    frontier.add(0, 0, [Use("a", 0, 4, WRITE)])
    for reader in range(1, 5):
        assert frontier.add(reader, 0, [Use("a", 0, 4, READ)]) == {0: 0}
    assert frontier.add(5, 0, [Use("a", 1, 2, WRITE)]) == dict.fromkeys(range(5), 0)
    assert frontier.add(6, 0, [Use("a", 0, 4, WRITE)]) == dict.fromkeys(range(6), 0)


def test_of_a_lane_the_greatest_number_counts():
    frontier = HazardFrontier()
    for number in (3, 4, 9):
        frontier.add(0, number, [Use("a", number, number + 1, WRITE)])
    assert frontier.add(1, 1, [Use("a", 0, 20, READ)]) == {0: 9}


def test_a_forgotten_allocation_is_as_new():
    frontier = HazardFrontier()
    frontier.add(0, 0, [Use("a", 0, 4, WRITE)])
    frontier.forget("a")
    frontier.forget("a")
    assert frontier.add(1, 0, [Use("a", 0, 4, WRITE)]) == {}


uses = st.builds(
    lambda allocation, start, size, access: Use(allocation, start, start + size, access),
    st.sampled_from("ab"),
    st.integers(0, 12),
    st.integers(0, 6),
    st.integers(1, 3),
)


def bytes_of(uses):
    """{(allocation, byte): access}, the meaning of a list of uses."""
    found = {}
    for allocation, start, stop, access in uses:
        for place in range(start, stop):
            found[allocation, place] = found.get((allocation, place), 0) | access
    return found


@given(st.lists(uses, max_size=12))
def test_a_summary_means_the_same_and_is_sorted_disjoint_and_short(those):
    summary = summarize(those)
    assert bytes_of(summary) == bytes_of(those)
    for left, right in pairwise(summary):
        if left.allocation == right.allocation:
            assert left.stop <= right.start
            assert left.stop < right.start or left.access != right.access
    assert summarize(summary) == summary


@given(st.lists(uses, max_size=8), st.lists(uses, max_size=8))
def test_two_summaries_conflict_where_a_byte_is_shared_and_written(left, right):
    first, second = bytes_of(left), bytes_of(right)
    expected = any((first[place] | second[place]) & WRITE for place in first.keys() & second.keys())
    assert conflict(summarize(left), summarize(right)) is expected


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(uses, max_size=3).map(tuple), st.booleans()), min_size=1, max_size=20))
def test_a_plan_orders_every_hazard_and_ends_when_its_last_regions_do(drawn):
    steps = [Step(*each) for each in drawn]
    plan = make_plan(steps)
    assert [number for region in plan.regions for number in range(region.first, region.stop)] == list(range(len(steps)))
    for region in plan.regions:
        inside = steps[region.first : region.stop]
        assert {step.lane for step in inside} == {region.lane}
        assert len(inside) == 1 or not any(step.alone for step in inside)
        assert bytes_of(region.uses) == bytes_of(use for step in inside for use in step.uses)
    newest, direct = {}, []
    for number, region in enumerate(plan.regions):
        direct.append({*region.after, *newest.get(region.lane, ())})
        newest[region.lane] = (number,)
    reached = ancestors(direct)
    for number, region in enumerate(plan.regions):
        assert all(reached[number] >> other & 1 for other in range(number) if touching(plan.regions[other].uses, region.uses))
    ends = 0
    for number in plan.last:
        ends |= 1 << number | reached[number]
    assert ends == (1 << len(plan.regions)) - 1


def test_neighbours_on_a_lane_are_one_region():
    def step(lane, alone=False):
        return Step(lane, (Use("a", 0, 4, READ),), alone)

    plan = make_plan([step(0), step(0), step(1), step(0), step(0, alone=True), step(0), step(0)])
    assert [(region.first, region.stop) for region in plan.regions] == [(0, 2), (2, 3), (3, 4), (4, 5), (5, 7)]
    assert plan.last == (1, 4)
