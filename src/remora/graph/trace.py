"""When regions ran, as the queues of the devices tell it (requirement G09)."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING

from remora.errors import BusyError, Error, UsageError
from remora.graph.lane import HOST
from remora.hal.operation import OperationKind, OperationRecord

if TYPE_CHECKING:
    from remora.graph.scheduler import Scheduler
    from remora.hal.device import Device
    from remora.hal.profile import Profile

__all__ = ["ExecutionTrace", "TraceEvent"]

MEASUREMENT = (
    "begin and end of each operation on its queue, told by the device's profile and moved to this process's monotonic clock"
)
_MOVES = (OperationKind.UPDATE, OperationKind.READ)


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One region on one lane; times in microseconds since the trace began. `copied_bytes`: that it moved, as the device counts."""

    name: str
    lane: str
    start_us: float
    duration_us: float
    copied_bytes: int
    failed: bool


@dataclass(frozen=True, slots=True)
class ExecutionTrace:
    """What `runtime.finish_trace()` gives: events in the order in which they ended, and how many older ones were dropped."""

    events: tuple[TraceEvent, ...]
    dropped: int
    measurement: str = MEASUREMENT

    def overlap_us(self, first: str, second: str) -> float:
        """Microseconds in which two lanes were both at work."""
        return sum(
            max(0.0, min(a.start_us + a.duration_us, b.start_us + b.duration_us) - max(a.start_us, b.start_us))
            for a in self.events
            if a.lane == first
            for b in self.events
            if b.lane == second
        )

    def to_json(self) -> str:
        """The Chrome trace format, which Perfetto reads."""
        lanes = sorted({event.lane for event in self.events})
        events = [
            {
                "name": event.name,
                "cat": "remora.graph",
                "ph": "X",
                "ts": event.start_us,
                "dur": event.duration_us,
                "pid": 0,
                "tid": lanes.index(event.lane),
                "args": {"copied_bytes": event.copied_bytes, "failed": event.failed},
            }
            for event in self.events
        ]
        names = [
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": number, "args": {"name": lane}} for number, lane in enumerate(lanes)
        ]
        whole = {
            "traceEvents": names + events,
            "displayTimeUnit": "ms",
            "dropped_events": self.dropped,
            "measurement": self.measurement,
        }
        return json.dumps(whole)

    def save(self, path: str | Path) -> None:
        """Write `to_json()` to a file."""
        Path(path).write_text(self.to_json())


class Tracer:
    """Profiles the devices of a runtime, and keeps the newest regions. Any thread may call."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._lock = threading.Lock()
        self._events: deque[tuple[int, OperationRecord]] | None = None
        self._seen = self._began_ns = 0
        self._profiles: list[Profile] = []

    def start(self, capacity: int, devices: Sequence[tuple[int, Device]]) -> None:
        """See `Runtime.start_trace`."""
        if capacity < 1:
            raise UsageError("a trace keeps at least one event")
        with self._lock:
            if self._events is not None:
                raise BusyError("a trace runs already: finish_trace() first")
            self._events, self._seen, self._began_ns = deque(maxlen=capacity), 0, monotonic_ns()
        try:
            for engine, device in devices:
                self._profiles.append(device.profile(partial(self._take, engine)))
        except BaseException:
            self.finish()
            raise

    def _take(self, engine: int, records: Sequence[OperationRecord]) -> None:
        with self._lock:
            if self._events is None:
                return
            for record in records:
                if record.kind is OperationKind.EXECUTE or record.kind in _MOVES:
                    self._seen += 1
                    self._events.append((engine, record))

    def finish(self) -> ExecutionTrace | None:
        """See `Runtime.finish_trace`."""
        profiles, self._profiles = self._profiles, []
        for profile in profiles:
            with suppress(Error):  # a lost device has told what it could
                profile.end()
        with self._lock:
            events, self._events = self._events, None
            if events is None:
                return None
            return ExecutionTrace(tuple(self._event(*each) for each in events), self._seen - len(events))

    def _event(self, engine: int, record: OperationRecord) -> TraceEvent:
        lanes = self._scheduler.lanes
        there = (lane for lane in lanes if lane.engine == engine and lane.queue is not None and lane.queue.ordinal == record.queue)
        lane = next(there, lanes[HOST])
        name = record.label or record.kind.name.lower()
        start, stop = (record.start_ns - self._began_ns) / 1e3, (record.end_ns - self._began_ns) / 1e3
        return TraceEvent(name, lane.name, start, stop - start, record.bytes, record.failed)
