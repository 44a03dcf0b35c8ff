"""The thread that runs the host lane: callbacks, and staging between engines. It starts with the first of them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from remora.errors import BusyError, DeviceError, Error, Status
from remora.graph.lane import HOST
from remora.graph.submission import Run, RunState

if TYPE_CHECKING:
    from collections.abc import Callable

    from remora.graph.scheduler import Scheduler

__all__ = ["HostThread"]


class HostThread:
    """One thread, or none."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._thread: threading.Thread | None = None
        self._stopping = False

    def wake(self) -> None:
        """There is something on the host lane. Under the scheduler's lock. Raises BusyError when the system gives no thread."""
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="remora graph host", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                raise BusyError("the system gives this process no more threads: end some, or raise `ulimit -u`") from None
            self._thread = thread
        self._scheduler.stir()

    def stop(self) -> None:
        """End the thread once it has run what it is at, and join it unless this is it. Safe to repeat."""
        with self._scheduler.lock:
            self._stopping = True
            self._scheduler.stir()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        while (run := self._next()) is not None:
            began, error = perform(self._scheduler, run, run.region.run)
            with self._scheduler.lock:
                self._scheduler.finish_host_run(run, error, began=began)
            run = error = None

    def _next(self) -> Run | None:
        scheduler = self._scheduler
        held = scheduler.lanes[HOST].held
        with scheduler.lock:
            while not (held and held[0].state is RunState.HELD and scheduler.ready(held[0])):
                if self._stopping:
                    return None
                scheduler.sleep()
            held[0].state = RunState.TAKEN  # in the same step: a run that is dropped is not taken, and the other way round
            return held[0]


def perform(scheduler: Scheduler, run: Run, call: Callable[[], object]) -> tuple[bool, Error | None]:
    """Wait for what a run needs that was taken, and call: whether it came to that, and what went wrong."""
    with scheduler.lock:
        error = scheduler.why_not(run)
        waits = scheduler.waits(run)
    if error is not None:
        return False, error
    for point in waits:
        try:
            point.wait()
        except Error as failure:
            return False, DeviceError(f"dependency failed: {failure.message}", code=Status.ABORTED, origin=failure.origin)
    if run.submission.doomed:
        return False, None
    try:
        call()
    except Error as failure:
        return True, failure.with_traceback(None)
    except BaseException as failure:
        story = DeviceError(f"a callback of the graph raised {type(failure).__name__}: {failure}")
        story.__cause__ = failure.with_traceback(None)
        return True, story
    return True, None
