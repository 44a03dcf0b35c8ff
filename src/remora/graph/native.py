"""Native sessions: stages of other code that take their turn on the compute lane (reference/graph.md 1.8)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Generic, TypeVar

from remora.errors import BusyError, DeadlineError, DeviceLostError, Error
from remora.graph.host import perform
from remora.graph.lane import LaneName
from remora.graph.region import Call
from remora.graph.submission import Run, RunState, Submission

if TYPE_CHECKING:
    from remora.graph.runtime import Runtime
    from remora.graph.scheduler import Scheduler

__all__ = ["NativeSession"]

S = TypeVar("S")
R = TypeVar("R")

_inside = threading.local()
#: States whose fence failed: something may still be at work in them.
_lost: list[object] = []


class NativeSession(Generic[S]):
    """State of other code, and a `fence(state)` that waits for what a stage began.

    Example: `session = NativeSession(runtime, stream, Stream.synchronize); session.run(lambda stream: step(stream))`.
    """

    def __init__(self, runtime: Runtime, state: S, fence: Callable[[S], object]) -> None:
        self._scheduler: Scheduler = runtime.scheduler
        self._state = state
        self._fence = fence
        self._failure: Error | None = None

    @property
    def state(self) -> S:
        """What stages work with. Raises DeviceLostError once a fence has failed."""
        if self._failure is not None:
            raise self._failure.copy()
        return self._state

    def run(self, stage: Callable[[S], R], timeout: float | None = None) -> R:
        """Call `stage(state)` on this thread when everything submitted before has ended, and the fence after it, on every way out.

        Compute submitted later waits; other lanes go on. It counts as a submission. Raises what the stage raises; DeviceLostError
        when the fence fails, and ever after; BusyError inside another stage of this runtime or at `max_submissions`; DeadlineError.
        """
        state = self.state
        scheduler = self._scheduler
        if scheduler in getattr(_inside, "schedulers", ()):
            raise BusyError("a stage of this runtime is running on this thread: a stage cannot begin another one")
        run = self._queue()
        if not _await_turn(scheduler, run, None if timeout is None else monotonic() + timeout):
            raise DeadlineError("earlier work did not end in the time given")
        results: list[R] = []
        raised: list[BaseException] = []
        began, error = False, None
        try:
            began, error = perform(scheduler, run, lambda: self._stage(stage, state, results, raised))
        finally:
            with scheduler.lock:
                scheduler.finish_host_run(run, None, began=began)
        if raised:
            raise raised[-1]
        if error is not None:
            raise error
        return results[0]

    def _queue(self) -> Run:
        scheduler = self._scheduler
        with scheduler.lock:
            scheduler.admit({}, (LaneName.COMPUTE,))
            before = {lane.index: lane.planned for lane in scheduler.lanes if lane.planned}
            submission = Submission(None, {})
            region = Call(LaneName.COMPUTE, (), (), _nothing)
            scheduler.accept(submission, (region,), (0,), (), before)
            return submission.runs[0]

    def _stage(self, stage: Callable[[S], R], state: S, results: list[R], raised: list[BaseException]) -> None:
        """The stage and its fence; what went wrong last is what counts."""
        inside: Sequence[Scheduler] = getattr(_inside, "schedulers", ())
        _inside.schedulers = (*inside, self._scheduler)
        try:
            results.append(stage(state))
        except BaseException as error:
            raised.append(error)
        finally:
            _inside.schedulers = inside
        try:
            self._run_fence(state)
        except DeviceLostError as error:
            raised.append(error)

    def _run_fence(self, state: S) -> None:
        try:
            self._fence(state)
        except BaseException as error:
            _lost.append(state)
            self._failure = DeviceLostError(
                f"the fence of a native session raised {type(error).__name__}: {error}; its state is lost"
            )
            raise self._failure.copy() from error


def _await_turn(scheduler: Scheduler, run: Run, deadline: float | None) -> bool:
    """Until the run is the first of its lane and all it needs is launched; else it is given up."""
    with scheduler.lock:
        try:
            while not (run.lane.held and run.lane.held[0] is run and scheduler.ready(run)):
                left = None if deadline is None else deadline - monotonic()
                if left is not None and left <= 0:
                    break
                scheduler.sleep(left)
            else:
                run.state = RunState.TAKEN
                return True
        finally:
            if run.state is RunState.HELD:
                run.submission.cancelled = True
                scheduler.drop(run.submission)
    return False


def _nothing() -> None:
    """The stage is called by the thread that waits for its turn."""
