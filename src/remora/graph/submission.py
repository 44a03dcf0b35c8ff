"""One submission of a prepared graph: a run for each region, and what became of it. Values under the scheduler's lock."""

from __future__ import annotations

from enum import Enum
from time import monotonic_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from remora.errors import Error
    from remora.graph.executable import ExecutableGraph
    from remora.graph.lane import Lane
    from remora.graph.region import Launchable
    from remora.graph.storage import Storage
    from remora.hal.buffer import BufferView

__all__ = ["Outcome", "Run", "RunState", "Submission"]


class Outcome(Enum):
    """PENDING -> DONE | FAILED | CANCELLED."""

    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class RunState(Enum):
    """HELD -> TAKEN -> LAUNCHED | DROPPED, or HELD -> DROPPED."""

    HELD = "held"
    TAKEN = "taken"
    """Being launched, or the host's turn."""
    LAUNCHED = "launched"
    """The device has it, or the host is through with it."""
    DROPPED = "dropped"


class Run:
    """One region of one submission: its number on its lane, and the numbers on lanes that it waits for."""

    __slots__ = ("lane", "needs", "number", "region", "state", "submission")

    def __init__(self, submission: Submission, region: Launchable, lane: Lane, number: int, needs: dict[int, int]) -> None:
        self.submission = submission
        self.region = region
        self.lane = lane
        self.number = number
        self.needs = needs
        self.state = RunState.HELD


class Submission:
    """`touches`: every allocation that it uses, and whether it writes it. `last`: places whose end is the end of all."""

    __slots__ = (
        "__weakref__",
        "accepted_ns",
        "callbacks",
        "cancelled",
        "copied",
        "ended_ns",
        "executable",
        "failure",
        "last",
        "outcome",
        "producers",
        "runs",
        "started_ns",
        "table",
        "touches",
        "unlaunched",
        "watched",
    )

    def __init__(
        self,
        executable: ExecutableGraph | None,
        touches: dict[Storage, bool],
        table: Sequence[BufferView] = (),
        producers: Sequence[Submission] = (),
    ) -> None:
        self.executable = executable
        self.touches = touches
        self.table = table
        self.producers = producers
        self.runs: list[Run] = []
        self.last: tuple[tuple[Lane, int], ...] = ()
        self.unlaunched = 0
        self.outcome = Outcome.PENDING
        self.failure: Error | None = None
        self.cancelled = self.watched = False
        self.copied = (0, 0, 0)
        self.callbacks: list[Callable[[], None]] = []
        self.accepted_ns = monotonic_ns()
        self.started_ns = self.ended_ns = 0

    @property
    def doomed(self) -> bool:
        """Whether what is not launched yet will not be."""
        return self.failure is not None or self.cancelled

    def let_go(self) -> None:
        """It is over: give up what it used, before anybody hears of it, and keep what became of it."""
        self.ended_ns = monotonic_ns()
        self.executable, self.producers, self.table = None, (), ()
        self.runs, self.touches = [], {}

    def ended(self) -> bool:
        """Whether it is over, and that was seen."""
        return self.outcome is not Outcome.PENDING

    def places(self) -> Sequence[tuple[Lane, int]]:
        """Lanes and numbers whose end is the end of what was launched of it."""
        if self.doomed:
            return [(run.lane, run.number) for run in self.runs if run.state is RunState.LAUNCHED]
        return self.last

    def over(self) -> bool:
        """Whether nothing of it is in flight or to be launched. A lane that failed has nothing in flight that would come back."""
        return not self.unlaunched and all(lane.done >= number or lane.failure is not None for lane, number in self.places())
