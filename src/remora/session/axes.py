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
        failed = self.tracker.failure(axis)
        if failed is not None:
            raise failed.copy()
        if self.in_flight >= self.limit:
            raise BusyError(f"{self.limit} commands are in flight; wait for one of them")
        try:
            epoch = self._next[axis]
        except KeyError:
            raise UsageError(f"axis {axis:#x} is not one of this session's") from None
        self._next[axis] = epoch + 1
        self.in_flight += 1
        self.submissions += 1
        return epoch

    def submitted(self, axis: int) -> int:
        """The last epoch that was given out on an axis, 0 before the first."""
        return self._next.get(axis, 1) - 1

    def advance(self, axis: int, epoch: int, failure: Error | None) -> bool:
        """Take an ADVANCE; False when it says nothing new.

        Raises PeerError for an epoch that was never given out, and for a failure of what was done or had failed before.
        """
        if epoch >= self._next.get(axis, 0):
            raise PeerError(f"ADVANCE to epoch {epoch} on axis {axis:#x}, which was never submitted")
        before = self.tracker.reached(axis)
        if failure is not None:
            if epoch <= before or not self.tracker.fail(axis, failure):
                raise PeerError(f"epoch {epoch} on axis {axis:#x} failed after it was done, or the axis failed twice")
            self.in_flight -= self._next[axis] - 1 - before
            return True
        if not self.tracker.advance(axis, epoch):
            return False
        self.in_flight -= epoch - before
        return True

    def check_open(self, axis: int, epoch: int) -> None:
        """Raise PeerError unless the epoch was given out and is not done."""
        if not self._next.get(axis, 0) > epoch > self.tracker.reached(axis):
            raise PeerError(f"a RESULT for epoch {epoch} on axis {axis:#x}, which is not in flight")


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
            raise PeerError(f"a COMMAND with epoch {epoch} on axis {self.axis:#x} after {self.received}: epochs are consecutive")
        self.received = epoch

    def complete(self, epoch: int, failure: Error | None = None) -> bool:
        """A command is done; True when the contiguous prefix moved or ended. Raises UsageError when it was not to complete.

        After the axis has failed, completions change nothing.
        """
        if self.failed is not None:
            return False
        if epoch == self.done + 1 <= self.received and failure is None and not self._early:
            self.done = epoch
            return True
        if not self.done < epoch <= self.received or epoch in self._early:
            raise UsageError(f"epoch {epoch} completed twice, or before it was received")
        if epoch != self.done + 1:
            self._early[epoch] = failure
            return False
        self._settle(epoch, failure)
        while self._early and self.done + 1 in self._early:
            self._settle(self.done + 1, self._early.pop(self.done + 1))
        return True

    def _settle(self, epoch: int, failure: Error | None) -> None:
        if failure is None:
            self.done = epoch
            return
        self.failed = (epoch, failure)
        self._early.clear()

    @property
    def in_flight(self) -> int:
        """Commands received and not yet reported; none any more once the axis's failure was reported."""
        return 0 if self.reported > self.done else self.received - self.reported

    def report(self) -> int:
        """The epoch to ADVANCE to, or 0 when nothing is new. A failure is reported apart, after this."""
        if self.done <= self.reported:
            return 0
        self.reported = self.done
        return self.done
