"""Profiles: what a device's queues ran, and when, told to a sink in order (requirement H24).

`device.profile(sink)` begins, `flush` waits until the sink took everything so far, `end` flushes and ends. The sink is called by a
thread of the profile, never by one that submits or runs operations: a slow sink delays no work. What does not fit into the
profile's bounded memory meanwhile is dropped and counted. A sink that raises ends the profile with that cause; the work goes on.

A device without a profile pays nothing: `profiled_queue` gives its queues another class while one is on.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from remora.errors import ClosedError, DeadlineError, Error, Status, UsageError
from remora.hal.operation import Clock, Draft, OperationKind, OperationRecord, Stamp

if TYPE_CHECKING:
    from types import TracebackType

    from remora.hal.device import Device
    from remora.hal.queue import Queue
    from remora.hal.semaphore import Timepoint

__all__ = ["BATCH", "Profile", "Sink"]

#: Records that wait for the sink at most, and that it gets at most at once.
CAPACITY = 1 << 16
BATCH = 256
#: Seconds that a few records wait for more before the sink gets them.
LINGER = 0.05
#: Seconds that `close()` of a device gives the sink to take what is left.
LEAVE = 5.0


class _Taker(Protocol):
    def take(self, records: Sequence[OperationRecord]) -> object: ...


Sink: TypeAlias = Callable[[Sequence[OperationRecord]], object] | _Taker


class _Local(threading.local):
    """What this thread is doing for the profile."""

    draft: Draft | None = None
    stamp: Stamp | None = None
    running: Draft | None = None


class Profile(ABC):
    """Tells a sink what a device's queues run. Made by `device.profile(sink)`; `end()` it, or use `with`. One at a time a device.

    Example:
        with device.profile(records.extend) as profile:
            queue.dispatch(kernel, grid, buffers).wait(5)
            profile.flush()                                # now `records` has it
    Records of one queue come in its order, those of several in the order in which they ended. Any thread but the sink's own may
    call any method.
    """

    def __init__(self, device: Device, sink: Sink, capacity: int = CAPACITY) -> None:
        take = sink if callable(sink) else getattr(sink, "take", None)
        if not callable(take):
            raise UsageError(f"a sink is a callable, or has a method take(records); {sink!r} is neither")
        self.device = device
        self.failure: Error | None = None
        """Why the profile ended early: what its sink raised, or how the device ended."""
        self.dropped = 0
        """Records that were lost, because the sink was too slow."""
        self._sink = cast("Callable[[Sequence[OperationRecord]], object]", take)
        self._capacity = capacity
        self._records: deque[Any] = deque()
        self._news = threading.Condition(threading.Lock())
        self._added = self._taken = 0
        self._asked: list[tuple[int, Callable[[Error | None], None]]] = []
        self._ending = self._ended = False
        self._cause: Error | None = None
        self._local = _Local()
        self._off: Callable[[], None]
        self._submitted: Callable[[Queue, Draft, Timepoint, int], None] | None = None  # a trace hears when submitting returned
        self._thread = threading.Thread(target=self._run, name=f"remora profile {device.uri}", daemon=True)

    def __repr__(self) -> str:
        state = f"failed: {self.failure}" if self.failure else "ended" if self._ending else "on"
        return f"<Profile of {self.device!r} {state}, {self._taken} records, {self.dropped} dropped>"

    @property
    def taken(self) -> int:
        """Records that the sink took."""
        return self._taken

    @property
    def clock(self) -> Clock:
        """How this process's clock and the device's are aligned: both zero for a device of this machine's clock."""
        return Clock()

    def flush(self, timeout: float | None = None) -> None:
        """Block until the sink took the record of every operation that is done now. `timeout` in seconds.

        Raises DeadlineError, or why the profile ended early. Does nothing when it ended in good order.
        """
        self._check_caller()
        deadline = None if timeout is None else monotonic() + timeout
        if not self._ending:
            self._collect(deadline)
        done = threading.Event()
        failures: list[Error | None] = []

        def answered(error: Error | None) -> None:
            failures.append(error)
            done.set()

        self._ask(answered)
        if not done.wait(None if deadline is None else max(0.0, deadline - monotonic())):
            raise DeadlineError(f"the sink did not take all records within {timeout:g} s; give it time, or let it do less")
        if failures[0] is not None:
            raise failures[0].copy()

    def end(self, timeout: float | None = None) -> None:
        """Flush, then end the profile. Safe to repeat. Raises as `flush` does; the profile has ended all the same."""
        try:
            self.flush(timeout)
        except DeadlineError:
            with self._news:
                self.dropped += len(self._records)
            raise
        finally:
            self._conclude(None, discard=True)
        self._thread.join(LEAVE)

    def __enter__(self) -> Profile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End it. An error that is on its way is not replaced by one of the profile."""
        with suppress(*(() if error is None else (Error,))):
            self.end()

    # -- for drivers ----------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _on(self) -> Callable[[], None]:
        """Driver: begin to record; returns what ends that, to be called once from any thread. Raises why it cannot be."""

    def _collect(self, deadline: float | None) -> None:  # noqa: B027  (most have them here)
        """Driver: bring here the records that are elsewhere. Raises DeadlineError, or why that cannot be."""

    def _prepare(self, batch: list[Any]) -> Sequence[OperationRecord]:
        """Driver: what was added, as records. Runs on the sink's thread."""
        return batch

    def _took_batch(self) -> None:  # noqa: B027  (most have nobody to tell)
        """Driver: the sink took some. Runs on the sink's thread."""

    def _submit(self, queue: Queue, draft: Draft, submit: Callable[..., Timepoint], args: tuple[Any, ...]) -> Timepoint:
        """Submit an operation; meanwhile `_local.draft` says what it is."""
        local = self._local
        draft.stamp = local.stamp
        local.draft = draft
        try:
            point = submit(queue, *args)
        finally:
            local.draft = None
        if self._submitted is not None:
            self._submitted(queue, draft, point, monotonic_ns())
        return point

    def _ran(self, draft: Draft, queue: int, value: int, start_ns: int, end_ns: int, failed: bool) -> None:
        """An operation ran at this value of its queue's timeline. Called before the timeline reaches it."""
        stamp, kind, size, submit_ns = draft.stamp, draft.kind, draft.bytes, draft.submit_ns
        if stamp is not None:
            value, submit_ns = stamp.value, stamp.submit_ns
            if stamp.kind is not None:
                if kind in (OperationKind.BARRIER, OperationKind.READ):
                    stamp.start_ns = start_ns
                    return
                kind, size, start_ns = stamp.kind, stamp.bytes, stamp.start_ns or start_ns
        self._add(
            OperationRecord(
                *(kind, draft.name, draft.label, queue, value, submit_ns, start_ns, end_ns),
                *(size, draft.grid, draft.dispatches, failed),
            )
        )

    def _add(self, record: Any) -> None:
        """Take a record in, or drop it when the sink is too slow. Never waits for the sink."""
        with self._news:
            if self._ending:
                return
            waiting = len(self._records)
            if waiting >= self._capacity:
                self.dropped += 1
                return
            self._records.append(record)
            self._added += 1
            if waiting in (0, BATCH - 1):
                self._news.notify()

    def _ask(self, answer: Callable[[Error | None], None]) -> None:
        """Have `answer` called once the sink took what was added so far, or with the cause when it never will."""
        with self._news:
            now = self._ended or (not self._ending and self._taken >= self._added)
            if not now:
                self._asked.append((self._added, answer))
                self._news.notify()
        if now:
            answer(self.failure)

    def _conclude(self, cause: Error | None, *, discard: bool) -> None:
        """End the profile, with a cause if it ends early: the sink gets what is left, unless that is discarded."""
        with self._news:
            if self._ending:
                return
            self._ending = True
            self._cause = cause
            if discard:
                self._records.clear()
            self._news.notify()
        self._off()
        self.device._profile = None

    def _leave(self) -> None:
        """The device is being closed: give the sink some time for what is left, and end."""
        if threading.current_thread() is self._thread:
            self._conclude(None, discard=True)
            return
        with suppress(Error):
            self.end(LEAVE)

    # -- inside ---------------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin; if that fails, nothing has."""
        try:
            self._off = self._on()
        except BaseException:
            self._ending = self._ended = True
            self.device._profile = None
            raise
        self._thread.start()

    def _check_caller(self) -> None:
        if threading.current_thread() is self._thread:
            raise UsageError("a sink cannot flush or end the profile that calls it", code=Status.FAILED_PRECONDITION)

    def _run(self) -> None:
        while batch := self._next():
            try:
                self._sink(self._prepare(batch))
            except BaseException as error:
                failure = Error(f"the profile's sink raised {type(error).__name__}: {error}", code=Status.ABORTED)
                failure.__cause__ = error
                self._fail(failure)
                break
            self._took(len(batch))
            self._took_batch()
        self._finish()

    def _next(self) -> list[Any]:
        """What the sink gets now; nothing when the profile has ended. Sleeps while there is none, briefly while there is little."""
        records = self._records
        with self._news:
            while not records and not self._ending:
                self._news.wait()
            if len(records) < BATCH and not self._ending and not self._asked:
                self._news.wait(LINGER)
            return [records.popleft() for _ in range(min(BATCH, len(records)))]

    def _took(self, count: int) -> None:
        with self._news:
            self._taken += count
            if self._ending:  # `_finish` answers, and knows whether that is all
                return
            answers = [answer for target, answer in self._asked if target <= self._taken]
            self._asked = [asked for asked in self._asked if asked[0] > self._taken]
        for answer in answers:
            answer(None)

    def _fail(self, failure: Error) -> None:
        """The sink has failed: end the profile, unless it is ending already; then this is why it ends early."""
        self._conclude(failure, discard=True)
        with self._news:
            self._records.clear()
            if self._cause is None:
                self._cause = failure

    def _finish(self) -> None:
        with self._news:
            self.failure = self._cause
            self._ended = True
            asked, self._asked = self._asked, []
        for target, answer in asked:
            early = ClosedError("the profile was ended before its sink took all records") if target > self._taken else None
            answer(self.failure or early)
