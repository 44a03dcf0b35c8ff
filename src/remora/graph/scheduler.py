"""What runs when: submissions, lanes, leases and failure, under one lock (requirements G05 to G08).

A submission plans a run for each region of its graph. The frontier says what the run needs: numbers on lanes. A run is launched,
that is submitted to its lane's queue with waits for exactly those, once all of them are launched themselves; the devices do the
rest. Only what needs the host (a callback, staging, a native session) keeps others here. A lane launches in order.

Nothing waits for a device under the lock. Submitting to a queue happens under it, so that a lane's numbers and its queue's values
grow together.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from functools import partial
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING

from remora.errors import BusyError, ClosedError, DeadlineError, DeviceError, DeviceLostError, Error, Status
from remora.graph.counters import Counters
from remora.graph.frontier import HazardFrontier
from remora.graph.host import HostThread
from remora.graph.lane import HOST
from remora.graph.staging import Staging
from remora.graph.storage import poison
from remora.graph.submission import Outcome, Run, RunState, Submission
from remora.graph.uses import WRITE, conflict
from remora.graph.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from remora.graph.lane import Lane
    from remora.graph.region import Launchable
    from remora.graph.storage import Storage
    from remora.graph.uses import Use
    from remora.hal.semaphore import Timepoint

__all__ = ["Scheduler"]


class Scheduler:
    """One allocation and ordering domain. `lanes` by index. Any thread may call."""

    def __init__(self, lanes: Sequence[Lane], max_submissions: int, *, whole_graph: bool) -> None:
        self.lock = threading.RLock()
        self.moved = threading.Condition(self.lock)
        """Notified by `stir`, waited for by `sleep`."""
        self.sleepers = 0
        self.lanes = lanes
        self.max_submissions = max_submissions
        self.whole_graph = whole_graph
        self.frontier = HazardFrontier()
        self.pending: list[Submission] = []
        self.quarantined: list[object] = []
        """What failed on a device, with all that it uses: kept, since it may be in flight still."""
        self.forgotten: deque[tuple[int, int]] = deque()
        """Keys and sizes of allocations that are gone; finalizers add to it at any time."""
        self.counters = Counters()
        self.closed = False
        self.host = HostThread(self)
        self.watcher = Watcher(self)
        self._unsettled: set[Storage] = set()
        """Shared allocations whose writer was planned and dropped: `planned` says too much until nothing pending uses them."""
        self._launching = False  # a queue may run work, and callbacks of others, before it returns
        self._deferred = False

    # -- submitting -----------------------------------------------------------------------------------------------------------

    def admit(self, touches: dict[Storage, bool], lanes: Iterable[int]) -> None:
        """Raise why work on these allocations and lanes cannot be taken now. Under the lock; waits for nothing."""
        self.check_open()
        self.look()
        for index in lanes:
            failure = self.lanes[index].failure
            if failure is not None:
                raise DeviceLostError(
                    f"the lane {self.lanes[index].name} has failed: {failure.message}; open the device again, make a new runtime",
                    origin=failure.origin,
                )
        for storage in touches:
            storage.check()
        if len(self.pending) >= self.max_submissions:
            self.look(poll=True)
            if len(self.pending) >= self.max_submissions:
                raise BusyError(f"{self.max_submissions} submissions are pending (max_submissions): wait for a completion")
        for storage, writes in touches.items():
            storage.check_lease(writes)

    def accept(
        self,
        submission: Submission,
        regions: Sequence[Launchable],
        last: Sequence[int],
        keys: Sequence[Use],
        before: dict[int, int] | None = None,
    ) -> None:
        """Plan and launch an admitted submission, all of it after the places in `before` and its producers. Under the lock."""
        self.settle_forgotten()
        before = self._before(submission) if before is None else before
        self.pending.append(submission)
        self.counters.submissions += 1
        submission.unlaunched = 1  # the planning itself
        try:
            runs = [self._plan(submission, region, before, keys) for region in regions if not submission.doomed]
            if not submission.doomed:
                submission.last = tuple([(runs[number].lane, runs[number].number) for number in last])
        except BaseException as error:
            self.fail(submission, error if isinstance(error, Error) else DeviceError(f"{type(error).__name__} while submitting"))
            raise
        finally:
            submission.unlaunched -= 1
            if self._deferred and not self._launching:
                self._deferred = False
                self.advance()
            if submission.doomed:
                self.look()

    def settle_forgotten(self) -> None:
        """Take in which allocations are gone. Under the lock."""
        while self.forgotten:
            key, size = self.forgotten.popleft()
            self.frontier.forget(key)
            self.counters.live -= size

    def _before(self, submission: Submission) -> dict[int, int]:
        """What all its runs wait for beside their bytes: producers, and with `whole_graph` every conflicting submission."""
        needs: dict[int, int] = {}
        others = [producer for producer in submission.producers if producer.outcome is Outcome.PENDING]
        if self.whole_graph and submission.executable is not None:
            mine = submission.executable.summary
            others += [other for other in self.pending if other.executable and conflict(other.executable.summary, mine)]
        for other in others:
            for run in other.runs:
                needs[run.lane.index] = max(needs.get(run.lane.index, 0), run.number)
        return needs

    def _plan(self, submission: Submission, region: Launchable, before: dict[int, int], keys: Sequence[Use]) -> Run:
        lane = self.lanes[region.lane]
        if region.shared:
            self._plan_staging(submission, region, lane.engine, before)
        lane.planned += 1
        needs = self.frontier.add(lane.index, lane.planned, region.uses(submission.table, keys))
        for index, number in before.items():
            needs[index] = max(needs.get(index, 0), number)
        if not region.by_host:
            needs.pop(lane.index, None)  # a queue is in order by itself
        run = Run(submission, region, lane, lane.planned, needs)
        submission.runs.append(run)
        submission.unlaunched += 1
        if region.by_host or lane.held or self._launching or not self.ready(run):
            lane.held.append(run)
            self._deferred = self._deferred or self._launching
            if lane.index == HOST:
                self.host.wake()
        else:
            self._launch(run)
        return run

    def _plan_staging(self, submission: Submission, region: Launchable, engine: int, before: dict[int, int]) -> None:
        for storage, access in region.shared:
            if engine not in storage.planned:
                self._plan(submission, Staging(self, storage, engine), before, ())
                storage.planned.add(engine)
            if access & WRITE:
                storage.planned = {engine}

    # -- launching ------------------------------------------------------------------------------------------------------------

    def ready(self, run: Run) -> bool:
        """Whether everything that it needs is launched."""
        lanes = self.lanes
        return not run.needs or all(lanes[index].launched >= number for index, number in run.needs.items())

    def waits(self, run: Run) -> tuple[Timepoint, ...]:
        """The timepoints of what a ready run needs, without those that are past."""
        if not run.needs:
            return ()
        lanes = self.lanes
        points = [lanes[index].point(number) for index, number in run.needs.items() if lanes[index].done < number]
        return tuple([point for point in points if point is not None])

    def advance(self) -> None:
        """Launch whatever can be, and wake whoever waits for the host. Under the lock."""
        moved = not self._launching
        while moved:
            moved = False
            for lane in self.lanes:
                while lane.held and self._go(lane.held[0]):
                    moved = True
        self.stir()

    def stir(self) -> None:
        """Something moved that no device tells of. Under the lock."""
        if self.sleepers:
            self.moved.notify_all()

    def sleep(self, left: float | None = None) -> None:
        """Until something stirs, at most `left` seconds. Under the lock, which is free meanwhile."""
        self.sleepers += 1
        try:
            self.moved.wait(left)
        finally:
            self.sleepers -= 1

    def _go(self, run: Run) -> bool:
        """Launch the first of a lane, or leave it out; False when it has to stay."""
        if run.state is not RunState.DROPPED and (run.region.by_host or not self.ready(run)):
            return False
        run.lane.held.popleft()
        if run.state is RunState.DROPPED:
            run.lane.launch(run.number, None)
        else:
            self._launch(run)
        return True

    def _launch(self, run: Run) -> None:
        """Give a ready run to its queue. What the queue refuses fails the submission."""
        submission, queue = run.submission, run.lane.queue
        run.state = RunState.TAKEN
        assert queue is not None  # its device was opened before anything was recorded for it
        error, point = self.why_not(run), None
        self._launching = True
        try:
            if error is None:
                point = run.region.launch(queue, self.waits(run), submission.table)
        except Error as refusal:
            error = refusal
        finally:
            self._launching = False
            if point is None:
                self.leave_out(run)
        if point is not None:
            self._launched(run, point.value)
        elif error is not None:
            self.fail(submission, error, trusted=not submission.started_ns)

    def leave_out(self, run: Run) -> None:
        """The next of its lane will not run."""
        run.state = RunState.DROPPED
        run.lane.launch(run.number, None)
        run.submission.unlaunched -= 1

    def _launched(self, run: Run, value: int | None) -> None:
        """A run is the device's, or over."""
        submission = run.submission
        run.lane.launch(run.number, value)
        run.state = RunState.LAUNCHED
        submission.unlaunched -= 1
        if not submission.started_ns:
            submission.started_ns = monotonic_ns()
        if submission.watched and not submission.unlaunched:
            self.watch(submission)
        for storage, access in run.region.shared:
            if access & WRITE:
                storage.current = {run.lane.engine}

    def why_not(self, run: Run) -> Error | None:
        """What is found out only now: a producer failed, or bytes can no longer be trusted."""
        submission = run.submission
        for producer in submission.producers:
            if producer.doomed:
                story = producer.failure.message if producer.failure is not None else "it was cancelled"
                return DeviceError(f"dependency failed: {story}", code=Status.ABORTED)
        try:
            for storage in submission.touches:
                storage.check()
        except Error as error:
            return error
        for storage, _ in run.region.shared:
            if run.lane.engine not in storage.current:
                return DeviceError("what was to bring the shared bytes was cancelled: submit again", code=Status.ABORTED)
        return None

    def finish_host_run(self, run: Run, error: Error | None, *, began: bool) -> None:
        """The host is through with the first of a lane, or could not begin it. Under the lock."""
        run.lane.held.popleft()
        if began:
            self._launched(run, None)
        else:
            self.leave_out(run)
        if error is not None:
            self.fail(run.submission, error, trusted=not run.submission.started_ns)
        self.advance()
        self.look()

    # -- the end of a submission ----------------------------------------------------------------------------------------------

    def look(self, *, poll: bool = False) -> None:
        """Take in what the devices have done; `poll` asks them. Under the lock."""
        lost = False
        for lane in self.lanes:
            if lane.done < lane.launched:
                timeline = lane.queue.timeline if lane.queue is not None else None
                lane.look(0 if timeline is None else timeline.value if poll else timeline._value)
                lost = lost or (lane.done < lane.launched and lane.failure is not None)
        if lost:
            self._fail_lost()
        if self.pending:
            for submission in [each for each in self.pending if each.over()]:
                self._end(submission)

    def _fail_lost(self) -> None:
        """Submissions with a run that a lane's failure has swallowed."""
        for submission in tuple(self.pending):
            for number, run in enumerate(submission.runs):
                failure = run.lane.failure
                if failure is not None and run.state is RunState.LAUNCHED and run.number > run.lane.done and not submission.failure:
                    story = f"executing region {number} of the graph on the lane {run.lane.name}: {failure.message}"
                    self.fail(submission, DeviceError(story, code=failure.code, origin=failure.origin))

    def fail(self, submission: Submission, error: Error, *, trusted: bool = False) -> None:
        """It ends with this cause, unless it has one. What is not launched is dropped; unless `trusted`, its bytes are poisoned."""
        if submission.failure is None:
            submission.failure = error.with_traceback(None)
            if not trusted:
                poison(submission.touches, error)
                if submission.executable is not None:
                    submission.executable.quarantined = error.bare()
                self.quarantined.append((submission.executable, tuple(submission.touches)))
        self.drop(submission)

    def drop(self, submission: Submission) -> None:
        """Launch nothing more of it. Under the lock."""
        for run in submission.runs:
            if run.state is RunState.HELD:
                run.state = RunState.DROPPED
                submission.unlaunched -= 1
                self._unsettled |= {storage for storage, access in run.region.shared if access & WRITE}
        self.advance()
        self.look()

    def _end(self, submission: Submission) -> None:
        self.pending.remove(submission)
        submission.let_go()
        for storage in tuple(self._unsettled):
            if not any(storage in other.touches for other in self.pending):
                storage.planned = set(storage.current)
                self._unsettled.discard(storage)
        self.counters.completions += 1
        if submission.failure is not None:
            submission.outcome = Outcome.FAILED
        elif submission.cancelled:
            submission.outcome = Outcome.CANCELLED
        else:
            submission.outcome = Outcome.DONE
            self.counters.copy(submission.copied)
        callbacks, submission.callbacks = submission.callbacks, []
        for callback in callbacks:
            callback()
        self.stir()

    def wait_for(self, submission: Submission, deadline: float | None) -> bool:
        """Until it is over; False when the deadline (monotonic) passed. Does not raise its failure."""
        while not submission.ended():
            left = None if deadline is None else deadline - monotonic()
            expired = left is not None and left <= 0
            with self.lock:
                point = self._blocker(submission)
                if point is None:
                    self.look()
                    if not submission.ended() and not expired:
                        self.sleep(left)
            if point is not None:
                with suppress(Error):  # time is up, or the lane has failed: what follows tells
                    point.wait(left)
            with self.lock:
                self.look(poll=expired)
            if expired:
                break
        return submission.ended()

    def _blocker(self, submission: Submission) -> Timepoint | None:
        """What of it a device is to bring about next; None when the host is to."""
        if submission.unlaunched and not submission.doomed:
            return None
        for lane, number in submission.places():
            if lane.done < number and lane.failure is None:
                return lane.point(number)
        return None

    def watch(self, submission: Submission) -> None:
        """See to it that somebody looks when it is over, though nobody waits. Under the lock."""
        if submission.outcome is Outcome.PENDING:
            submission.watched = True
            point = self._blocker(submission)
            if point is not None:
                self.watcher.start()
                point.on_done(partial(self.watcher.tell, submission))

    def cancel(self, submission: Submission) -> bool:
        """Drop what is not launched; False when all of it is, or it is over."""
        with self.lock:
            self.look(poll=True)
            if submission.outcome is not Outcome.PENDING or not any(run.state is RunState.HELD for run in submission.runs):
                return False
            submission.cancelled = True
            self.drop(submission)
            return True

    # -- leases of the host -----------------------------------------------------------------------------------------------------

    def lease(self, storage: Storage, writes: bool, deadline: float | None, *, wait: bool) -> None:
        """Wait for conflicting work, and take a host lease in the same step. Raises BusyError, DeadlineError, DeviceLostError."""
        while True:
            with self.lock:
                self.check_open()
                self.look(poll=True)
                storage.check()
                blocking = next((each for each in self.pending if self._excludes(each, storage, writes)), None)
                storage.lend(writes)
                if blocking is None:
                    return
                storage.give_back(writes)
            if not wait:
                raise BusyError("pending work uses the buffer: wait for its completion, or map it without try_")
            if not self.wait_for(blocking, deadline):
                raise DeadlineError("pending work on the buffer did not end in the time given")

    def _excludes(self, submission: Submission, storage: Storage, writes: bool) -> bool:
        return submission.touches.get(storage, False) or (writes and storage in submission.touches)

    def end_lease(self, storage: Storage, writes: bool) -> None:
        """The host is through with it."""
        with self.lock:
            storage.give_back(writes)
            self.stir()

    def bring_to_host(self, storage: Storage) -> int:
        """The engine whose memory the host maps, with the newest bytes in it. The caller has a lease."""
        engine = storage.placement.engines[0]
        if engine not in storage.current:
            Staging(self, storage, engine).run()
            storage.planned.add(engine)
        return engine

    def check_open(self) -> None:
        """Raise ClosedError when the runtime was closed."""
        if self.closed:
            raise ClosedError("the runtime was closed; make a new one")
