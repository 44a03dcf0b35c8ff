"""Epochs: given out on one side, counted on the other, and the window between them (requirement H12).

The submitting side takes an epoch only when the window admits the command, so a refusal leaves no hole. The completing side may
finish commands in any order; what it reports is the contiguous prefix, and exactly one failing ADVANCE ends an axis.
"""

from __future__ import annotations

from collections.abc import Iterable

from remora.base.frontier import FrontierTracker
from remora.errors import BusyError, Error, PeerError, UsageError

__all__ = ["CompletionWindow", "SubmissionWindow"]


class SubmissionWindow:
    """The submitting side: next epochs, and how many commands are unanswered over all axes."""

    __slots__ = ("_next", "in_flight", "limit", "submissions", "tracker")

    def __init__(self, axes: Iterable[int], limit: int) -> None:
        self.tracker = FrontierTracker(axes)
        self._next = dict.fromkeys(self.tracker.axes, 1)
        self.limit = limit
        self.in_flight = 0
        self.submissions = 0

    def take(self, axis: int) -> int:
        """The next epoch on an axis. Raises BusyError when the window is full and the axis's failure if it has ended."""
        if self.in_flight >= self.limit:
            raise BusyError(f"{self.limit} commands are in flight; wait for one of them")
        failed = self.tracker.failure(axis)
        if failed is not None:
            raise failed.copy()
        try:
            epoch = self._next[axis]
        except KeyError:
            raise UsageError(f"axis {axis:#x} is not one of this session's") from None
        self._next[axis] = epoch + 1
        self.in_flight += 1
        self.submissions += 1
        return epoch

    def advance(self, axis: int, epoch: int, failure: Error | None) -> bool:
        """Take an ADVANCE; False when it says nothing new. Raises PeerError for an epoch that was never given out."""
        if epoch >= self._next.get(axis, 0):
            raise PeerError(f"ADVANCE to epoch {epoch} on axis {axis:#x}, which was never submitted")
        before = self.tracker.reached(axis)
        if failure is not None:
            if epoch <= before or not self.tracker.fail(axis, failure):
                return False
            self.in_flight -= self._next[axis] - 1 - before
            return True
        if not self.tracker.advance(axis, epoch):
            return False
        self.in_flight -= epoch - before
        return True


class CompletionWindow:
    """The completing side of one axis: which epochs were received, and which prefix of them is done."""

    __slots__ = ("_early", "axis", "done", "failed", "received", "reported")

    def __init__(self, axis: int) -> None:
        self.axis = axis
        self.received = 0
        self.done = 0
        self.reported = 0
        self.failed: tuple[int, Error] | None = None
        self._early: dict[int, Error | None] = {}

    def receive(self, epoch: int) -> None:
        """Take the epoch of an arriving command. Raises PeerError unless it is the next one."""
        if epoch != self.received + 1:
            raise PeerError(f"a COMMAND with epoch {epoch} on axis {self.axis:#x} after epoch {self.received}: epochs are consecutive")
        self.received = epoch

    def complete(self, epoch: int, failure: Error | None = None) -> bool:
        """A command is done; True when the contiguous prefix moved or ended. Each epoch completes once."""
        if self.failed is not None:
            return False
        if epoch != self.done + 1 or failure is not None:
            if not self.done < epoch <= self.received or epoch in self._early:
                raise UsageError(f"epoch {epoch} completed twice, or before it was received")
            self._early[epoch] = failure
            if epoch != self.done + 1:
                return False
            return self._drain()
        self.done = epoch
        if self._early:
            self._drain()
        return True

    def _drain(self) -> bool:
        while self.done + 1 in self._early:
            failure = self._early.pop(self.done + 1)
            if failure is not None:
                self.failed = (self.done + 1, failure)
                self._early.clear()
                break
            self.done += 1
        return True

    def report(self) -> int:
        """The epoch to ADVANCE to, or 0 when nothing is new. A failure is reported apart, after this."""
        if self.done == self.reported:
            return 0
        self.reported = self.done
        return self.done
