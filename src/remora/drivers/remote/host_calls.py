"""Host calls run on the client, on one thread a queue that starts with the first of them (H17, H27).

A call is due when everything before it is done. Then the thread runs it and opens the gate behind which the queue holds what
follows; a call that raises, or what it waited for, fails the gate instead, and with it the queue.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from remora.errors import ClosedError, DeviceError, Error
from remora.hal.host_call import run_call
from remora.hal.semaphore import Semaphore, Timepoint

__all__ = ["HostCalls"]


class HostCalls:
    """The calls of one queue, which names itself in their errors. Any thread may call any method."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._due: deque[tuple[Callable[[], object], Semaphore]] = deque()
        self._change = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ended = False

    def after(self, points: Sequence[Timepoint], call: Callable[[], object], gate: Semaphore) -> None:
        """Run the call when all points are reached, then signal `gate` to 1; or fail it with what went wrong."""
        for number, point in enumerate(points):
            if not point.semaphore._settled(point.value):
                point.on_done(partial(self.after, points[number:], call, gate))
                return
            failure = point.semaphore.failure
            if failure is not None and point.semaphore._value < point.value:
                gate.fail(failure)
                return
        self._run(call, gate)

    def end(self) -> None:
        """The queue has failed: what has not begun does not run. The thread ends after the call that runs now."""
        with self._change:
            self._ended = True
            self._change.notify()

    def join(self) -> None:
        """Wait for the thread of an ended queue, unless this is it. Safe to repeat."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self, call: Callable[[], object], gate: Semaphore) -> None:
        with self._change:
            if not self._ended:
                self._due.append((call, gate))
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name=f"remora host calls {self._queue}", daemon=True)
                    self._thread.start()
                self._change.notify()
                return
        gate.fail(ClosedError("the queue had failed before this call ran"))

    def _work(self) -> None:
        while (due := self._next()) is not None:
            call, gate = due
            error = self._failure_of(call)
            del due, call  # it may hold anything, which must go while this thread sleeps
            if error is None:
                gate.signal(1)
            else:
                gate.fail(error)

    def _next(self) -> tuple[Callable[[], object], Semaphore] | None:
        with self._change:
            while not self._due and not self._ended:
                self._change.wait()
            return None if self._ended else self._due.popleft()

    def _failure_of(self, call: Callable[[], object]) -> Error | None:
        try:
            run_call(call)
        except Error as error:
            failure = error.copy()  # without the traceback, which holds these frames
        except BaseException as error:
            failure = DeviceError(f"{type(error).__name__}: {error}")
            failure.__cause__ = error
        else:
            return None
        failure.origin = failure.origin or self._queue
        return failure
