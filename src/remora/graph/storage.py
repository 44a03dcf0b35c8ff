"""An allocation: its memory on each engine, who holds a lease on it, and whether it can be trusted (requirements G02, G03, G08).

Leases, poison and pending work are looked at and changed under the scheduler's lock, so that a guard and a submission never slip
past each other. A lease is on the whole allocation, whatever part of it is mapped.
"""

from __future__ import annotations

import weakref
from itertools import count
from typing import TYPE_CHECKING

from remora.errors import BusyError, ClosedError, DeviceLostError

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterable

    from remora.errors import Error
    from remora.graph.budget import MemoryReservation
    from remora.graph.placement import Placement
    from remora.graph.scheduler import Scheduler
    from remora.hal.buffer import Buffer

__all__ = ["Storage"]

_keys = count(1)


class Storage:
    """`replicas`: HAL memory by engine. `planned` and `current`: the engines whose replica has the newest bytes, once all that is
    planned has run, and once all that is launched has.
    """

    __slots__ = (
        "__weakref__",
        "_finalize",
        "closed",
        "current",
        "external",
        "key",
        "placement",
        "planned",
        "poison",
        "readers",
        "replicas",
        "scheduler",
        "size",
        "writer",
    )

    def __init__(
        self,
        scheduler: Scheduler,
        size: int,
        placement: Placement,
        replicas: dict[int, Buffer],
        reservation: MemoryReservation | None,
        *,
        adopted: bool = False,
    ) -> None:
        """`reservation` is released once the memory was given back, by `close` or because nobody has the allocation any more."""
        self.scheduler = scheduler
        self.key = next(_keys)
        self.size = size
        self.placement = placement
        self.replicas = replicas
        self.planned = set(replicas)
        self.current = set(replicas)
        self.readers = 0
        self.writer = self.external = False
        self.poison: Error | None = None
        self.closed = False
        owned = () if adopted else tuple(replicas.values())
        self._finalize = weakref.finalize(self, _release, scheduler.forgotten, (self.key, size), owned, reservation)
        self._finalize.atexit = False

    def __repr__(self) -> str:
        return f"<Storage {self.key}: {self.size} bytes, {self.placement}{', poisoned' if self.poison else ''}>"

    def close(self) -> None:
        """Give the memory back, which the devices keep until what is in flight is done with it. Safe to repeat."""
        with self.scheduler.lock:
            if self.leased:
                raise BusyError("the buffer is mapped or handed over: close the guard first")
            self.closed = True
        self._finalize()

    @property
    def leased(self) -> bool:
        """Whether the host holds it in some way."""
        return bool(self.readers) or self.writer or self.external

    def check(self) -> None:
        """Raise why it cannot be used. Under the lock."""
        if self.poison is not None:
            raise DeviceLostError(
                f"the buffer's contents are unknown, because work on it failed: {self.poison.message}; allocate a new one",
                origin=self.poison.origin,
            )
        if self.closed:
            raise ClosedError(f"{self!r} was closed; allocate a new one")

    def check_lease(self, writes: bool) -> None:
        """Raise BusyError if a guard or handoff excludes device work that writes, or only reads. Under the lock."""
        if self.writer or self.external or (writes and self.readers):
            holder = "handed over to other code" if self.external else "mapped by the host"
            raise BusyError(f"a buffer of {self.size} bytes is {holder}: close that, then submit again")

    def lend(self, writes: bool) -> None:
        """Take a host lease. Raises BusyError when another excludes it. Under the lock."""
        if self.external or self.writer or (writes and self.readers):
            raise BusyError("the buffer is mapped or handed over already: close that first")
        if writes:
            self.writer = True
        else:
            self.readers += 1

    def give_back(self, writes: bool) -> None:
        """End a host lease. Under the lock."""
        if writes:
            self.writer = False
        else:
            self.readers -= 1

    def wrote(self, engine: int) -> None:
        """An engine's replica is the only one with the newest bytes, now and for what is planned from here on. Under the lock."""
        self.current = {engine}
        self.planned = {engine}


def poison(storages: Iterable[Storage], error: Error) -> None:
    """Nothing may trust these bytes any more; the first cause stays. Under the lock."""
    for storage in storages:
        if storage.poison is None:
            storage.poison = error.bare()


def _release(
    forgotten: deque[tuple[int, int]], told: tuple[int, int], buffers: Iterable[Buffer], reservation: MemoryReservation | None
) -> None:
    """Any thread may come here in the middle of anything, by way of the garbage collector: nothing here waits for others."""
    for buffer in buffers:
        buffer._end()
    forgotten.append(told)
    if reservation is not None:
        reservation.release()
