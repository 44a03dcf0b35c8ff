"""Arrays: device memory with an element type and a shape (H20). Wherever a buffer goes, an array goes too.

An array is a `BufferView`, so kernels, copies and fills take it. Slicing gives an array over the same memory, without a copy;
what would have gaps is refused. The element type is metadata: the device moves bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from remora.errors import Status, UsageError
from remora.hal.buffer import Access, Buffer, BufferView
from remora.hal.dlpack import Tensor, host_bytes
from remora.hal.dtypes import DTYPES, dtype_name, dtype_of

if TYPE_CHECKING:
    from remora.hal.device import Device

__all__ = ["Array", "make_array"]

Index: TypeAlias = "int | slice | tuple[Any, ...]"
MAX_DIMENSIONS = 32


class Array(BufferView):
    """Items of one type in C order, in a device's memory. Made by `device.array(...)`; `with` or `close()` gives the memory back.

    `dtype` is a key of hal.dtypes.DTYPES, `shape` counts items, `size` bytes.
    Example: `with device.array(x) as a: y = a[2:5].read()`.
    """

    __slots__ = ("_owner", "dtype", "shape")

    def __init__(self, buffer: Buffer, offset: int, dtype: str, shape: tuple[int, ...], *, owner: bool = False) -> None:
        super().__init__(buffer, offset, math.prod(shape) * DTYPES[dtype].size)
        self.dtype = dtype
        self.shape = shape
        self._owner = owner

    def __repr__(self) -> str:
        return f"<Array {self.dtype} {self.shape} at {self.offset} of {self.buffer!r}>"

    @property
    def device(self) -> Device:
        """Whose memory it is."""
        return self.buffer.device

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Its bytes, as `size`."""
        return self.size

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without dimensions has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: Index) -> Array:
        """A part of it, over the same memory: `a[3]`, `a[2:5]`, `a[1, 10:20]`, `a[..., 0:4]`.

        Raises UsageError (OUT_OF_RANGE) for an index that is not inside, and for a part with gaps, such as a column.
        """
        offset, shape = _part(self.shape, index)
        return Array(self.buffer, self.offset + offset * DTYPES[self.dtype].size, self.dtype, shape)

    def reshape(self, *shape: int) -> Array:
        """The same memory under another shape; one extent may be -1. Raises UsageError unless it has as many items."""
        return Array(self.buffer, self.offset, self.dtype, _filled(shape, math.prod(self.shape)))

    def astype_view(self, dtype: Any) -> Array:
        """The same bytes as items of another type: the last extent changes. Raises UsageError when they do not fit it."""
        name = dtype_name(dtype)
        size, last = DTYPES[name].size, (self.shape or (1,))[-1] * DTYPES[self.dtype].size
        if last % size:
            raise UsageError(f"rows of {last} bytes are no whole number of {name} items of {size} bytes")
        return Array(self.buffer, self.offset, name, (*self.shape[:-1], last // size))

    def read(self, *, timeout: float | None = None) -> Tensor:
        """A copy on the host, after what was submitted to the first queue: `np.asarray(a.read())`, `np.from_dlpack(a.read())`."""
        return Tensor(self.buffer.read(self.offset, self.size, timeout=timeout), self.dtype, self.shape)

    def read_into(self, into: Any, *, timeout: float | None = None) -> None:
        """Copy it into a writable contiguous array of as many bytes. Raises UsageError for another size or type."""
        view = typed_bytes(into, writable=True)
        self._check_host(into, view)
        self.buffer.read_into(view, self.offset, timeout=timeout)

    def write(self, data: Any, *, timeout: float | None = None) -> None:
        """Copy an array of the same type and as many bytes into it; blocks until it is there. Raises UsageError otherwise."""
        view = typed_bytes(data)
        self._check_host(data, view)
        self.buffer.write(view, self.offset, timeout=timeout)

    @contextmanager
    def map(self, access: Access = Access.READ_WRITE, *, timeout: float | None = None) -> Iterator[Tensor]:
        """The contents as a tensor in host memory while the block runs, as `Buffer.map` has it, without a copy if it can be.

        Example: `with a.map() as t: np.from_dlpack(t)[:] = 0`. What was made from the tensor must not be used afterwards.
        """
        with self.buffer.map(access, self.offset, self.size, timeout=timeout) as mapping:
            yield mapping.tensor(self.dtype, self.shape)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory for CuPy, PyTorch and Numba, where it is a GPU's in this process. Nothing is ordered: wait for its queue.

        AttributeError elsewhere, as libraries that probe for it expect, and for a type that NumPy cannot spell (use `astype_view`).
        """
        memory: Any = self.buffer
        whole: dict[str, Any] = memory.__cuda_array_interface__
        typestr = DTYPES[self.dtype].typestr
        if not typestr:
            raise AttributeError(f"the interface has no {self.dtype}: take astype_view('u{DTYPES[self.dtype].size}')")
        address, readonly = whole["data"]
        return {**whole, "shape": self.shape, "typestr": typestr, "data": (address + self.offset, readonly), "strides": None}

    def close(self) -> None:
        """Give the memory back, as `Buffer.close` does; a slice gives back nothing. Safe to repeat."""
        if self._owner:
            self.buffer.close()

    def __enter__(self) -> Array:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _check_host(self, data: Any, view: memoryview) -> None:
        told = dtype_of(data)
        if view.nbytes != self.size or (told is not None and told != self.dtype and DTYPES[told].size != 1):
            what = f"{view.nbytes} bytes of {told or 'unknown type'}"
            raise UsageError(
                f"the array has {self.size} bytes of {self.dtype}, the host's {what}: give the same", code=Status.OUT_OF_RANGE
            )


def make_array(device: Device, data: Any, dtype: Any, shape: Sequence[int] | int | None) -> Array:
    """What `device.array` does."""
    extents = (shape,) if isinstance(shape, int) else None if shape is None else tuple(shape)
    if data is None:
        if extents is None:
            raise UsageError("give data, or a shape: device.array(shape=(3, 4), dtype='f4')")
        name = dtype_name("f4" if dtype is None else dtype)
        full = _filled(extents, None)
        return Array(device.allocate(math.prod(full) * DTYPES[name].size), 0, name, full, owner=True)
    view = typed_bytes(data)
    name = dtype_name(dtype) if dtype is not None else dtype_of(data) or "u1"
    size = DTYPES[name].size
    if view.nbytes % size:
        raise UsageError(f"{view.nbytes} bytes are no whole number of {name} items of {size} bytes")
    items = view.nbytes // size
    own = tuple(int(extent) for extent in getattr(data, "shape", (items,)))
    if extents is None:
        extents = own if math.prod(own) == items else (items,)
    return Array(device.upload(view), 0, name, _filled(extents, items), owner=True)


def typed_bytes(data: Any, *, writable: bool = False) -> memoryview:
    """`host_bytes`, also for arrays of types that the buffer protocol and DLPack cannot say: those are looked at as bytes."""
    try:
        return host_bytes(data, writable=writable)
    except UsageError:
        told = getattr(data, "dtype", None)
        if told is None or DTYPES[dtype_name(told)].typestr or not getattr(data, "flags", None):
            raise
        if not data.flags.c_contiguous:
            raise
        return host_bytes((data if data.ndim else data.reshape(1)).view("u1"), writable=writable)


def _filled(shape: Sequence[int], items: int | None) -> tuple[int, ...]:
    """The shape with its -1 computed. Raises UsageError unless it has so many items."""
    extents = tuple(shape)
    if len(extents) > MAX_DIMENSIONS or not all(isinstance(each, int) for each in extents):
        raise UsageError(f"a shape is up to {MAX_DIMENSIONS} whole numbers, not {extents}")
    rest = math.prod(each for each in extents if each != -1)
    if items is not None and extents.count(-1) == 1 and rest > 0 and items % rest == 0:
        extents = tuple(items // rest if each == -1 else each for each in extents)
    if any(each < 0 for each in extents) or (items is not None and math.prod(extents) != items):
        there = "" if items is None else f"; there are {items} items"
        raise UsageError(f"the shape {tuple(shape)} does not fit{there}")
    return extents


def _part(shape: tuple[int, ...], index: Index) -> tuple[int, tuple[int, ...]]:
    """(items before the part, its shape). Raises UsageError for what is outside or has gaps."""
    steps = _expanded(shape, index if isinstance(index, tuple) else (index,))
    offset, stride, kept, whole = 0, math.prod(shape), [], True
    gaps = False
    for extent, each in zip(shape, steps, strict=True):
        stride = stride // extent if extent else 0
        begin, count, keeps = _one(extent, each)
        offset += begin * stride
        # Before this axis there may be only axes of one item: several of them, each with less than the whole, have gaps.
        gaps |= not whole and count != extent
        whole = whole and count == 1
        if keeps:
            kept.append(count)
    if gaps and 0 not in kept:
        raise UsageError(f"the part {index!r} of the shape {shape} has gaps; take rows, or copy what is needed on the host")
    return offset if 0 not in kept else 0, tuple(kept)


def _expanded(shape: tuple[int, ...], index: tuple[Any, ...]) -> list[int | slice]:
    """One index an axis."""
    steps = list(index)
    if sum(each is Ellipsis for each in steps) > 1:
        raise UsageError("an index has one '...' at most")
    missing = len(shape) - sum(each is not Ellipsis for each in steps)
    if missing < 0:
        raise UsageError(f"{len(steps)} indices for the shape {shape}", code=Status.OUT_OF_RANGE)
    at = next((place for place, each in enumerate(steps) if each is Ellipsis), len(steps))
    return [*steps[:at], *[slice(None)] * missing, *steps[at + 1 :]]


def _one(extent: int, index: int | slice) -> tuple[int, int, bool]:
    """(first item, how many, whether the axis stays)."""
    if isinstance(index, slice):
        begin, end, step = index.indices(extent)
        if step != 1:
            raise UsageError(f"a slice with the step {step} has gaps; take a contiguous one")
        return begin, max(0, end - begin), True
    try:
        place = range(extent)[index]
    except (IndexError, TypeError):
        raise UsageError(f"the index {index!r} is not inside an axis of {extent}", code=Status.OUT_OF_RANGE) from None
    return place, 1, False
