"""A lane: one queue of one engine, or the host's own, and what was planned and launched on it (requirement G06).

Numbers are given out in the order of planning, and a lane runs in that order: nothing overtakes. A number is launched once a device
may wait for it: it has a point on the queue's timeline, or is over already. So a lane is described by four numbers that only grow:

    done <= launched <= planned          every number up to `done` is over, up to `launched` is launched, up to `planned` exists
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import TYPE_CHECKING

from remora.hal.semaphore import Timepoint

if TYPE_CHECKING:
    from remora.errors import Error
    from remora.graph.submission import Run
    from remora.hal.queue import Queue

__all__ = ["HOST", "Lane", "LaneName"]


class LaneName(IntEnum):
    """The lanes of the first engine. A further engine has one lane each, behind these."""

    COMPUTE = 0
    UPLOAD = 1
    DOWNLOAD = 2


#: The lane of callbacks and staging, which a thread of the runtime runs.
HOST = 3


class Lane:
    """Guarded by the scheduler's lock."""

    __slots__ = ("done", "engine", "held", "index", "launched", "name", "planned", "queue", "values")

    def __init__(self, index: int, name: str, engine: int, queue: Queue | None) -> None:
        self.index = index
        self.name = name
        self.engine = engine
        self.queue = queue
        self.planned = self.launched = self.done = 0
        self.values: dict[int, int] = {}
        """Of launched numbers that are not known to be done: the value of the queue's timeline."""
        self.held: deque[Run] = deque()
        """Planned and not launched, in order."""

    def __repr__(self) -> str:
        return f"<Lane {self.name}: {self.done} done, {self.launched} launched, {self.planned} planned>"

    @property
    def failure(self) -> Error | None:
        """Why the queue runs nothing any more, or None."""
        return None if self.queue is None else self.queue.timeline.failure

    def point(self, number: int) -> Timepoint | None:
        """When a launched number is done; None when it is over already."""
        value = self.values.get(number)
        return None if value is None or self.queue is None else Timepoint(self.queue.timeline, value)

    def launch(self, number: int, value: int | None) -> None:
        """The next number was launched, or is over without having been: then it has no value."""
        self.launched = number
        if value is not None:
            self.values[number] = value

    def look(self, reached: int) -> None:
        """The queue's timeline is at `reached`: forget what is done."""
        while self.done < self.launched:
            value = self.values.get(self.done + 1)
            if value is not None:
                if value > reached:
                    return
                del self.values[self.done + 1]
            self.done += 1
