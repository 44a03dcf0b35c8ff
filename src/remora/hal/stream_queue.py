"""Queues of devices that work by themselves: the host begins an operation at its turn, the device does it later, in order.

`HostQueue` sees to turns: what waits for what, and which thread begins an operation. One that has begun is *in flight* until
the device's mark says that it is done: behind each operation the driver has the device write the operation's value to a
place that the host can read (`_mark`, `_marked`). Whoever waits looks at the mark, for `SPIN_S` without a pause; a thread of
the queue's own looks while somebody waits for what has not begun or has left a callback, or an operation signals another
semaphore. When nobody wants to know, nobody looks.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NamedTuple, final

from remora.errors import Error, OutOfMemoryError
from remora.hal.host_queue import INLINE_NS, HostQueue, Step, fail_all, signal_all
from remora.hal.semaphore import Points, Semaphore, Waiter

if TYPE_CHECKING:
    from remora.hal.device import Device
    from remora.hal.file import HostFile
    from remora.hal.memory import LateMemory, Memory
    from remora.hal.records import EventRecord

__all__ = ["StreamQueue"]

#: How long a thread looks at the mark without a pause, in seconds.
SPIN_S = 1e-3
#: Pauses after that: a twentieth of the time that it has looked in vain, between these two, in seconds.
LEAST_PAUSE_S, MOST_PAUSE_S = 20e-6, 500e-6
#: Operations in flight above which a submission waits for the oldest: their memory is held, and a device's own queue is finite.
MAX_FLYING = 1024


class _Flying(NamedTuple):
    """An operation that has begun. `args` keep its memory and code."""

    value: int
    signal: Points
    args: tuple[Any, ...]
    after: Callable[[], None] | None
    """What the host does once the device has done its part."""


@final
class StreamTimeline(Semaphore):
    """The timeline of a queue whose device has to be asked."""

    __slots__ = ("_queue",)

    def __init__(self, queue: StreamQueue, name: str) -> None:
        super().__init__(name=name)
        self._queue = queue

    def on(self, value: int, callback: Callable[[], None]) -> None:
        """See `Semaphore.on`."""
        super().on(value, callback)
        self._queue._watch()

    def _park(self, waiter: Waiter, deadline: float | None) -> bool:
        if self._queue._look_for(waiter, deadline):
            return True
        self._queue._watch()
        return super()._park(waiter, deadline)

    def _poll(self) -> None:
        self._queue._retire()


class StreamQueue(HostQueue):
    """A queue whose driver gives `_submit` work that only begins an operation, and overrides the four methods at the end."""

    __slots__ = ("_after", "_asking", "_begun", "_flying", "_gone", "_retiring", "_retiring_thread", "_watched", "_watcher")

    def __init__(self, device: Device, ordinal: int) -> None:
        super().__init__(device, ordinal)
        self.timeline = StreamTimeline(self, f"queue {ordinal}")
        self._flying: deque[_Flying] = deque()
        self._begun = 0
        self._after: Callable[[], None] | None = None
        self._asking = threading.Lock()  # held while the device is asked for its mark or a fault
        self._gone = False  # the queue is closed: the driver may give back what would be asked
        self._retiring = threading.Lock()
        self._retiring_thread = 0  # a callback of an operation that retires may look at the queue again
        self._watched = threading.Event()
        self._watcher: threading.Thread | None = None

    # -- beginning ------------------------------------------------------------------------------------------------------------

    def _perform(self, work: Callable[..., None], args: tuple[Any, ...], signal: Points, value: int) -> None:
        failure = self._begin(work, args, signal, value)
        if failure is not None and failure.__cause__ is not None and not isinstance(failure.__cause__, Exception):
            raise failure.__cause__  # an interrupt of the submitting thread goes on its way

    def _work(self) -> None:
        while (operation := self._next()) is not None:
            if self._wait_for(operation):
                self._begin(operation.work, operation.args, operation.signal, operation.value)
            operation = None

    def _begin(self, work: Callable[..., None], args: tuple[Any, ...], signal: Points, value: int) -> Error | None:
        """The operation's turn has come: what went wrong. One thread at a time is here."""
        self._after = None
        failure = self._attempt(self._start, (work, args, value))
        if failure is not None:
            self.drain()
            self._fail(failure, signal, value)
            return failure
        self._flying.append(_Flying(value, signal, args, self._after))
        self._begun = value
        if signal or self.timeline._waiters:
            self._watch()
        if len(self._flying) > MAX_FLYING:
            self._wait_for_room()
        return None

    def _start(self, work: Callable[..., None], args: tuple[Any, ...], value: int) -> None:
        work(*args)
        if self._gone:  # the work closed the device
            raise self._closed_error()
        self._mark(value)

    def _wait_for_room(self) -> None:
        self._retire()
        while len(self._flying) > MAX_FLYING // 2 and self.timeline._failure is None:
            sleep(LEAST_PAUSE_S)
            self._retire()

    def drain(self) -> None:
        """Wait until the device has done all that was begun, and retire it. For work that the host does itself."""
        if self._gone:
            return
        fault = self._synchronize()
        if fault is not None:
            self._lost(fault)
        while self._flying and self._retiring_thread != threading.get_ident():
            self._retire()

    def _run_call(self, call: Callable[[], object]) -> None:
        self.drain()
        super()._run_call(call)

    def _move_file(self, move: Callable[[HostFile, int], None], file: HostFile, file_offset: int) -> None:
        self.drain()
        super()._move_file(move, file, file_offset)

    def _event_step(self, record: EventRecord) -> Step:
        return Step(self._run_event, (super()._event_step(record),), INLINE_NS)

    def _run_event(self, step: Step) -> None:
        self.drain()
        step.work(*step.args)

    def _make(self, memory: LateMemory) -> None:
        with suppress(OutOfMemoryError):
            super()._make(memory)
            return
        self.drain()  # what was deallocated before goes back once the device is done with it
        super()._make(memory)

    def _give_back(self, held: list[Memory]) -> None:
        self._after = partial(super()._give_back, held)

    def _settled(self) -> None:
        """See `HostQueue._settled`: a profiled operation is waited for."""
        self.drain()

    # -- done -----------------------------------------------------------------------------------------------------------------

    def _retire(self) -> None:
        """Take what the device has done out of flight, in order, and tell who waits; nothing while another thread does."""
        if self._retiring_thread != threading.get_ident() and self._retiring.acquire(blocking=False):
            try:
                self._take_done()
            finally:
                self._retiring.release()

    def _take_done(self) -> None:
        """`_retiring` is held."""
        self._retiring_thread = threading.get_ident()
        try:
            with self._asking:
                done = 0 if self._gone else self._marked()
            while self._flying and self._flying[0].value <= done:
                operation: _Flying | None = self._flying[0]
                assert operation is not None
                value, signal = operation.value, operation.signal
                try:
                    if operation.after is not None:
                        operation.after()
                finally:  # until now it was in flight for a thread that drains; its memory goes before anyone hears that it is done
                    operation = None
                    self._flying.popleft()
                if signal:
                    signal_all(signal)
                self.timeline._reach(value)
        finally:
            self._retiring_thread = 0

    def _lost(self, fault: Error) -> None:
        """The device will do nothing more: what it has not done fails, and everything behind it."""
        if self._retiring_thread == threading.get_ident():
            flying = self._take_all()
        else:
            with self._retiring:
                self._take_done()
                flying = self._take_all()
        first = flying[0].value if flying else self._begun + 1
        self._fail(fault, (), first)
        for operation in flying:
            fail_all(operation.signal, fault)

    def _take_all(self) -> tuple[_Flying, ...]:
        flying = tuple(self._flying)
        self._flying.clear()
        return flying

    def linger(self, value: int, deadline: float) -> None:
        """Look at the mark, without a pause until the operation with this value is done or a monotonic deadline has passed."""
        while self._flying and self.timeline._value < value <= self._begun:
            self._retire()
            if monotonic() >= deadline:
                return

    # -- looking --------------------------------------------------------------------------------------------------------------

    def _look_for(self, waiter: Waiter, deadline: float | None) -> bool:
        """A waiting thread: look until the waiter fires; False when the deadline passed, or its operation has not begun."""
        began = now = monotonic()
        while self._flying and waiter.value <= self._begun and (deadline is None or now < deadline):
            self._retire()
            pause = pause_after(now - began)
            if pause and deadline is not None:
                pause = min(pause, deadline - now)
            if waiter.lock.acquire(timeout=pause) if pause else waiter.lock.acquire(blocking=False):
                return True
            self._look_for_fault()
            now = monotonic()
        return waiter.lock.acquire(blocking=False)

    def _look_for_fault(self) -> None:
        with self._asking:
            fault = None if self._gone else self._fault()
        if fault is not None:
            self._lost(fault)

    def _watch(self) -> None:
        """See to it that a thread looks until nobody wants to know any more."""
        if self._flying:
            if self._watcher is None:
                with self._lock:
                    if self._watcher is None:
                        name = f"remora queue {self.ordinal} watcher"
                        self._watcher = threading.Thread(target=self._look_on, name=name, daemon=True)
                        self._watcher.start()
            self._watched.set()

    def _look_on(self) -> None:
        """The watcher."""
        while True:
            self._watched.wait()
            self._watched.clear()
            if self._closing:
                return
            since = monotonic()
            while self._flying and self._wanted() and not self._gone:
                before = self._oldest()
                self._retire()
                self._look_for_fault()
                if self._oldest() != before:
                    since = monotonic()
                sleep(pause_after(monotonic() - since) or LEAST_PAUSE_S)

    def _oldest(self) -> int:
        """The first operation in flight, 0 when another thread has retired them all."""
        try:
            return self._flying[0].value
        except IndexError:
            return 0

    def _wanted(self) -> bool:
        return bool(self.timeline._waiters) or any(operation.signal for operation in tuple(self._flying))

    # -- closing --------------------------------------------------------------------------------------------------------------

    def _close(self) -> None:
        self._stop()
        if self.timeline._failure is None:
            self.drain()
        super()._close()
        with self._asking:
            self._gone = True
        self._watched.set()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join()

    # -- the driver's ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def _mark(self, value: int) -> None:
        """Driver: have the device write this value once everything begun before is done."""

    @abstractmethod
    def _marked(self) -> int:
        """Driver: the value that the device wrote last. Cheap."""

    @abstractmethod
    def _fault(self) -> Error | None:
        """Driver: why the device will do nothing more, if it has failed. Releases the interpreter for a moment."""

    @abstractmethod
    def _synchronize(self) -> Error | None:
        """Driver: block until everything begun is done; why it never will be, if it has failed."""


def pause_after(seconds: float) -> float:
    """How long to rest after looking in vain for so long, in seconds: a short wait is looked through."""
    return 0.0 if seconds < SPIN_S else min(max(seconds / 20, LEAST_PAUSE_S), MOST_PAUSE_S)
