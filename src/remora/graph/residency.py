"""What stays loaded within a budget: loaded once, leased and pinned, given up when idle and room is needed (requirement G11)."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from remora.errors import DeviceError, UsageError
from remora.graph.budget import MemoryBudget, MemoryReservation

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Lease", "MemoryBudget", "MemoryReservation", "Pin", "ResidencyManager", "ResidencyStatistics"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ResidencyStatistics:
    """What a manager holds and has given up."""

    budget_bytes: int
    reserved_bytes: int
    resources: int
    evictions: int


class _Entry(Generic[T]):
    """One key: being loaded while `reservation` is None."""

    __slots__ = ("drop", "holders", "idle", "kind", "reservation", "value")

    def __init__(self, kind: type[T], idle: Callable[[T], bool] | None, drop: Callable[[T], object]) -> None:
        self.kind = kind
        self.idle = idle
        self.drop = drop
        self.holders = 0  # leases and pins
        self.value: T | None = None
        self.reservation: MemoryReservation | None = None


class ResidencyManager:
    """Values by key, within `limit` bytes. Any thread may call; loaders and drops run without a lock.

    Example:
        residency = ResidencyManager(8 << 30)
        with residency.load("weights", Weights, peak=4 << 30, loader=load_weights, drop=Weights.close) as lease:
            use(lease.value)
    """

    def __init__(self, limit: int) -> None:
        self.budget = MemoryBudget(limit)
        """For runtimes, and for whoever else allocates under the same ceiling."""
        me = weakref.ref(self)  # the budget may outlive the manager, and keeps its ceiling then
        self.budget.evict_with(lambda: (manager := me()) is not None and manager._evict_oldest())
        self._entries: OrderedDict[Hashable, _Entry[object]] = OrderedDict()
        self._changed = threading.Condition(threading.Lock())
        self._evictions = 0

    def load(
        self,
        key: Hashable,
        kind: type[T],
        *,
        peak: int,
        loader: Callable[[], tuple[T, int]],
        drop: Callable[[T], object],
        idle: Callable[[T], bool] | None = None,
    ) -> Lease[T]:
        """A lease on the value of a key, loaded if it is not there: by one caller, while others wait for it.

        `peak` bytes are charged before `loader()` runs, which returns the value and the bytes that stay. `drop(value)` ends it,
        when room is needed, nobody has a lease or pin, and `idle(value)`, if given, says so. A loader that fails leaves
        nothing, and the next caller tries again. Raises what it raises, UsageError for a key that has a value of another kind, and
        as `MemoryBudget.reserve`.
        """
        entry = self._find(key, kind, idle, drop)
        if entry.reservation is not None:
            return Lease(self, entry)
        try:
            reservation = self.budget.reserve(peak)
            try:
                value, resident = loader()
                if not 0 < resident <= peak:
                    drop(value)
                    raise DeviceError(f"the loader of {key!r} says that {resident} bytes stay; {peak} were announced as its peak")
                reservation.shrink(resident)
            except BaseException:
                reservation.release()
                raise
        except BaseException:
            with self._changed:
                del self._entries[key]
                self._changed.notify_all()
            raise
        with self._changed:
            entry.value, entry.reservation = value, reservation
            self._changed.notify_all()
        return Lease(self, entry)

    def _find(self, key: Hashable, kind: type[T], idle: Callable[[T], bool] | None, drop: Callable[[T], object]) -> _Entry[T]:
        """The entry, held once more. One without a reservation is the caller's to load."""
        with self._changed:
            while (found := self._entries.get(key)) is not None:
                if found.kind is not kind:
                    raise UsageError(f"{key!r} is a {found.kind.__name__}, not a {kind.__name__}")
                if found.reservation is not None:
                    self._entries.move_to_end(key)
                    found.holders += 1
                    return cast("_Entry[T]", found)
                self._changed.wait()
            entry = _Entry(kind, idle, drop)
            entry.holders = 1
            self._entries[key] = cast("_Entry[object]", entry)
            return entry

    def evict(self, key: Hashable) -> bool:
        """Give up a key if nobody uses it; whether that was so."""
        with self._changed:
            entry = self._entries.get(key)
            if entry is None or not _evictable(entry):
                return False
            del self._entries[key]
            self._evictions += 1
        self._end(entry)
        return True

    def _evict_oldest(self) -> bool:
        with self._changed:
            key = next((key for key, entry in self._entries.items() if _evictable(entry)), None)
            if key is None:
                return False
            entry = self._entries.pop(key)
            self._evictions += 1
        self._end(entry)
        return True

    def _end(self, entry: _Entry[object]) -> None:
        """Outside the lock, and charged until it is over."""
        try:
            entry.drop(entry.value)
        finally:
            entry.value = None
            if entry.reservation is not None:
                entry.reservation.release()

    def _hold(self, entry: _Entry[T], count: int) -> None:
        with self._changed:
            entry.holders += count

    def statistics(self) -> ResidencyStatistics:
        """What is there now."""
        with self._changed:
            return ResidencyStatistics(self.budget.limit, self.budget.reserved_bytes, len(self._entries), self._evictions)


def _evictable(entry: _Entry[object]) -> bool:
    if entry.reservation is None or entry.holders:
        return False
    return entry.idle is None or entry.idle(entry.value)


class Pin(Generic[T]):
    """Keeps a value from being given up until `close()`."""

    def __init__(self, manager: ResidencyManager, entry: _Entry[T]) -> None:
        self._manager = manager
        self._entry = entry
        self._open = True

    def close(self) -> None:
        """Safe to repeat."""
        if self._open:
            self._open = False
            self._manager._hold(self._entry, -1)

    def __enter__(self) -> Pin[T]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Lease(Pin[T]):
    """A loaded value, which stays while the lease is open. Made by `ResidencyManager.load`."""

    @property
    def value(self) -> T:
        """What the loader made. Raises UsageError when the lease was closed."""
        if not self._open:
            raise UsageError("the lease was closed; load the key again")
        return cast("T", self._entry.value)

    @property
    def bytes(self) -> int:
        """What it is charged with."""
        return 0 if self._entry.reservation is None else self._entry.reservation.size

    def pin(self) -> Pin[T]:
        """Something that keeps the value as well, and may outlive the lease."""
        self._manager._hold(self._entry, 1)
        return Pin(self._manager, self._entry)

    def __enter__(self) -> Lease[T]:
        return self
