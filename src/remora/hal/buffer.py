"""Buffers: device memory with a size, views into it, and host mappings (requirements H16, H20)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import IntFlag
from typing import TYPE_CHECKING, Any, final

from remora.errors import ClosedError, Status, UsageError
from remora.hal.dlpack import Tensor

if TYPE_CHECKING:
    from types import TracebackType

    from remora.hal.device import Device

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

    __slots__ = ("__weakref__", "_closed", "_maps", "device", "size")
    offset = 0

    def __init__(self, device: Device, size: int) -> None:
        self.device = device
        self.size = size
        self._closed = False
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

        A remote buffer is copied here and, if writable, back. Raises UsageError for a range outside the buffer, and when a
        writable mapping would overlap another mapping.
        """
        offset, size = check_range(offset, size, self.size)
        self._check_open()
        if not access & Access.READ_WRITE:
            raise UsageError("a mapping needs Access.READ, Access.WRITE or both")
        for other in self._maps:
            if offset < other.offset + other.size and other.offset < offset + size and (access | other.access) & Access.WRITE:
                raise UsageError(
                    f"bytes {offset} to {offset + size} overlap a live mapping of {other.offset} to {other.offset + other.size}, "
                    "and one of the two is writable: close the first one",
                    code=Status.FAILED_PRECONDITION,
                )
        mapping = Mapping(self, access, offset, self._map(access, offset, size, timeout))
        self._maps.append(mapping)
        return mapping

    def close(self) -> None:
        """Give the memory back once everything submitted so far is done with it. Safe to repeat.

        Raises UsageError while a mapping is live.
        """
        if self._closed:
            return
        if self._maps:
            raise UsageError("the buffer is mapped: close the mapping first", code=Status.FAILED_PRECONDITION)
        self._closed = True
        self._release()

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self!r} was closed; allocate a new one")

    def host_memory(self) -> memoryview | None:
        """The memory itself, writable, where the host can address it; None elsewhere. Nothing is ordered: the caller sees to it."""
        return None

    @abstractmethod
    def _map(self, access: Access, offset: int, size: int, timeout: float | None) -> memoryview:
        """Driver: host memory that shows the range, after waiting for the first queue."""

    @abstractmethod
    def _unmap(self, mapping: Mapping) -> None:
        """Driver: make what was written through the mapping visible."""

    @abstractmethod
    def _release(self) -> None:
        """Driver: give the memory back when no submitted operation needs it any more."""


@final
class Mapping:
    """A range of a buffer as host memory. Made by `buffer.map()`; closed by `with` or `close()`.

    Example: `with buffer.map() as mapping: mapping.view[0] = 7`.
    """

    __slots__ = ("_view", "access", "buffer", "offset", "size")

    def __init__(self, buffer: Buffer, access: Access, offset: int, view: memoryview) -> None:
        self.buffer = buffer
        self.access = access
        self.offset = offset
        self.size = view.nbytes
        self._view: memoryview | None = view if access & Access.WRITE else view.toreadonly()

    @property
    def view(self) -> memoryview:
        """The bytes, writable when the mapping is. Views made from it must not be used after `close()`."""
        if self._view is None:
            raise ClosedError("the mapping was closed; map the buffer again")
        return self._view

    def tensor(self, dtype: str = "u1", shape: tuple[int, ...] | None = None) -> Tensor:
        """The bytes as an array for `np.from_dlpack` or `np.asarray`. `dtype` is like "f4" or "i8"; `shape` counts items."""
        return Tensor(self.view, dtype, shape)

    def close(self) -> None:
        """End the mapping and publish what was written. Safe to repeat."""
        if self._view is not None:
            try:
                self.buffer._unmap(self)
            finally:
                self._view = None
                self.buffer._maps.remove(self)

    def __enter__(self) -> Mapping:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def check_range(offset: int, size: int | None, limit: int) -> tuple[int, int]:
    """(offset, size) with size filled in. Raises UsageError (OUT_OF_RANGE) unless it lies inside `limit` bytes."""
    if size is None:
        size = limit - offset
    if offset < 0 or size < 0 or offset + size > limit:
        raise UsageError(f"{size} bytes at {offset} are not inside {limit} bytes", code=Status.OUT_OF_RANGE)
    return offset, size
