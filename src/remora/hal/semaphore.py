"""Timeline semaphores and timepoints (requirement H11).

A semaphore is a u64 that only grows. Waiting may begin before anything signals. A failed semaphore stays failed: every wait
for a value it had not reached raises the first cause, now and later. That one rule is how failure travels along dependencies.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, final

from remora.errors import DeadlineError, Error, UsageError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator

__all__ = ["MAX_VALUE", "Points", "Semaphore", "Timepoint", "Waiter"]

MAX_VALUE = (1 << 64) - 1
#: What an operation waits for, and what it signals.
Points: TypeAlias = "tuple[Timepoint, ...]"


class Waiter:
    """One party that waits for a value: a parked thread (`lock` is released to wake it) or a callback."""

    __slots__ = ("callback", "lock", "value")

    def __init__(self, value: int, callback: Callable[[], None] | None = None) -> None:
        self.value = value
        self.callback = callback
        self.lock = threading.Lock()
        if callback is None:
            self.lock.acquire()

    def wake(self) -> None:
        """Wake the thread to look again, from whichever side; nothing happens when it is awake already."""
        try:
            self.lock.release()
        except RuntimeError:
            return

    def fire(self) -> None:
        """Wake the thread or run the callback. Called once, by whoever took the waiter off the list.

        What a callback raises goes to threading.excepthook: the one who signals has no part in it, and others still wait.
        """
        if self.callback is None:
            self.wake()
            return
        try:
            self.callback()
        except Exception as error:
            threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, threading.current_thread())))


class Semaphore:
    """A timeline: a monotonic u64 that the host and queues wait for and signal.

    Example: `ready = device.semaphore(); queue.dispatch(kernel, grid, buffers, wait=ready.at(1)); ready.signal(1)`.
    Any thread may call any method.
    """

    __slots__ = ("__weakref__", "_failure", "_lock", "_value", "_waiters", "name")
    watch: ClassVar[Callable[[Semaphore, int, float | None], bool] | None] = None
    """Does `_wait_until` for a trace, which keeps the time of each wait that blocks."""

    def __init__(self, initial: int = 0, name: str = "semaphore") -> None:
        if not 0 <= initial <= MAX_VALUE:
            raise UsageError(f"a semaphore's value is 0 to 2**64 - 1, not {initial}")
        self.name = name
        self._value = initial
        self._failure: Error | None = None
        self._waiters: list[Waiter] = []
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        state = f"failed: {self._failure}" if self._failure else str(self._value)
        return f"<{type(self).__name__} {self.name} {state}>"

    @property
    def value(self) -> int:
        """The value reached so far; it stays readable after a failure."""
        self._poll()
        return self._value

    @property
    def failure(self) -> Error | None:
        """Why the semaphore will move no more, or None."""
        return self._failure

    def query(self) -> int:
        """The value reached so far. Raises the failure when the semaphore has failed."""
        self._poll()
        if self._failure is not None:
            raise self._failure.copy()
        return self._value

    def at(self, value: int) -> Timepoint:
        """The moment when this semaphore reaches `value`."""
        if not 0 <= value <= MAX_VALUE:
            raise UsageError(f"a semaphore's value is 0 to 2**64 - 1, not {value}")
        return Timepoint(self, value)

    def signal(self, value: int) -> None:
        """Move the semaphore to `value` from the host. Raises UsageError unless it grows, and the failure if there is one."""
        with self._lock:
            if self._failure is not None:
                raise self._failure.copy()
            if not self._value < value <= MAX_VALUE:
                raise UsageError(f"{self.name} is at {self._value}; it can only be signalled to a greater value, not {value}")
            self._value = value
        self._wake()

    def fail(self, error: Error) -> None:
        """End the semaphore: the first cause wins, every present and later wait for an unreached value raises it."""
        with self._lock:
            if self._failure is None:
                self._failure = error
        self._wake()

    def wait(self, value: int, timeout: float | None = None) -> None:
        """Block until `value` is reached. `timeout` is in seconds; None waits as long as it takes, and a lost peer ends it.

        Raises DeadlineError when the time runs out, or the semaphore's failure.
        """
        if self._value >= value:
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        watch = Semaphore.watch
        if not (self._wait_until(value, deadline) if watch is None else watch(self, value, deadline)):
            shown = f"{timeout * 1e3:.0f} ms" if timeout is not None and timeout < 1 else f"{timeout} s"
            raise DeadlineError(f"{self.name} is at {self._value} and did not reach {value} within {shown}")

    def on(self, value: int, callback: Callable[[], None]) -> None:
        """Call `callback()` once, when `value` is reached or can no longer be: at once, or later from the thread that moves it.

        The callback must not block; it finds out which by looking at `value` and `failure`. What it raises goes to
        threading.excepthook.
        """
        waiter = Waiter(value, callback)
        self._waiters.append(waiter)
        if self._settled(value) and self._take(waiter):
            waiter.fire()

    def _settled(self, value: int) -> bool:
        return self._value >= value or self._failure is not None

    def _wait_until(self, value: int, deadline: float | None) -> bool:
        """Wait to a monotonic deadline; False when it passed first. Raises the failure."""
        waiter = Waiter(value)
        try:
            self._waiters.append(waiter)
            while not self._settled(value):
                if not self._park(waiter, deadline):
                    return False
        finally:
            self._take(waiter)
        return self._check(value)

    def _check(self, value: int) -> bool:
        if self._value < value and self._failure is not None:
            raise self._failure.copy()
        return True

    def _park(self, waiter: Waiter, deadline: float | None) -> bool:
        """Sleep until the waiter fires (True) or the deadline passes (False). A remote semaphore reads its link meanwhile."""
        if deadline is None:
            return waiter.lock.acquire()
        return waiter.lock.acquire(timeout=max(0.0, min(deadline - time.monotonic(), threading.TIMEOUT_MAX)))

    def _signal_from_queue(self, value: int) -> None:
        """Move to `value` because an operation that signals it is done. A remote semaphore may hear of them out of order."""
        self.signal(value)

    def _poll(self) -> None:
        """Look for news without waiting. A remote semaphore takes in what its link has received."""

    def _take(self, waiter: Waiter) -> bool:
        """Take a waiter off the list; True for the one caller that did."""
        try:
            self._waiters.remove(waiter)
        except ValueError:
            return False
        return True

    def _reach(self, value: int) -> None:
        """Move to `value` from the one queue that owns this timeline. No check: the owner counts by itself."""
        self._value = value
        if self._waiters:
            self._wake()

    def _wake(self) -> None:
        """Fire everyone whose value is reached, or everyone after a failure."""
        for waiter in tuple(self._waiters):
            if self._settled(waiter.value) and self._take(waiter):
                waiter.fire()


@final
class Timepoint:
    """A value on a semaphore: what queue operations return, wait for and signal.

    Example: `done = queue.dispatch(...); done.wait(timeout=5)`, or in asyncio: `await done`.
    """

    __slots__ = ("semaphore", "value")

    def __init__(self, semaphore: Semaphore, value: int) -> None:
        self.semaphore = semaphore
        self.value = value

    def __repr__(self) -> str:
        return f"<Timepoint {self.semaphore.name} >= {self.value}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timepoint) and other.semaphore is self.semaphore and other.value == self.value

    def __hash__(self) -> int:
        return hash((id(self.semaphore), self.value))

    @property
    def done(self) -> bool:
        """Whether the value is reached. Raises the failure when it never will be."""
        semaphore = self.semaphore
        if semaphore._value < self.value:
            semaphore._poll()
        return semaphore._value >= self.value or (semaphore._check(self.value) and semaphore._value >= self.value)

    def wait(self, timeout: float | None = None) -> None:
        """Block until the value is reached; see `Semaphore.wait`."""
        self.semaphore.wait(self.value, timeout)

    def on_done(self, callback: Callable[[], None]) -> None:
        """Call `callback()` once when the value is reached or can no longer be; see `Semaphore.on`."""
        self.semaphore.on(self.value, callback)

    def __await__(self) -> Generator[Any, None, None]:
        """Wait in asyncio without blocking the loop. Raises the failure; cancelling stops only the waiting."""
        if self.semaphore._value < self.value:
            import asyncio

            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()

            def resolve() -> None:
                if not future.done():
                    future.set_result(None)

            def settled() -> None:
                try:
                    loop.call_soon_threadsafe(resolve)
                except RuntimeError:  # the loop closed meanwhile: nobody is left to tell
                    return

            self.semaphore.on(self.value, settled)
            yield from future
            self.semaphore._check(self.value)
