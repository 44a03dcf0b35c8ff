"""What a submission becomes, as its submitter sees it (requirements G07, G08)."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Any

from remora.errors import BusyError, DeadlineError, DeviceError, Status
from remora.graph.submission import Outcome

if TYPE_CHECKING:
    from types import TracebackType

    from remora.graph.scheduler import Scheduler
    from remora.graph.submission import Submission

__all__ = ["Completion", "CompletionProfile"]


@dataclass(frozen=True, slots=True)
class CompletionProfile:
    """Times of a submission in microseconds of this process's clock, as far as the host has seen.

    `elapsed_us`: from its acceptance to its end, or to now. `queue_us`: until the first of it was launched; None if nothing was.
    """

    elapsed_us: float
    queue_us: float | None


class Completion:
    """One submission. While it is alive and not closed its graph's slot is taken; dropping it cancels nothing. Any thread may call.

    Example: `done = graph.submit(); done.wait(timeout=5)`, or in asyncio: `await done`.
    """

    __slots__ = ("__weakref__", "_scheduler", "_submission", "closed")

    def __init__(self, scheduler: Scheduler, submission: Submission) -> None:
        self._scheduler = scheduler
        self._submission = submission
        self.closed = False
        """Whether `close()` was called."""

    def __repr__(self) -> str:
        return f"<Completion {self._submission.outcome.value}>"

    @property
    def done(self) -> bool:
        """Whether it has ended: by success, failure or cancellation."""
        submission = self._submission
        if submission.outcome is Outcome.PENDING:
            with self._scheduler.lock:
                self._scheduler.look(poll=True)
        return submission.outcome is not Outcome.PENDING

    def wait(self, timeout: float | None = None) -> None:
        """Block until it has ended; `timeout` in seconds. A timeout changes nothing: it may be waited for again.

        Raises DeadlineError when the time runs out, and what `result` raises.
        """
        deadline = None if timeout is None else monotonic() + timeout
        if not self._scheduler.wait_for(self._submission, deadline):
            raise DeadlineError(f"the submission did not end within {timeout:g} s; it goes on")
        self.result()

    def result(self) -> None:
        """Nothing when it ended well. Raises its failure, DeviceError (CANCELLED) when cancelled, BusyError before the end."""
        if not self.done:
            raise BusyError("the submission has not ended: wait() for it")
        submission = self._submission
        if submission.failure is not None:
            raise submission.failure.copy()
        if submission.outcome is Outcome.CANCELLED:
            raise DeviceError("the submission was cancelled", code=Status.CANCELLED)

    def cancel(self) -> bool:
        """Run no more of it than what the devices have already; that is drained. False when they have all of it, or it ended."""
        return self._scheduler.cancel(self._submission)

    def profile(self) -> CompletionProfile:
        """How long it took, or has taken so far."""
        submission = self._submission
        end = submission.ended_ns or monotonic_ns()
        started = submission.started_ns
        queued = (started - submission.accepted_ns) / 1e3 if started else None
        return CompletionProfile((end - submission.accepted_ns) / 1e3, queued)

    def close(self) -> None:
        """Give the slot back, whatever becomes of the submission. Safe to repeat."""
        self.closed = True

    def __enter__(self) -> Completion:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __await__(self) -> Generator[Any, None, None]:
        """Wait in asyncio without blocking the loop. Raises as `wait`; cancelling the task stops only the waiting."""
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def resolve() -> None:
            if not future.done():
                future.set_result(None)

        def ended() -> None:
            try:
                loop.call_soon_threadsafe(resolve)
            except RuntimeError:  # the loop closed meanwhile: nobody is left to tell
                return

        scheduler, submission = self._scheduler, self._submission
        with scheduler.lock:
            scheduler.look(poll=True)
            if submission.outcome is Outcome.PENDING:
                submission.callbacks.append(ended)
                scheduler.watch(submission)
            else:
                future.set_result(None)
        yield from future
        self.result()
