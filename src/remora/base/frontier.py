"""Frontiers: vector clocks over axes (requirement H12).

A frontier is a tuple of (axis, epoch) pairs in strictly ascending axis order, epochs from 1; the empty tuple waits for nothing.
The tracker knows how far each axis came, or why it will come no further. Both are values and tables: no lock, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TypeAlias

from remora.errors import Error, UsageError

__all__ = ["MAX_FRONTIER", "Frontier", "FrontierTracker", "Order", "check_frontier", "compare", "merge"]

Frontier: TypeAlias = tuple[tuple[int, int], ...]

#: The most entries a frontier may have, the same on both sides of a session.
MAX_FRONTIER = 16


class Order(Enum):
    """How two frontiers stand to each other."""

    EQUAL = "equal"
    BEFORE = "before"
    AFTER = "after"
    CONCURRENT = "concurrent"


def merge(*frontiers: Iterable[tuple[int, int]]) -> Frontier:
    """The least frontier that is at or after all of the given ones."""
    top: dict[int, int] = {}
    for frontier in frontiers:
        for axis, epoch in frontier:
            if epoch > top.get(axis, 0):
                top[axis] = epoch
    return tuple(sorted(top.items()))


def compare(left: Frontier, right: Frontier) -> Order:
    """EQUAL, BEFORE, AFTER or CONCURRENT."""
    ours, theirs = dict(left), dict(right)
    below = any(ours.get(axis, 0) < epoch for axis, epoch in right)
    above = any(theirs.get(axis, 0) < epoch for axis, epoch in left)
    if below and above:
        return Order.CONCURRENT
    return Order.BEFORE if below else Order.AFTER if above else Order.EQUAL


def check_frontier(frontier: Frontier) -> None:
    """Raise UsageError unless the entries are few enough, strictly ascending by axis, and their epochs at least 1."""
    if len(frontier) > MAX_FRONTIER:
        raise UsageError(f"a frontier may have {MAX_FRONTIER} entries, this one has {len(frontier)}")
    last = -1
    for axis, epoch in frontier:
        if axis <= last:
            raise UsageError("frontier entries must be strictly ascending by axis")
        if epoch < 1:
            raise UsageError(f"frontier epoch {epoch} on axis {axis:#x}: epochs start at 1")
        last = axis


class FrontierTracker:
    """How far each known axis has come. Progress is monotonic, failure is sticky and the first one wins."""

    def __init__(self, axes: Iterable[int] = ()) -> None:
        self._reached: dict[int, int] = dict.fromkeys(axes, 0)
        self._failed: dict[int, Error] = {}

    @property
    def axes(self) -> tuple[int, ...]:
        """The known axes, ascending."""
        return tuple(sorted(self._reached))

    def add(self, axis: int) -> None:
        """Make an axis known, at epoch 0. Raises UsageError when it is known already."""
        if axis in self._reached:
            raise UsageError(f"axis {axis:#x} is known already")
        self._reached[axis] = 0

    def reached(self, axis: int) -> int:
        """The epoch the axis has come to. Raises UsageError for an axis that the session did not advertise."""
        try:
            return self._reached[axis]
        except KeyError:
            raise UsageError(f"axis {axis:#x} is not one of this session's") from None

    def failure(self, axis: int) -> Error | None:
        """Why the axis will come no further, or None."""
        return self._failed.get(axis)

    def advance(self, axis: int, epoch: int) -> bool:
        """Move an axis forward; False when it was there already or has failed (an older ADVANCE is no error)."""
        if epoch <= self.reached(axis) or axis in self._failed:
            return False
        self._reached[axis] = epoch
        return True

    def fail(self, axis: int, error: Error) -> bool:
        """End an axis; False when it had failed before (its first cause stays)."""
        self.reached(axis)
        if axis in self._failed:
            return False
        self._failed[axis] = error
        return True

    def satisfied(self, frontier: Frontier) -> bool:
        """Whether every entry has been reached. Raises the failure of an axis that cannot reach its entry any more."""
        done = True
        for axis, epoch in frontier:
            if self.reached(axis) < epoch:
                failure = self._failed.get(axis)
                if failure is not None:
                    raise failure.copy()
                done = False
        return done
