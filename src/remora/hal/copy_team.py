"""Threads that share a large copy, where a process has four cores and more.

On a machine with 16 cores one copies 6 to 9 GB/s, four 27, six 35. On two cores a helper brings a tenth, so there is none.
"""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue

from remora.errors import BusyError
from remora.hal.copying import copy_memory
from remora.hal.threads import start_thread

__all__ = ["CopyTeam", "helpers_here"]

#: Copies of fewer bytes are not worth waking anybody.
WIDE = 4 << 20
#: Most threads beside the one that calls; where each part begins.
MOST = 3
ALIGNMENT = 4096


def helpers_here() -> int:
    """How many helpers a copy has: one for each four cores of this process, at most MOST."""
    return min(len(os.sched_getaffinity(0)) // 4, MOST)


class CopyTeam:
    """One copy at a time, by the calling thread and `count` helpers of this name, which start with the first large copy."""

    def __init__(self, count: int, name: str) -> None:
        self.count = count
        self._name = name
        self._tasks: SimpleQueue[tuple[memoryview, memoryview] | None] = SimpleQueue()
        self._done: SimpleQueue[None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def copy(self, target: memoryview, source: memoryview) -> None:
        """Copy all of `source` to the beginning of `target`; nobody touches either any more when this returns."""
        size = source.nbytes
        if size < WIDE or not self._started():
            copy_memory(target, source)
            return
        share = -(-size // (len(self._threads) + 1) // ALIGNMENT) * ALIGNMENT
        others = range(share, size, share)
        for start in others:
            part = slice(start, min(start + share, size))
            self._tasks.put((target[part], source[part]))
        copy_memory(target[:share], source[:share])
        for _ in others:
            self._done.get()

    def _started(self) -> bool:
        """Whether there are helpers. A system that gives no more threads has those that it gave."""
        try:
            while len(self._threads) < self.count:
                self._threads.append(start_thread(self._run, self._name))
        except BusyError:
            self.count = len(self._threads)
        return bool(self._threads)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            copy_memory(*task)
            task = None  # it holds memory
            self._done.put(None)

    def stop(self) -> None:
        """End the helpers, and wait for them. Not while a copy goes on."""
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()
