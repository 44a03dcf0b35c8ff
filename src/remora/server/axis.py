"""One axis of a session on the server: a queue, and what was submitted to it and is not reported yet."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remora.hal.queue import Queue
    from remora.hal.semaphore import Timepoint
    from remora.session.axes import CompletionWindow
    from remora.session.events import CommandReceived

__all__ = ["Axis"]


class Axis:
    """One axis: its queue, its window, the timepoints of what is not done, and what is parked."""

    __slots__ = ("axis", "flying", "parked", "points", "queue", "results", "submitted", "window")

    def __init__(self, axis: int, queue: Queue, window: CompletionWindow) -> None:
        self.axis = axis
        self.queue = queue
        self.window = window
        self.points: dict[int, Timepoint] = {}
        self.flying: deque[tuple[int, Timepoint]] = deque()  # those of them that nobody but the dispatcher looks for
        self.results: dict[int, bytearray] = {}
        self.parked: deque[CommandReceived] = deque()
        self.submitted = 0  # the last epoch that was given to the queue
