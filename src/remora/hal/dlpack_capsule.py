"""DLPack's C structures and capsules through ctypes. Imported only when a tensor crosses that way.

Taking a capsule: its memory is checked first, then the capsule is renamed (`used_…`), which makes its deleter ours to call, once,
when the last memoryview of the memory has gone.

Giving one: the structure and the memory stay in `_given` until the consumer calls the deleter. A capsule that no consumer took is
found by its name and reference count when the next one is given. It has no destructor of its own, because a capsule may die while
an exception is on its way (a consumer refuses the type), and Python code run at that point would lose the exception.
"""

from __future__ import annotations

import ctypes
import math
import sys
from ctypes import POINTER, Structure, c_int32, c_int64, c_ssize_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p, py_object
from typing import Any, ClassVar

from remora.errors import UsageError

__all__ = ["export_capsule", "import_capsule", "live_exports"]

#: DLDeviceType kDLCPU.
_CPU = 1
_READ_ONLY = 1
_IS_COPIED = 2
_NAME = b"dltensor"
_NAME_VERSIONED = b"dltensor_versioned"
_USED = {_NAME: b"used_dltensor", _NAME_VERSIONED: b"used_dltensor_versioned"}


class _Tensor(Structure):
    """DLTensor."""

    _fields_: ClassVar = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Managed(Structure):
    """DLManagedTensor, the form before 1.0."""

    _fields_: ClassVar = [("tensor", _Tensor), ("context", c_void_p), ("deleter", c_void_p)]


class _ManagedVersioned(Structure):
    """DLManagedTensorVersioned."""

    _fields_: ClassVar = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _Tensor),
    ]


class _PyBuffer(Structure):
    """Py_buffer."""

    _fields_: ClassVar = [
        ("buf", c_void_p),
        ("obj", c_void_p),
        ("len", c_ssize_t),
        ("itemsize", c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", c_void_p),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("suboffsets", c_void_p),
        ("internal", c_void_p),
    ]


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = ctypes.pythonapi[name]
    function.restype, function.argtypes = result, arguments
    return function


_capsule_new = _function("PyCapsule_New", py_object, c_void_p, ctypes.c_char_p, c_void_p)
_capsule_is = _function("PyCapsule_IsValid", ctypes.c_int, py_object, ctypes.c_char_p)
_capsule_pointer = _function("PyCapsule_GetPointer", c_void_p, py_object, ctypes.c_char_p)
_capsule_rename = _function("PyCapsule_SetName", ctypes.c_int, py_object, ctypes.c_char_p)
_get_buffer = _function("PyObject_GetBuffer", ctypes.c_int, py_object, POINTER(_PyBuffer), ctypes.c_int)
_release_buffer = _function("PyBuffer_Release", None, POINTER(_PyBuffer))
_Deleter = ctypes.CFUNCTYPE(None, c_void_p)


class _Owner:
    """Holds a taken tensor and calls its deleter when the memory is no longer looked at."""

    __slots__ = ("_address", "_delete")

    def __init__(self, address: int, delete: int | None) -> None:
        self._address = address
        self._delete = _Deleter(delete) if delete else None

    def __del__(self, finalizing: Any = sys.is_finalizing) -> None:
        if self._delete is not None and not finalizing():
            self._delete(self._address)


def import_capsule(capsule: Any, kind: str) -> memoryview:
    """The bytes behind a producer's capsule. Raises UsageError when they are not contiguous or the version is unknown."""
    if _capsule_is(capsule, _NAME_VERSIONED):
        address = _capsule_pointer(capsule, _NAME_VERSIONED)
        versioned = _ManagedVersioned.from_address(address)
        if versioned.major != 1:
            raise UsageError(
                f"this {kind} speaks DLPack {versioned.major}.{versioned.minor}, remora speaks 1: copy it to an array first"
            )
        return _take(capsule, _NAME_VERSIONED, address, versioned, kind, readonly=bool(versioned.flags & _READ_ONLY))
    if _capsule_is(capsule, _NAME):
        address = _capsule_pointer(capsule, _NAME)
        return _take(capsule, _NAME, address, _Managed.from_address(address), kind, readonly=False)
    raise UsageError(f"__dlpack__ of this {kind} gave no unused DLPack capsule; pass a fresh tensor")


def _take(capsule: Any, name: bytes, address: int, managed: Any, kind: str, *, readonly: bool) -> memoryview:
    tensor = managed.tensor
    if not _is_contiguous(tensor):
        raise UsageError(f"this {kind} is not C-contiguous; make a contiguous copy first, such as x.contiguous()")
    items = math.prod(tensor.shape[: tensor.ndim]) if tensor.ndim else 1
    nbytes = (items * tensor.bits * tensor.lanes + 7) // 8
    memory: Any = (c_uint8 * nbytes).from_address((tensor.data or 0) + tensor.byte_offset) if nbytes else (c_uint8 * 0)()
    memory.owner = _Owner(address, managed.deleter)
    _capsule_rename(capsule, _USED[name])
    # An empty view has no memory that anyone could look at, and cast refuses it: the tensor goes back at once.
    view = memoryview(memory).cast("B") if nbytes else memoryview(bytearray())
    return view.toreadonly() if readonly else view


def _is_contiguous(tensor: Any) -> bool:
    if not tensor.strides or not tensor.ndim:
        return True
    shape, strides = tensor.shape[: tensor.ndim], tensor.strides[: tensor.ndim]
    if 0 in shape:
        return True
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


class _Given:
    """What must outlive a given capsule: the structure, its shape and strides, and the memory."""

    __slots__ = ("arrays", "capsule", "managed", "name", "view")

    def __init__(self, managed: Any, arrays: Any, view: memoryview, name: bytes) -> None:
        self.managed = managed
        self.arrays = arrays
        self.view = view
        self.name = name
        self.capsule: Any = None


#: By the structure's address: everything that a consumer may still look at.
_given: dict[int, _Given] = {}


def _drop(address: int, given: dict[int, _Given] = _given) -> None:
    given.pop(address, None)


_deleter = _Deleter(_drop)
# Capsules and arrays may outlive this module at interpreter exit, and then need their name or the deleter: those are never freed.
for _lasting in (_deleter, _NAME, _NAME_VERSIONED, *_USED.values()):
    ctypes.pythonapi.Py_IncRef(py_object(_lasting))


def export_capsule(view: memoryview, code: int, size: int, shape: tuple[int, ...], *, versioned: bool, copied: bool) -> Any:
    """A capsule over the memory of a flat bytes view, which is held until the consumer calls the deleter.

    Items have `size` bytes and the DLPack type `code`.
    """
    _sweep()
    name = _NAME_VERSIONED if versioned else _NAME
    managed: Any = _ManagedVersioned() if versioned else _Managed()
    if versioned:
        managed.major, managed.minor = 1, 0
        managed.flags = _READ_ONLY * view.readonly | _IS_COPIED * copied
    managed.deleter = ctypes.cast(_deleter, c_void_p)
    arrays = _fill(managed.tensor, view, shape)
    managed.tensor.code, managed.tensor.bits, managed.tensor.lanes = code, size * 8, 1
    given = _Given(managed, arrays, view, name)
    address = ctypes.addressof(managed)
    _given[address] = given
    given.capsule = capsule = _capsule_new(address, name, None)
    return capsule


def _fill(tensor: Any, view: memoryview, shape: tuple[int, ...]) -> Any:
    """Write all of a DLTensor but its type. Returns the arrays of its shape and of its strides, which count items."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    arrays = (c_int64 * len(shape))(*shape), (c_int64 * len(shape))(*strides)
    tensor.data = _address_of(view)
    tensor.device_type, tensor.device_id = _CPU, 0
    tensor.ndim = len(shape)
    tensor.shape = ctypes.cast(arrays[0], POINTER(c_int64))
    tensor.strides = ctypes.cast(arrays[1], POINTER(c_int64))
    return arrays


def _address_of(view: memoryview) -> int | None:
    """Where the bytes lie, read-only memory too. The view keeps them there."""
    raw = _PyBuffer()
    _get_buffer(view, raw, 0)
    try:
        return int(raw.buf) if raw.buf else None
    finally:
        _release_buffer(raw)


def _sweep() -> None:
    """Forget capsules that were taken (their deleter ends them) and drop those that nobody holds any more."""
    for address, given in list(_given.items()):
        if given.capsule is None:
            continue
        if not _capsule_is(given.capsule, given.name):
            given.capsule = None
        elif sys.getrefcount(given.capsule) <= 2:  # the attribute and the argument
            _drop(address)


def live_exports() -> int:
    """How many given tensors consumers still hold."""
    _sweep()
    return len(_given)
