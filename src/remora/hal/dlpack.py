"""Host memory in and out: any buffer-protocol object or CPU tensor as flat bytes, and device bytes as an array.

Arrays go in and come out without a copy, and without NumPy. The buffer protocol is tried first, because it costs a microsecond;
DLPack (version 1 and the older form) is for tensors that have nothing else. The C side of it is in dlpack_capsule, which is
imported when the first tensor needs it: `import remora` stays free of ctypes.
"""

from __future__ import annotations

import math
from typing import Any, final

from remora.errors import UsageError
from remora.hal.dtypes import DTYPES

__all__ = ["Tensor", "host_bytes"]

#: DLPack device types: https://dmlc.github.io/dlpack/latest/c_api.html (DLDeviceType).
CPU = 1
#: Types whose memory the host may touch: CPU, CUDA pinned host, ROCm pinned host.
_HOST_DEVICES = (1, 3, 11)
_DEVICE_NAMES = {2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm", 13: "cuda managed", 14: "oneapi", 15: "webgpu"}
_MAJOR = 1


def host_bytes(data: Any, *, writable: bool = False) -> memoryview:
    """The memory of `data` as a flat memoryview of bytes (format "B"), without a copy.

    `data` is a C-contiguous buffer-protocol object (bytes, bytearray, array, mmap, NumPy array) or a CPU tensor with
    `__dlpack__`. The view keeps it alive. Raises UsageError when it is neither, is not contiguous, lies in another device's
    memory, or is read-only and `writable` is asked for.
    """
    # A flat memoryview of bytes is what every small update passes: nothing else is called for it.
    flat = type(data) is memoryview and data.format == "B" and data.ndim == 1 and data.c_contiguous
    view: memoryview = data if flat else _view_of(data)
    if writable and view.readonly:
        raise UsageError(f"the memory of this {_kind(data)} is read-only; give a writable object, such as a bytearray or a copy")
    return view


def _view_of(data: Any) -> memoryview:
    try:
        view = memoryview(data)
    except (TypeError, ValueError, BufferError) as error:
        return _import_tensor(data, error)
    if not view.c_contiguous:
        raise UsageError(
            f"this {_kind(data)} is not C-contiguous; make a contiguous copy first, such as numpy.ascontiguousarray(x)"
        )
    if not view.nbytes:  # memoryview.cast refuses zeros in a shape
        return memoryview(b"") if view.readonly else memoryview(bytearray())
    return view.cast("B")


def _import_tensor(data: Any, reason: Exception) -> memoryview:
    """The memory of a tensor that speaks DLPack only."""
    export = getattr(data, "__dlpack__", None)
    place = getattr(data, "__dlpack_device__", None)
    if export is None or place is None:
        raise UsageError(
            f"{_kind(data)} offers neither the buffer protocol nor __dlpack__ ({reason}); pass bytes or an array"
        ) from None
    device, _ = place()
    if device not in _HOST_DEVICES:
        name = _DEVICE_NAMES.get(int(device), f"device type {int(device)}")
        raise UsageError(f"this {_kind(data)} lies in {name} memory; copy it to the host first")
    from remora.hal.dlpack_capsule import import_capsule

    return import_capsule(_ask(export, data), _kind(data))


def _ask(export: Any, data: Any) -> Any:
    """The producer's capsule, versioned if it knows how; producers older than DLPack 1.0 do not take `max_version`."""
    try:
        try:
            return export(max_version=(_MAJOR, 0))
        except TypeError:
            return export()
    except BufferError as error:
        raise UsageError(
            f"this {_kind(data)} cannot be exported: {error}; pass a plain copy, or a view as an integer type"
        ) from error


def _kind(data: Any) -> str:
    return type(data).__name__


@final
class Tensor:
    """Bytes with an element type and a shape, for `np.from_dlpack(t)` and `np.asarray(t)`; nothing is copied.

    `dtype` is a key of DTYPES ("f4", "i8", "bf16"); `shape` counts items, None is one dimension. Raises UsageError when the
    type is unknown or the shape does not cover the bytes. Example: `with buffer.map() as m: x = np.from_dlpack(m.tensor("f4"))`.
    """

    __slots__ = ("dtype", "shape", "view")

    def __init__(self, view: memoryview, dtype: str = "u1", shape: tuple[int, ...] | None = None) -> None:
        if dtype not in DTYPES:
            raise UsageError(f"{dtype!r} is no element type; known: {', '.join(DTYPES)}")
        self.view = host_bytes(view)
        self.dtype = dtype
        self.shape = self._check_shape(shape)

    def __repr__(self) -> str:
        return f"<Tensor {self.dtype} {self.shape}>"

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 1

    def _check_shape(self, shape: tuple[int, ...] | None) -> tuple[int, ...]:
        size, nbytes = DTYPES[self.dtype].size, self.view.nbytes
        if shape is None:
            if nbytes % size:
                raise UsageError(f"{nbytes} bytes are no whole number of {self.dtype} items of {size} bytes")
            return (nbytes // size,)
        if any(extent < 0 for extent in shape) or math.prod(shape) * size != nbytes:
            raise UsageError(f"the shape {tuple(shape)} of {self.dtype} takes {math.prod(shape) * size} bytes, there are {nbytes}")
        return tuple(shape)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's array protocol, version 3. Raises UsageError for a type that NumPy has not: take it through DLPack."""
        typestr = DTYPES[self.dtype].typestr
        if not typestr:
            plain = f"u{DTYPES[self.dtype].size}"
            raise UsageError(
                f"NumPy has no {self.dtype}; make the tensor as {plain!r} and view it, or pass it by DLPack to a library that has"
            )
        return {"version": 3, "typestr": typestr, "shape": self.shape, "data": memoryview(self.view)}

    def __dlpack_device__(self) -> tuple[int, int]:
        """(1, 0): host memory."""
        return CPU, 0

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule over the bytes, which stay alive until the consumer gives it back.

        Raises UsageError for a stream or another device than the host, and for read-only memory when the consumer knows only
        the older DLPack, which cannot say so.
        """
        dtype = DTYPES[self.dtype]
        if dtype.code < 0:
            raise UsageError(f"DLPack has no {self.dtype} of one byte an item; make the tensor as 'u1' and view it")
        if stream is not None:
            raise UsageError("host memory has no stream; pass stream=None")
        if dl_device is not None and tuple(dl_device) != (CPU, 0):
            raise UsageError(
                f"the tensor is in host memory (1, 0), not on DLPack device {tuple(dl_device)}; copy it there yourself"
            )
        versioned = max_version is not None and max_version[0] >= _MAJOR
        view = memoryview(bytearray(self.view)) if copy else memoryview(self.view)
        if view.readonly and not versioned:
            raise UsageError("read-only memory needs a consumer with DLPack 1.0; pass copy=True, or map for writing")
        from remora.hal.dlpack_capsule import export_capsule

        return export_capsule(view, dtype.code, dtype.size, self.shape, versioned=versioned, copied=bool(copy))
