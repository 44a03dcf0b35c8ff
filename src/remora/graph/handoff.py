"""Buffers in the hands of other code, inside the order of work (requirement G10).

The block runs on the caller's thread when all pending work on the buffers is done, and nothing else gets at them until it has ended
and its fence has passed. The fence runs on every way out: what other code has begun on a device must be over before anybody else
continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from remora.errors import BusyError, DeadlineError, DeviceLostError, Error, UsageError
from remora.graph.storage import Storage, poison
from remora.hal.buffer import Access, BufferView

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import TracebackType

    from remora.graph.runtime import Runtime
    from remora.graph.view import View

__all__ = ["Handoff"]


class Handoff:
    """Made by `runtime.handoff((view, access), ...)`; use it with `with`.

    Example:
        with runtime.handoff((a, Access.READ), (b, Access.WRITE)) as given:
            with given.memory(0) as left, given.memory(1) as right:
                np.negative(np.frombuffer(left, "f4"), out=np.frombuffer(right, "f4"))
    `given.views` are the HAL's, for code that works on the device by itself. `fence()` waits for what such code began; without one
    all queues of the devices are waited for. When the fence fails the buffers are poisoned and the block raises DeviceLostError. An
    error of the block itself passes through and poisons nothing.
    Entering raises BusyError while a guard or another handoff has one of the buffers, DeadlineError after `timeout` seconds.
    """

    def __init__(
        self, runtime: Runtime, uses: Sequence[tuple[View, Access]], fence: Callable[[], object] | None, timeout: float | None
    ) -> None:
        for view, _ in uses:
            if not runtime.owns(view):
                raise UsageError("the view belongs to another runtime; use buffers of this one")
        self._scheduler = runtime.scheduler
        self._uses = tuple(uses)
        self._fence = fence
        self._timeout = timeout
        self._storages: dict[Storage, bool] = {}
        for view, access in uses:
            self._storages[view.storage] = self._storages.get(view.storage, False) or bool(access & Access.WRITE)
        self._entered = False
        self.views: tuple[BufferView, ...] = ()
        """The buffers, during the block."""

    def memory(self, index: int) -> AbstractContextManager[memoryview]:
        """The bytes of one of the uses as host memory, during a `with` block of its own."""
        from remora.graph.scoped import host_memory

        if not self.views:
            raise UsageError("memory() is for inside the handoff's block")
        return host_memory(self.views[index], self._uses[index][1])

    def __enter__(self) -> Handoff:
        if self._entered:
            raise UsageError("a handoff is entered once; make another one")
        self._reserve()
        self._entered = True
        try:
            engines = [self._scheduler.bring_to_host(view.storage) for view, _ in self._uses]
            self.views = tuple(view.on(engine) for (view, _), engine in zip(self._uses, engines, strict=True))
        except BaseException:
            self._give_back()
            raise
        return self

    def _reserve(self) -> None:
        """All of the buffers in one step, once no pending work uses any of them."""
        scheduler = self._scheduler
        deadline = None if self._timeout is None else monotonic() + self._timeout
        while True:
            with scheduler.lock:
                scheduler.check_open()
                scheduler.look(poll=True)
                for storage in self._storages:
                    storage.check()
                    if storage.leased:
                        raise BusyError("the buffer is mapped or handed over already: close that first")
                blocking = next((each for each in scheduler.pending if not each.touches.keys().isdisjoint(self._storages)), None)
                if blocking is None:
                    for storage in self._storages:
                        storage.external = True
                    return
            if not scheduler.wait_for(blocking, deadline):
                raise DeadlineError("pending work on the buffers did not end in the time given")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._run_fence()
        except BaseException as failure:
            lost = (
                failure if isinstance(failure, Error) else DeviceLostError(f"the fence raised {type(failure).__name__}: {failure}")
            )
            with self._scheduler.lock:
                poison(self._storages, lost)
            if isinstance(failure, Exception):
                raise DeviceLostError(f"the fence of a handoff failed, its buffers are lost: {lost.message}") from failure
            raise
        else:
            with self._scheduler.lock:
                for storage, writes in self._storages.items():
                    if writes:
                        storage.wrote(storage.placement.engines[0])
        finally:
            self._give_back()

    def _run_fence(self) -> None:
        if self._fence is not None:
            self._fence()
            return
        for device in {view.buffer.device for view in self.views}:
            for queue in device.queues:
                queue.wait_idle()

    def _give_back(self) -> None:
        self.views = ()
        with self._scheduler.lock:
            for storage in self._storages:
                storage.external = False
            self._scheduler.stir()
