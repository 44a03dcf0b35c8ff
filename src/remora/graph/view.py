"""Views: bytes of an allocation, to be bound, copied and mapped (requirements G02, G03)."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from remora.errors import UnsupportedError, UsageError
from remora.hal.buffer import Access, BufferView, Mapping, check_range

if TYPE_CHECKING:
    from types import TracebackType

    from remora.graph.placement import Placement
    from remora.graph.storage import Storage

__all__ = ["GraphBuffer", "Guard", "View"]


class View:
    """`size` bytes from `offset` of an allocation, which it keeps alive. Made by `buffer.view(offset, size)`."""

    __slots__ = ("offset", "size", "storage")

    def __init__(self, storage: Storage, offset: int, size: int) -> None:
        self.storage = storage
        self.offset = offset
        self.size = size

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.size} bytes at {self.offset} of {self.storage!r}>"

    @property
    def key(self) -> int:
        """The allocation."""
        return self.storage.key

    @property
    def placement(self) -> Placement:
        """Where it lives."""
        return self.storage.placement

    def view(self, offset: int = 0, size: int | None = None) -> View:
        """A view inside this one; bounds are checked against this one. Raises UsageError (OUT_OF_RANGE)."""
        offset, size = check_range(offset, size, self.size)
        return View(self.storage, self.offset + offset, size)

    def on(self, engine: int) -> BufferView:
        """The same bytes in an engine's memory. Raises UnsupportedError when it has none of this allocation."""
        try:
            return self.storage.replicas[engine].view(self.offset, self.size)
        except KeyError:
            raise UnsupportedError(
                f"engine {engine} has no memory of this allocation ({self.placement}): place it with shared_with({engine}) "
                "or copy it to a buffer of that engine"
            ) from None

    def read(self, timeout: float | None = None) -> Guard:
        """Map it for reading: waits for pending work that writes the allocation.

        Raises BusyError while it is mapped for writing or handed over, UnsupportedError where the host cannot map it,
        DeviceLostError when its contents are unknown, DeadlineError after `timeout` seconds.
        """
        return Guard(self, Access.READ, timeout, wait=True)

    def write(self, timeout: float | None = None) -> Guard:
        """Map it for reading and writing: waits for all pending work on the allocation. Raises as `read`, also for readers."""
        return Guard(self, Access.READ_WRITE, timeout, wait=True)

    def try_read(self) -> Guard:
        """As `read`, but raises BusyError instead of waiting for pending work."""
        return Guard(self, Access.READ, None, wait=False)

    def try_write(self) -> Guard:
        """As `write`, but raises BusyError instead of waiting for pending work."""
        return Guard(self, Access.READ_WRITE, None, wait=False)


class GraphBuffer(View):
    """A whole allocation. Made by `runtime.allocate(size, placement)`; its memory goes with the last view, or by `close()`."""

    __slots__ = ()

    def close(self) -> None:
        """Give the memory back once pending work is done with it; no view of it can be used any more. Safe to repeat.

        Raises BusyError while it is mapped or handed over.
        """
        self.storage.close()

    def __enter__(self) -> GraphBuffer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Guard:
    """Bytes of an allocation as host memory, and a lease on all of it. Made by `view.read()` and `view.write()`; use `with`.

    Example: `with buffer.write() as guard: guard.view[:4] = b"data"`. Several may read at once, beside devices that read.
    """

    __slots__ = ("_mapping", "_storage", "_view", "_writes")

    def __init__(self, view: View, access: Access, timeout: float | None, *, wait: bool) -> None:
        storage = view.storage
        if not storage.placement.mappable:
            raise UnsupportedError(
                f"the host cannot map memory that is placed on the {storage.placement}: copy it to a HOST_VISIBLE buffer in a graph"
            )
        deadline = None if timeout is None else monotonic() + timeout
        writes = bool(access & Access.WRITE)
        storage.scheduler.lease(storage, writes, deadline, wait=wait)
        self._storage = storage
        self._writes = writes
        self._mapping: Mapping | None = None
        self._view: memoryview | None = None
        try:
            engine = storage.scheduler.bring_to_host(storage)
            left = None if deadline is None else max(0.0, deadline - monotonic())
            self._mapping = view.on(engine).buffer.map(access, view.offset, view.size, timeout=left)
            self._view = self._mapping.view[:]
        except BaseException:
            self._leave(None)
            raise
        if writes:
            with storage.scheduler.lock:
                storage.wrote(engine)

    @property
    def view(self) -> memoryview:
        """The bytes, writable when it was made by `write`."""
        if self._view is None:
            raise UsageError("the guard was closed; map the buffer again")
        return self._view

    def close(self) -> None:
        """Publish what was written, and end the lease. Safe to repeat. What was made over `view` must not be used any more."""
        if self._view is not None:
            self._leave(self._mapping)

    def _leave(self, mapping: Mapping | None) -> None:
        """Written bytes are published before the lease ends, and whoever waits hears of it last."""
        self._view = self._mapping = None
        try:
            if mapping is not None:
                mapping.close()
        finally:
            self._storage.scheduler.end_lease(self._storage, self._writes)

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
