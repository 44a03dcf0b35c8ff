"""Buffers: device memory with a size, views into it, and host mappings (requirements H16, H20)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import IntFlag
from typing import TYPE_CHECKING, Any, final

from remora.errors import ClosedError, Status, UnsupportedError, UsageError
from remora.hal.dlpack import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from remora.errors import Error
    from remora.hal.device import Device
    from remora.hal.memory import Memory
    from remora.hal.memory_file import MemoryPlace
    from remora.hal.page_table import PageTable

__all__ = ["Access", "Buffer", "BufferView", "Mapping", "check_range"]


class Access(IntFlag):
    """How a binding or a mapping touches memory.

    Example: `with buffer.map(Access.WRITE | Access.DISCARD) as mapping: mapping.view[:] = data`.
    """

    READ = 1
    WRITE = 2
    READ_WRITE = 3
    DISCARD = 4
    """With WRITE, for a mapping: the old contents are not wanted."""


class BufferView:
    """`size` bytes from `offset` in a buffer; usable wherever a buffer is. Made by `buffer.view(offset, size)`.

    Example: `queue.fill(buffer.view(0, 64), b"x")` fills the first 64 bytes.
    """

    __slots__ = ("buffer", "offset", "size")

    def __init__(self, buffer: Buffer, offset: int, size: int) -> None:
        self.buffer = buffer
        self.offset = offset
        self.size = size

    def __repr__(self) -> str:
        return f"<BufferView {self.size} bytes at {self.offset} of {self.buffer!r}>"

    def view(self, offset: int = 0, size: int | None = None) -> BufferView:
        """A view inside this view; bounds are checked against this view."""
        offset, size = check_range(offset, size, self.size)
        return BufferView(self.buffer, self.offset + offset, size)


class Buffer(ABC):
    """Memory of a device. Made by `device.allocate(size)` or `device.upload(data)`, given back by `close()` or `with`.

    `read`, `write` and `map` are ordered after everything submitted so far to the device's first queue.
    Example: `buffer = device.upload(b"abcd"); assert bytes(buffer.read()) == b"abcd"`.
    """

    __slots__ = ("__weakref__", "_closed", "_guarded", "_late", "_maps", "_pages", "device", "failure", "size")
    offset = 0

    def __init__(self, device: Device, size: int) -> None:
        self.device = device
        self.size = size
        self.failure: Error | None = None
        """Why it cannot be used, beside having been closed: it could not be made, or was deallocated."""
        self._closed = False
        self._guarded = False  # whether a use has to be looked at: it is closed, or its memory is virtual
        self._pages: PageTable | None = None  # of an address range (hal.virtual_memory)
        self._late = False  # whether it waits for `Queue.provide`
        self._maps: list[Mapping] = []

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.size} bytes{' closed' if self._closed else ''}>"

    @property
    def buffer(self) -> Buffer:
        """Itself: a buffer and a view of one answer alike."""
        return self

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self._closed

    def view(self, offset: int = 0, size: int | None = None) -> BufferView:
        """`size` bytes from `offset` (to the end if None). Raises UsageError when that is not inside the buffer."""
        offset, size = check_range(offset, size, self.size)
        return BufferView(self, offset, size)

    def read(self, offset: int = 0, size: int | None = None, *, timeout: float | None = None) -> memoryview:
        """A fresh writable copy of the contents as bytes; blocks until it is here. Cast it: `np.frombuffer(b.read(), "f4")`."""
        offset, size = check_range(offset, size, self.size)
        into = memoryview(bytearray(size))
        self.read_into(into, offset, timeout=timeout)
        return into

    def read_into(self, into: Any, offset: int = 0, *, timeout: float | None = None) -> None:
        """Copy `len(into)` bytes from `offset` into a writable contiguous buffer-protocol object or DLPack tensor."""
        self.device.queue.read(self, into, offset).wait(timeout)

    def write(self, data: Any, offset: int = 0, *, timeout: float | None = None) -> None:
        """Copy a contiguous buffer-protocol object or CPU DLPack tensor to `offset`; blocks until it is there."""
        self.device.queue.update(self, data, offset).wait(timeout)

    @final
    def map(
        self, access: Access = Access.READ_WRITE, offset: int = 0, size: int | None = None, *, timeout: float | None = None
    ) -> Mapping:
        """The contents as host memory, until the mapping is closed; use it with `with`. Written bytes are visible afterwards.

        A buffer of another machine is copied here and, if writable, back: `flush` and `invalidate` do that in between. With DISCARD
        the old contents need not be there, and what is not written is undefined. Raises UsageError for a range outside the buffer,
        and when a writable mapping would overlap another mapping.
        """
        offset, size = check_range(offset, size, self.size)
        self._check_open()
        check_access(access)
        for other in self._maps:
            if offset < other.offset + other.size and other.offset < offset + size and (access | other.access) & Access.WRITE:
                raise UsageError(
                    f"bytes {offset} to {offset + size} overlap a live mapping of {other.offset} to {other.offset + other.size}, "
                    "and one of the two is writable: close the first one",
                    code=Status.FAILED_PRECONDITION,
                )
        hold = None if self._pages is None else self._pages.enter(offset, size, access & Access.READ_WRITE)
        try:
            mapping = Mapping(self, access, offset, self._map(access, offset, size, timeout))
            self._maps.append(mapping)
        finally:
            if hold is not None:
                hold.over = True
        return mapping

    def close(self) -> None:
        """Give the memory back once everything submitted so far is done with it. Safe to repeat.

        Raises UsageError while a mapping is live.
        """
        if self._closed:
            return
        if self._maps:
            raise UsageError("the buffer is mapped: close the mapping first", code=Status.FAILED_PRECONDITION)
        if self._pages is not None and not self.device._ended:
            self._pages.claim_end()
        self._closed = self._guarded = True
        self._release()

    def _end(self) -> None:
        """Close it, whatever still uses it. Does not block, and publishes nothing of what was written through a mapping."""
        if not self._closed:
            self._closed = self._guarded = True
            for mapping in self._maps:
                mapping._let_go()
            self._maps.clear()
            self._abandon()

    def _abandon(self) -> None:
        """Driver: what `_release` does, where that may block and this must not."""
        self._release()

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close it; with an error on its way, which a second one must not hide, although it is mapped."""
        if kind is None or not self._maps:
            self.close()
        else:
            self._end()

    def _check_open(self) -> None:
        """Raise why it cannot be used; `_closed` is set whenever there is a reason."""
        if self.failure is not None:
            raise self.failure.copy()
        if self._closed:
            raise ClosedError(f"{self!r} was closed; allocate a new one")

    def check_use(self, offset: int, size: int, access: Access) -> None:
        """Raise ClosedError when it was closed, UsageError when its memory is virtual and these bytes cannot be used so now."""
        self._check_open()
        if self._pages is not None:
            self._pages.check(offset, size, access)

    def fail(self, error: Error) -> None:
        """Driver: its memory will never be there; every use raises why."""
        self.failure = error
        self._end()

    def host_memory(self) -> memoryview | None:
        """The memory itself, writable, where the host can address it; None elsewhere. Nothing is ordered: the caller sees to it."""
        return None

    def memory_at_turn(self) -> Callable[[], memoryview] | None:
        """What gives `host_memory` when an operation's turn has come, though the buffer may be closed by then; None elsewhere."""
        memory = self.host_memory()
        return None if memory is None else lambda: memory

    def place_at_turn(self) -> Callable[[], MemoryPlace] | None:
        """What tells, like `memory_at_turn`, where the memory is in a file that others can map; None where it is in none."""
        return None

    @property
    def holder(self) -> object:
        """What lives exactly as long as the memory: open buffers and operations in flight hold it. For weak references."""
        return self

    @abstractmethod
    def _map(self, access: Access, offset: int, size: int, timeout: float | None) -> memoryview:
        """Driver: host memory that shows the range, after waiting for the first queue."""

    def _flush(self, mapping: Mapping, offset: int, size: int, timeout: float | None) -> None:
        """Driver: what was written to a part of the mapping is on the device. Nothing to do where the mapping is the memory."""
        self._check_open()

    def _invalidate(self, mapping: Mapping, offset: int, size: int, timeout: float | None) -> None:
        """Driver: a part of the mapping shows what the first queue has done. Where the mapping is the memory, waiting does it."""
        self.device.queue.wait_idle(timeout)

    @abstractmethod
    def _unmap(self, mapping: Mapping) -> None:
        """Driver: make what was written through the mapping visible."""

    def _take(self) -> Memory:
        """Driver: its memory, which is the caller's alone from now on, beside by what was submitted before."""
        raise UnsupportedError(f"{self.device.uri} gives memory back at close() only")

    @abstractmethod
    def _release(self) -> None:
        """Driver: give the memory back when no submitted operation needs it any more."""


@final
class Mapping:
    """A range of a buffer as host memory. Made by `buffer.map()`; closed by `with` or `close()`.

    Example: `with buffer.map() as mapping: mapping.view[0] = 7`.
    """

    __slots__ = ("_memory", "_view", "access", "buffer", "offset", "size")

    def __init__(self, buffer: Buffer, access: Access, offset: int, view: memoryview) -> None:
        self.buffer = buffer
        self.access = access
        self.offset = offset
        self.size = view.nbytes
        self._memory = view  # writable, whatever the access
        self._view: memoryview | None = view if access & Access.WRITE else view.toreadonly()

    @property
    def view(self) -> memoryview:
        """The bytes, writable when the mapping is. Views made from it must not be used after `close()`."""
        if self._view is None:
            raise ClosedError("the mapping was closed; map the buffer again")
        return self._view

    def flush(self, offset: int = 0, size: int | None = None, *, timeout: float | None = None) -> None:
        """Publish what was written to a part of the mapping, now: what is submitted afterwards sees it. The mapping stays.

        Raises UsageError for a part outside the mapping, and on a mapping without Access.WRITE.
        """
        offset, size = self._part(offset, size, Access.WRITE)
        self.buffer._flush(self, offset, size, timeout)

    def invalidate(self, offset: int = 0, size: int | None = None, *, timeout: float | None = None) -> None:
        """Show in a part of the mapping what was submitted so far to the first queue; what was written and not flushed may be lost.

        Raises UsageError for a part outside the mapping, and on a mapping without Access.READ.
        """
        offset, size = self._part(offset, size, Access.READ)
        self.buffer._invalidate(self, offset, size, timeout)

    def tensor(self, dtype: str = "u1", shape: tuple[int, ...] | None = None) -> Tensor:
        """The bytes as an array for `np.from_dlpack` or `np.asarray`. `dtype` is like "f4" or "i8"; `shape` counts items."""
        return Tensor(self.view, dtype, shape)

    def close(self) -> None:
        """End the mapping and publish what was written. Safe to repeat."""
        if self._view is not None:
            try:
                self.buffer._unmap(self)
            finally:
                if self in self.buffer._maps:  # not when the buffer ended meanwhile
                    self.buffer._maps.remove(self)
                self._let_go()

    def _let_go(self) -> None:
        self._view = None
        self._memory = memoryview(b"")

    def _part(self, offset: int, size: int | None, access: Access) -> tuple[int, int]:
        """A range of the mapping, which must be open and have this access."""
        offset, size = check_range(offset, size, self.view.nbytes)
        if not self.access & access:
            raise UsageError(f"the mapping has no Access.{access.name}: map the range with it", code=Status.FAILED_PRECONDITION)
        return offset, size

    def __enter__(self) -> Mapping:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def check_access(access: Access) -> None:
    """Raise UsageError unless this is a way to map memory."""
    if int(access) & ~7 or not access & Access.READ_WRITE:
        raise UsageError(f"a mapping needs Access.READ, Access.WRITE or both, not {access!r}")
    if access & Access.DISCARD and not access & Access.WRITE:
        raise UsageError("Access.DISCARD goes with Access.WRITE: a mapping that only reads wants the contents")


def check_range(offset: int, size: int | None, limit: int) -> tuple[int, int]:
    """(offset, size) with size filled in. Raises UsageError (OUT_OF_RANGE) unless it lies inside `limit` bytes."""
    if size is None:
        size = limit - offset
    if offset < 0 or size < 0 or offset + size > limit:
        raise UsageError(f"{size} bytes at {offset} are not inside {limit} bytes", code=Status.OUT_OF_RANGE)
    return offset, size
