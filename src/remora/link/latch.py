"""What a thread waits for that Ctrl-C may interrupt.

CPython raises KeyboardInterrupt in the main thread after any call. Inside `threading.Event` such a moment leaves its lock taken for
good, and whoever sets the event then hangs. Here nothing is shared but lists, whose methods are one step each.
"""

from __future__ import annotations

from _thread import LockType, allocate_lock
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat

__all__ = ["Latch", "Turn"]


class Latch:
    """Something that happens once. Any thread may call; a wait that is interrupted leaves nothing behind."""

    __slots__ = ("_happened", "_waiting")

    def __init__(self) -> None:
        self._happened = False
        self._waiting: list[LockType] = []

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._happened

    def set(self) -> None:
        """It has happened: wake whoever waits. Safe to repeat."""
        self._happened = True
        while self._waiting:
            try:
                self._waiting.pop().release()
            except (IndexError, RuntimeError):  # the waiter has just left
                continue

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until it has happened, at most `timeout` seconds; whether it has."""
        if self._happened:
            return True
        lock = allocate_lock()
        lock.acquire()
        try:
            self._waiting.append(lock)
            if not self._happened:
                lock.acquire(True, -1 if timeout is None else max(0.0, timeout))
        finally:
            if lock in self._waiting:
                self._leave(lock)
        return self._happened

    def _leave(self, lock: LockType) -> None:
        try:
            self._waiting.remove(lock)
        except ValueError:  # `set` took it
            return


class Turn:
    """A lock that is tried, in a way that an interruption cannot take it unseen.

        for mine in turn.attempt:
            if not mine:
                return                  # it is another thread's
            break                       # it is this thread's: `release()` it in a `finally`

    After a call an interruption may come before the result is kept. A `for` keeps what it gets in the same step.
    """

    __slots__ = ("acquire", "attempt", "locked", "release")

    def __init__(self) -> None:
        lock = allocate_lock()
        self.attempt: Iterator[bool] = map(lock.acquire, _never())
        self.acquire: Callable[..., bool] = lock.acquire
        self.release: Callable[[], None] = lock.release
        self.locked: Callable[[], bool] = lock.locked


def _never() -> Iterable[bool]:
    """Not blocking, again and again."""
    return repeat(False)
