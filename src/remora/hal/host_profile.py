"""Profiles of devices whose queues run on host threads: each operation is timed around its work, wherever that runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

from remora.hal.operation import Draft, OperationKind
from remora.hal.profile import Profile
from remora.hal.profiled_queue import Overrides, profile_queues
from remora.hal.records import BarrierRecord, LabelRecord, Record

if TYPE_CHECKING:
    from remora.hal.host_queue import HostQueue, Step
    from remora.hal.semaphore import Timepoint

__all__ = ["HostProfile"]


class HostProfile(Profile):
    """For a device whose queues are HostQueues. A recording that the queue plays record by record has the times of its labels."""

    def _on(self) -> Callable[[], None]:
        return profile_queues(self.device, OVERRIDES)


class _Timed:
    """The work of one operation, with a clock around it. An operation that never runs makes no record."""

    __slots__ = ("_draft", "_profile", "_queue", "_work")

    def __init__(self, profile: Profile, queue: HostQueue, draft: Draft, work: Callable[..., None]) -> None:
        self._profile = profile
        self._queue = queue
        self._draft = draft
        self._work = work

    def __call__(self, *args: Any) -> None:
        local = self._profile._local
        local.running = self._draft
        self._queue._settled()  # so that this operation is the next on the timeline
        start_ns, failed = monotonic_ns(), True
        try:
            self._work(*args)
            self._queue._settled()
            failed = False
        finally:
            local.running = None
            _ran(self._profile, self._draft, self._queue, start_ns, failed)


def _ran(profile: Profile, draft: Draft, queue: HostQueue, start_ns: int, failed: bool) -> None:
    """The operation that runs is the next on its queue's timeline, since a queue runs in order."""
    profile._ran(draft, queue.ordinal, queue.timeline._value + 1, start_ns, monotonic_ns(), failed)


def _timed(submit: Callable[..., Timepoint]) -> Callable[..., Timepoint]:
    def timed(queue: HostQueue, work: Callable[..., None], *args: Any) -> Timepoint:
        profile = queue.device._profile
        if profile is None:
            return submit(queue, work, *args)
        draft = profile._local.draft or Draft(OperationKind.OTHER)
        return submit(queue, _Timed(profile, queue, draft, work), *args)

    return timed


def _labelled(play: Callable[..., None]) -> Callable[..., None]:
    def labelled(queue: HostQueue, records: Sequence[Record], steps: dict[int, Step]) -> None:
        profile = queue.device._profile
        running = None if profile is None else profile._local.running
        if profile is None or running is None or not _has_labels(records, steps):
            play(queue, records, steps)
            return
        spans = _Spans(profile, queue, running)
        try:
            for number, record in enumerate(records):
                if isinstance(record, LabelRecord):
                    spans.turn(record.text)
                elif number in steps:
                    play(queue, records, {number: steps[number]})
        finally:
            spans.close()

    return labelled


def _has_labels(records: Sequence[Record], steps: dict[int, Step]) -> bool:
    """Whether there are labels, and the whole recording is played, not a part of it."""
    labels = sum(type(record) is LabelRecord for record in records)
    barriers = sum(type(record) is BarrierRecord for record in records)
    return labels > 0 and len(steps) + labels + barriers == len(records)


class _Spans:
    """The labels that are open while a recording is played."""

    def __init__(self, profile: Profile, queue: HostQueue, running: Draft) -> None:
        self._profile = profile
        self._queue = queue
        self._running = running
        self._open: list[tuple[str, int]] = []

    def turn(self, text: str) -> None:
        """Open a label, or with no text close the innermost."""
        if text:
            self._open.append((text, monotonic_ns()))
        else:
            self._pop(failed=False)

    def close(self) -> None:
        """Close what a failed record left open."""
        while self._open:
            self._pop(failed=True)

    def _pop(self, *, failed: bool) -> None:
        path = "/".join(text for text, _ in self._open)
        name, start_ns = self._open.pop()
        draft = Draft(OperationKind.LABEL, name, path)
        draft.stamp, draft.submit_ns = self._running.stamp, self._running.submit_ns
        _ran(self._profile, draft, self._queue, start_ns, failed)


OVERRIDES: Final[Overrides] = {"_submit": _timed, "_play": _labelled}
