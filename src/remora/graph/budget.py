"""A ceiling for memory that several may share: charged before memory is made, given back after it is gone (requirement G11)."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from remora.errors import BusyError, Status, UsageError

if TYPE_CHECKING:
    from types import TracebackType

    from remora.hal.buffer import Buffer

__all__ = ["MemoryBudget", "MemoryReservation"]


class MemoryBudget:
    """`limit` bytes. Any thread may call. Example: `budget = MemoryBudget(8 << 30); RuntimeOptions(memory_budget=budget)`.

    It counts what was asked for, not what allocators round it up to.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise UsageError(f"a budget has at least one byte, not {limit}")
        self.limit = limit
        self._lock = threading.RLock()  # the garbage collector may release a reservation in here
        self._reserved = 0
        self._covered: weakref.WeakSet[Buffer] = weakref.WeakSet()
        self._make_room: Callable[[], bool] | None = None

    def __repr__(self) -> str:
        return f"<MemoryBudget {self._reserved:,} of {self.limit:,} bytes reserved>"

    @property
    def reserved_bytes(self) -> int:
        """What is charged now."""
        return self._reserved

    def reserve(self, size: int) -> MemoryReservation:
        """Charge `size` bytes, after giving up what is idle and resident if that makes room.

        Raises UsageError (OUT_OF_RANGE) for more than the limit, BusyError when there is no room now.
        """
        if not 0 <= size <= self.limit:
            raise UsageError(f"{size:,} bytes can never be reserved: the budget is {self.limit:,}", code=Status.OUT_OF_RANGE)
        while not self._take(size):
            if self._make_room is None or not self._make_room():
                raise BusyError(f"{size:,} bytes do not fit: {self._reserved:,} of {self.limit:,} are reserved; free some first")
        return MemoryReservation(self, size)

    def cover(self, buffer: Buffer) -> None:
        """Say that a HAL buffer is charged already, so that adopting it charges nothing more."""
        self._covered.add(buffer)

    def covers(self, buffer: Buffer) -> bool:
        """Whether `cover` was called for it."""
        return buffer in self._covered

    def evict_with(self, make_room: Callable[[], bool]) -> None:
        """`make_room()` gives up one idle thing and tells whether it found one. For one residency manager."""
        self._make_room = make_room

    def _take(self, size: int) -> bool:
        with self._lock:
            if self._reserved + size > self.limit:
                return False
            self._reserved += size
            return True

    def _give_back(self, size: int) -> None:
        with self._lock:
            self._reserved -= size


class MemoryReservation:
    """A charge, until `release()`, `with`, or until nobody has it."""

    __slots__ = ("__weakref__", "_finalize", "budget", "size")

    def __init__(self, budget: MemoryBudget, size: int) -> None:
        self.budget = budget
        self.size = size
        self._finalize = weakref.finalize(self, budget._give_back, size)
        self._finalize.atexit = False

    def shrink(self, size: int) -> None:
        """Keep `size` bytes of it. Raises UsageError for more than it has."""
        if not 0 <= size <= self.size:
            raise UsageError(f"a reservation of {self.size} bytes cannot become one of {size}")
        if self._finalize.detach() is not None:
            self.budget._give_back(self.size - size)
            self.size = size
            self._finalize = weakref.finalize(self, self.budget._give_back, size)
            self._finalize.atexit = False

    def release(self) -> None:
        """Give the bytes back. Safe to repeat."""
        self._finalize()

    def __enter__(self) -> MemoryReservation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()
