"""The thread that looks at submissions nobody waits for, so that `await` ends. It starts with the first of them."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

from remora.errors import BusyError

if TYPE_CHECKING:
    from remora.graph.scheduler import Scheduler
    from remora.graph.submission import Submission

__all__ = ["Watcher"]


class Watcher:
    """Who reads a device's answers tells of them without waiting for the scheduler's lock: its holder may wait for answers."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._told: SimpleQueue[Submission | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """See to it that the thread runs. Under the scheduler's lock. Raises BusyError when the system gives no thread."""
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="remora graph watcher", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                raise BusyError("the system gives this process no more threads: end some, or raise `ulimit -u`") from None
            self._thread = thread

    def tell(self, submission: Submission) -> None:
        """Something of it is reached. From any thread; does not block."""
        self._told.put(submission)

    def stop(self) -> None:
        """End the thread, and join it unless this is it. Safe to repeat."""
        self._told.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _work(self) -> None:
        scheduler = self._scheduler
        while (submission := self._told.get()) is not None:
            with scheduler.lock:
                scheduler.look()
                scheduler.watch(submission)
            submission = None
