"""Semaphores whose waiters read the link: the axis of a queue, and the user's own."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from remora.errors import Error
from remora.hal.semaphore import Semaphore, Waiter
from remora.link.pump import QueuePump

__all__ = ["RemoteSemaphore"]


class RemoteSemaphore(Semaphore):
    """A local proxy: queues signal it when the server's ADVANCE arrives, the host whenever it likes.

    `axis` is set for the timeline of a queue, whose values are the axis's epochs. For others `_epochs` remembers which epoch
    will reach which value, so that a later command can wait for it on the server. `answers(value)` tells whether the queue lane
    alone will bring a value: then the waiting thread reads the lane itself.

    News of several queues arrives in any order. A value below what another queue has reached is old news, and no error; one that is
    not above what the host itself has set (`_floor`) is the mistake that it is with any semaphore.
    """

    __slots__ = ("_epochs", "_floor", "_pump", "answers", "axis")

    def __init__(self, pump: QueuePump, axis: int | None, initial: int = 0, name: str = "semaphore") -> None:
        super().__init__(initial, name)
        self._pump = pump
        self._floor = initial
        self.axis = axis
        self.answers: Callable[[int], bool] = _never
        self._epochs: list[tuple[int, int, int]] = []

    def signal(self, value: int) -> None:
        """See `Semaphore.signal`."""
        with self._pump.step:
            super().signal(value)
            self._floor = value

    def fail(self, error: Error) -> None:
        """See `Semaphore.fail`."""
        with self._pump.step:
            super().fail(error)

    def _signal_from_queue(self, value: int) -> None:
        with self._lock:
            if self._failure is None and self._floor < value:
                self._value = max(self._value, value)
                moved = True
            else:
                moved = False
        if moved:
            self._wake()
        else:
            super()._signal_from_queue(value)

    def _wait_until(self, value: int, deadline: float | None) -> bool:
        if not self._settled(value):
            self._pump.count_round_trip()
            if self.answers(value) and self._pump.lead(self._settled, value, deadline):
                return self._check(value)
        return super()._wait_until(value, deadline)

    def _park(self, waiter: Waiter, deadline: float | None) -> bool:
        if self.answers(waiter.value):
            return self._pump.wait(waiter, deadline)
        return self._pump.sleep(waiter, deadline)

    def _poll(self) -> None:
        self._pump.poll()

    def on(self, value: int, callback: Callable[[], None]) -> None:
        """See `Semaphore.on`. While the callback is owed, the link's thread reads the lane if nobody else does."""
        if self._settled(value):
            callback()
            return

        def settled() -> None:
            self._pump.owe(-1)
            callback()

        with self._pump.step:
            self._pump.owe(1)
            super().on(value, settled)
        self._pump.flush()

    def expect(self, value: int, axis: int, epoch: int) -> None:
        """Remember that `value` is reached when `epoch` on `axis` is done."""
        self._epochs = [entry for entry in self._epochs if entry[0] > self._value]
        self._epochs.insert(bisect_left(self._epochs, (value, axis, epoch)), (value, axis, epoch))

    def entry(self, value: int) -> tuple[int, int] | None:
        """The (axis, epoch) that will reach `value`, or None when no submitted command does."""
        if self.axis is not None:
            return self.axis, value
        at = bisect_left(self._epochs, (value, 0, 0))
        return self._epochs[at][1:] if at < len(self._epochs) else None


def _never(_: int) -> bool:
    return False
