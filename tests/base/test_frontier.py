"""Frontiers (H12): merge and compare are a lattice; the tracker agrees with a small oracle."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from remora.base.frontier import MAX_FRONTIER, FrontierTracker, Order, check_frontier, compare, merge
from remora.errors import DeviceError, Error, UsageError

axes = st.integers(0, 5)
frontiers = st.dictionaries(axes, st.integers(1, 4)).map(lambda entries: tuple(sorted(entries.items())))
MIRROR = {Order.EQUAL: Order.EQUAL, Order.BEFORE: Order.AFTER, Order.AFTER: Order.BEFORE, Order.CONCURRENT: Order.CONCURRENT}


def at_most(left, right):
    """The definition: no entry of left is above right."""
    return all(epoch <= dict(right).get(axis, 0) for axis, epoch in left)


@given(frontiers, frontiers)
def test_h12_compare_is_the_definition(left, right):
    by_definition = {
        (True, True): Order.EQUAL,
        (True, False): Order.BEFORE,
        (False, True): Order.AFTER,
        (False, False): Order.CONCURRENT,
    }
    order = compare(left, right)
    assert order is by_definition[at_most(left, right), at_most(right, left)]
    assert compare(right, left) is MIRROR[order]


@given(frontiers, frontiers, frontiers)
def test_h12_merge_is_the_least_upper_bound(left, right, other):
    top = merge(left, right)
    check_frontier(top)
    assert at_most(left, top)
    assert at_most(right, top)
    if at_most(left, other) and at_most(right, other):
        assert at_most(top, other)


@given(frontiers, frontiers, frontiers)
def test_h12_merge_is_commutative_associative_idempotent(a, b, c):
    assert merge(a, b) == merge(b, a)
    assert merge(merge(a, b), c) == merge(a, merge(b, c)) == merge(a, b, c)
    assert merge(a, a) == merge(a) == a
    assert merge() == ()


@pytest.mark.parametrize(
    ("left", "right", "order"),
    [
        ((), (), Order.EQUAL),
        (((1, 2),), ((1, 2),), Order.EQUAL),
        (((1, 2),), ((1, 3),), Order.BEFORE),
        ((), ((1, 1),), Order.BEFORE),
        (((1, 2), (2, 1)), ((1, 2),), Order.AFTER),
        (((1, 2),), ((2, 1),), Order.CONCURRENT),
        (((1, 2), (2, 3)), ((1, 3), (2, 2)), Order.CONCURRENT),
    ],
)
def test_h12_how_two_frontiers_stand_to_each_other(left, right, order):
    assert compare(left, right) is order
    assert compare(right, left) is MIRROR[order]


def test_h12_a_failed_axis_fails_only_what_it_can_no_longer_reach():
    tracker = FrontierTracker([1])
    tracker.add(2)
    with pytest.raises(UsageError, match="known already"):
        tracker.add(2)
    assert tracker.axes == (1, 2)
    assert tracker.advance(1, 5)
    assert tracker.fail(1, DeviceError("gone"))
    assert not tracker.fail(1, DeviceError("late"))
    assert not tracker.advance(1, 6)
    assert tracker.satisfied(((1, 5),))
    assert not tracker.satisfied(((1, 5), (2, 1)))
    with pytest.raises(DeviceError, match="gone"):
        tracker.satisfied(((1, 6), (2, 1)))
    assert tracker.advance(2, 1)
    assert tracker.satisfied(((1, 5), (2, 1)))


def test_h12_merge_drops_epoch_zero_which_waits_for_nothing():
    assert merge([(3, 0), (1, 2)], [(1, 1)]) == ((1, 2),)


@pytest.mark.parametrize(
    ("frontier", "message"),
    [
        (((2, 1), (1, 1)), "ascending"),
        (((1, 1), (1, 2)), "ascending"),
        (((1, 0),), "epochs start at 1"),
        (tuple((axis, 1) for axis in range(MAX_FRONTIER + 1)), "17"),
    ],
)
def test_h12_bad_frontiers_are_refused(frontier, message):
    with pytest.raises(UsageError, match=message):
        check_frontier(frontier)


def test_h12_the_largest_frontier_is_accepted_and_no_larger_one():
    largest = tuple((axis, 1) for axis in range(MAX_FRONTIER))
    check_frontier(())
    check_frontier(largest)
    with pytest.raises(UsageError, match="17"):
        check_frontier((*largest, (MAX_FRONTIER, 1)))


class TrackerMachine(RuleBasedStateMachine):
    """Every axis of the oracle is a list of the epochs it was told, ending at its first failure."""

    def __init__(self):
        super().__init__()
        self.tracker = FrontierTracker([0])
        self.told = {0: [0]}
        self.causes = {}

    @rule(axis=axes)
    def add(self, axis):
        if axis in self.told:
            with pytest.raises(UsageError, match="known already"):
                self.tracker.add(axis)
        else:
            self.tracker.add(axis)
            self.told[axis] = [0]

    @rule(axis=axes, epoch=st.integers(0, 6))
    def advance(self, axis, epoch):
        if axis not in self.told:
            with pytest.raises(UsageError, match="not one of"):
                self.tracker.advance(axis, epoch)
            return
        moves = axis not in self.causes and epoch > max(self.told[axis])
        assert self.tracker.advance(axis, epoch) is moves
        if axis not in self.causes:
            self.told[axis].append(epoch)

    @rule(axis=axes)
    def fail(self, axis):
        error = DeviceError(f"cause {len(self.causes)}")
        if axis not in self.told:
            with pytest.raises(UsageError, match="not one of"):
                self.tracker.fail(axis, error)
            return
        assert self.tracker.fail(axis, error) is (axis not in self.causes)
        self.causes.setdefault(axis, error)

    @rule(frontier=frontiers)
    def satisfied(self, frontier):
        unknown = [axis for axis, _ in frontier if axis not in self.told]
        owed = [axis for axis, epoch in frontier if axis in self.told and max(self.told[axis]) < epoch]
        lost = [self.causes[axis] for axis in owed if axis in self.causes]
        if not unknown and not lost:
            assert self.tracker.satisfied(frontier) is (not owed)
            return
        with pytest.raises(Error) as caught:
            self.tracker.satisfied(frontier)
        assert type(caught.value) is UsageError or str(caught.value) in {str(cause) for cause in lost}
        if not unknown:
            assert str(caught.value) == str(lost[0])

    @invariant()
    def agrees(self):
        assert self.tracker.axes == tuple(sorted(self.told))
        for axis, told in self.told.items():
            assert self.tracker.reached(axis) == max(told)
            assert self.tracker.failure(axis) is self.causes.get(axis)


TestTracker = TrackerMachine.TestCase
TestTracker.settings = settings(max_examples=50, stateful_step_count=30)
