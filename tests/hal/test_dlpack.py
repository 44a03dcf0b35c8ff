"""Host memory in and out: zero-copy both ways, owners alive exactly as long as needed, and each refusal says what to do."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
import subprocess
import sys
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.errors import UsageError
from remora.hal import dlpack_capsule
from remora.hal.dlpack import Tensor, host_bytes
from remora.hal.dtypes import DTYPES

NUMPY_DTYPES = [name for name, dtype in DTYPES.items() if dtype.typestr]


class Foreign:
    """A tensor that speaks DLPack only. `old`: it does not know `max_version`, as before DLPack 1.0."""

    def __init__(self, inner, *, old=False, device=None):
        self.inner, self.old, self.device = inner, old, device

    def __dlpack_device__(self):
        return self.device or self.inner.__dlpack_device__()

    def __dlpack__(self, **options):
        if self.old and options:
            raise TypeError("unexpected keyword argument 'max_version'")
        return self.inner.__dlpack__(**options)


@pytest.fixture
def no_exports_left():
    gc.collect()
    before = dlpack_capsule.live_exports()
    yield
    gc.collect()
    assert dlpack_capsule.live_exports() == before


@pytest.mark.parametrize(
    "data",
    [
        b"abcd",
        bytearray(b"abcd"),
        array.array("d", [1.0, 2.0]),
        mmap.mmap(-1, 64),
        (ctypes.c_int * 3)(1, 2, 3),
        memoryview(b"abcd").cast("H"),
        memoryview(bytearray(8))[2:6],
        np.arange(6, dtype="f4").reshape(2, 3),
        np.float64(3.0),
        np.zeros((), "i4"),
        np.array([1 + 2j]),
        np.array([1, 2], ">i4"),
        np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
        np.array([True, False]),
        np.array([1.5], "f2"),
    ],
    ids=lambda data: type(data).__name__,
)
def test_any_contiguous_buffer_is_flat_bytes_without_a_copy(data):
    view = host_bytes(data)
    assert (view.format, view.ndim, view.readonly) == ("B", 1, memoryview(data).readonly)
    assert bytes(view) == memoryview(data).tobytes()
    if not view.readonly:
        view[0] = 77
        assert memoryview(data).tobytes()[0] == 77


@pytest.mark.parametrize("data", [b"", bytearray(), np.zeros((0, 3)), np.zeros((2, 0), "i2"), memoryview(b"")])
def test_empty_memory_is_an_empty_view(data):
    view = host_bytes(data)
    assert (view.format, view.ndim, view.nbytes) == ("B", 1, 0)
    assert view.readonly is memoryview(data).readonly


def test_a_flat_view_is_handed_on_as_it_is():
    view = memoryview(bytearray(4))
    assert host_bytes(view) is view
    assert host_bytes(view, writable=True) is view


@pytest.mark.parametrize("data", [b"abc", memoryview(b"abc"), np.frombuffer(b"abcd", "i4"), b""])
def test_read_only_memory_is_refused_where_it_would_be_written(data):
    host_bytes(data)
    with pytest.raises(UsageError, match="read-only; give a writable object"):
        host_bytes(data, writable=True)


@pytest.mark.parametrize(
    "data",
    [
        np.arange(6)[::2],
        np.arange(6).reshape(2, 3).T,
        memoryview(bytearray(8))[::2],
        memoryview(bytearray(8))[::-1],
        Foreign(np.arange(6)[::2]),
        Foreign(np.arange(6).reshape(2, 3).T),
        Foreign(np.arange(6).reshape(2, 3).T, old=True),
    ],
)
def test_memory_that_is_not_contiguous_is_refused(data):
    with pytest.raises(UsageError, match="not C-contiguous; make a contiguous copy"):
        host_bytes(data)


@pytest.mark.parametrize("data", [5, None, "text", object(), [1, 2]])
def test_objects_without_memory_are_refused(data):
    with pytest.raises(UsageError, match="neither the buffer protocol nor __dlpack__"):
        host_bytes(data)


@pytest.mark.parametrize(("device", "name"), [((2, 0), "cuda"), ((10, 1), "rocm"), ((99, 0), "device type 99")])
def test_memory_of_another_device_is_refused(device, name):
    with pytest.raises(UsageError, match=f"lies in {name} memory; copy it to the host"):
        host_bytes(Foreign(np.arange(3), device=device))


def test_pinned_host_memory_is_host_memory():
    assert bytes(host_bytes(Foreign(np.arange(3, dtype="u1"), device=(3, 0)))) == b"\0\1\2"


def test_what_the_producer_cannot_export_is_refused_with_its_reason():
    frozen = np.arange(3)
    frozen.flags.writeable = False
    with pytest.raises(UsageError, match=r"cannot be exported: .*readonly"):
        host_bytes(Foreign(frozen, old=True))
    with pytest.raises(UsageError, match="unused DLPack capsule"):
        host_bytes(Foreign(Spent()))


class Spent:
    """A producer that gives the same capsule again after it was taken."""

    def __init__(self):
        self.capsule = Tensor(memoryview(bytearray(4))).__dlpack__()
        host_bytes(Foreign(self))

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **options):
        return self.capsule


def test_a_producer_of_another_major_version_is_refused():
    capsule = Tensor(memoryview(bytearray(4))).__dlpack__(max_version=(1, 0))
    address = dlpack_capsule._capsule_pointer(capsule, b"dltensor_versioned")
    dlpack_capsule._ManagedVersioned.from_address(address).major = 2
    with pytest.raises(UsageError, match=r"speaks DLPack 2\.0"):
        dlpack_capsule.import_capsule(capsule, "Future")


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize(
    "inner", [np.arange(6.0).reshape(2, 3), np.zeros(()), np.arange(12).reshape(3, 1, 4)], ids=["2d", "0d", "3d"]
)
def test_a_dlpack_tensor_is_taken_without_a_copy(inner, old):
    view = host_bytes(Foreign(inner, old=old), writable=True)
    assert bytes(view) == inner.tobytes()
    view[0] = 9
    assert inner.tobytes()[0] == 9


def test_a_read_only_tensor_stays_read_only():
    frozen = np.arange(3)
    frozen.flags.writeable = False
    assert host_bytes(Foreign(frozen)).readonly
    with pytest.raises(UsageError, match="read-only"):
        host_bytes(Foreign(frozen), writable=True)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("shape", [(4,), (0,), (2, 0)])
def test_the_producer_lives_as_long_as_the_view_and_no_longer(old, shape):
    inner = np.zeros(shape)
    gone = weakref.ref(inner)
    view = host_bytes(Foreign(inner, old=old))
    part = view[1:2]
    del inner, view
    gc.collect()
    assert shape != (4,) or gone() is not None
    del part
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("data", [np.arange(6)[::2], np.arange(6)])
def test_the_deleter_is_called_exactly_once_taken_or_refused(versioned, data):
    calls = []
    deleter = dlpack_capsule._Deleter(calls.append)
    managed = dlpack_capsule._ManagedVersioned() if versioned else dlpack_capsule._Managed()
    if versioned:
        managed.major = 1
    managed.deleter = ctypes.cast(deleter, ctypes.c_void_p)
    shape, strides = (ctypes.c_int64 * 1)(len(data)), (ctypes.c_int64 * 1)(data.strides[0] // data.itemsize)
    managed.tensor.data, managed.tensor.ndim = data.ctypes.data, 1
    managed.tensor.bits, managed.tensor.lanes = 64, 1
    managed.tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
    managed.tensor.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
    name = b"dltensor_versioned" if versioned else b"dltensor"
    capsule = dlpack_capsule._capsule_new(ctypes.addressof(managed), name, None)
    if data.flags.c_contiguous:
        view = dlpack_capsule.import_capsule(capsule, "Own")
        assert bytes(view) == data.tobytes()
        assert not calls
        del view
        assert calls == [ctypes.addressof(managed)]
    else:
        with pytest.raises(UsageError, match="contiguous"):
            dlpack_capsule.import_capsule(capsule, "Own")
        assert not calls  # the capsule is as it was: its own destructor is in charge
        assert dlpack_capsule._capsule_is(capsule, name)
    assert len(calls) == data.flags.c_contiguous


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("take", [np.from_dlpack, np.asarray])
@pytest.mark.usefixtures("no_exports_left")
def test_a_tensor_becomes_an_array_over_the_same_memory(dtype, take):
    memory = bytearray(48)
    array = take(Tensor(memoryview(memory), dtype))
    assert array.dtype == np.dtype(DTYPES[dtype].typestr)
    assert array.shape == (48 // DTYPES[dtype].size,)
    array[0] = 1
    assert bytes(memory[: array.itemsize]) == array[:1].tobytes()
    assert any(memory)


@given(st.lists(st.integers(0, 4), max_size=4), st.sampled_from(NUMPY_DTYPES), st.sampled_from([np.from_dlpack, np.asarray]))
def test_any_shape_comes_out_as_it_is(shape, dtype, take):
    size = DTYPES[dtype].size * int(np.prod(shape, dtype=int))
    data = bytes(index % 2 for index in range(size))
    array = take(Tensor(memoryview(bytearray(data)), dtype, tuple(shape)))
    assert array.shape == tuple(shape)
    assert array.tobytes() == data


@pytest.mark.usefixtures("no_exports_left")
def test_a_tensor_goes_back_in_as_bytes():
    memory = bytearray(range(16))
    for old in (False, True):
        view = host_bytes(Foreign(Tensor(memoryview(memory), "bf16", (2, 4)), old=old), writable=True)
        assert bytes(view) == bytes(memory)
    assert host_bytes(Tensor(memoryview(memory), "f4")).nbytes == 16


@pytest.mark.usefixtures("no_exports_left")
def test_read_only_memory_gives_a_read_only_array():
    tensor = Tensor(memoryview(b"12345678"), "u2")
    assert not np.from_dlpack(tensor).flags.writeable
    assert not np.asarray(tensor).flags.writeable
    with pytest.raises(UsageError, match=r"needs a consumer with DLPack 1\.0"):
        tensor.__dlpack__()
    assert np.from_dlpack(tensor, copy=True).flags.writeable


@pytest.mark.usefixtures("no_exports_left")
def test_a_copy_is_a_copy():
    memory = bytearray(4)
    array = np.from_dlpack(Tensor(memoryview(memory)), copy=True)
    array[0] = 1
    assert memory == bytearray(4)


def test_the_memory_outlives_the_tensor_while_an_array_looks_at_it():
    memory = np.arange(4, dtype="u1")
    gone = weakref.ref(memory)
    array = np.from_dlpack(Tensor(memoryview(memory)))
    del memory
    gc.collect()
    assert gone() is not None
    assert array.tolist() == [0, 1, 2, 3]
    del array
    gc.collect()
    assert gone() is None


@pytest.mark.usefixtures("no_exports_left")
@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 9)])
def test_a_capsule_that_nobody_takes_is_dropped(version):
    memory = np.zeros(4, "u1")
    gone = weakref.ref(memory)
    capsule = Tensor(memoryview(memory)).__dlpack__(max_version=version)
    name = b"dltensor_versioned" if version and version >= (1, 0) else b"dltensor"
    assert dlpack_capsule._capsule_is(capsule, name)
    before = dlpack_capsule.live_exports()
    del capsule, memory
    assert dlpack_capsule.live_exports() == before - 1
    gc.collect()
    assert gone() is None


@pytest.mark.usefixtures("no_exports_left")
def test_a_consumer_that_refuses_the_type_says_so_itself():
    tensor = Tensor(memoryview(bytearray(4)), "bf16")
    with pytest.raises((RuntimeError, BufferError), match="dtype"):  # which of them depends on the version of NumPy
        np.from_dlpack(tensor)
    with pytest.raises(UsageError, match="NumPy has no bf16"):
        np.asarray(tensor)


def test_only_the_host_and_no_stream():
    tensor = Tensor(memoryview(bytearray(4)))
    assert tensor.__dlpack_device__() == (1, 0)
    assert tensor.__dlpack__(dl_device=(1, 0)) is not None
    with pytest.raises(UsageError, match="no stream"):
        tensor.__dlpack__(stream=1)
    with pytest.raises(UsageError, match="not on DLPack device"):
        tensor.__dlpack__(dl_device=(2, 0))


@pytest.mark.parametrize(
    ("size", "dtype", "shape", "message"),
    [
        (4, "f3", None, "no element type; known: i1"),
        (6, "f4", None, "no whole number of f4"),
        (8, "f4", (3,), "takes 12 bytes, there are 8"),
        (8, "f4", (-1, -2), "there are 8"),
        (8, "f4", (), "takes 4 bytes"),
    ],
)
def test_a_tensor_covers_its_bytes(size, dtype, shape, message):
    with pytest.raises(UsageError, match=message):
        Tensor(memoryview(bytearray(size)), dtype, shape)


def test_a_tensor_for_people():
    assert repr(Tensor(memoryview(bytearray(8)), "f4", (2, 1))) == "<Tensor f4 (2, 1)>"
    assert len(Tensor(memoryview(bytearray(8)), "f4", (2, 1))) == 2
    assert len(Tensor(memoryview(bytearray(4)), "f4", ())) == 1


def test_ctypes_and_numpy_are_not_imported_for_buffers():
    script = (
        "import sys; from remora.hal.dlpack import host_bytes; host_bytes(bytearray(4)); "
        "print({'ctypes', 'numpy'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert result.stdout.strip() == "set()"


def test_an_array_that_outlives_the_interpreter_s_modules_is_freed_quietly():
    script = (
        "import numpy as np, builtins; from remora.hal.dlpack import Tensor; "
        "builtins.kept = np.from_dlpack(Tensor(memoryview(bytearray(8)), 'f4'))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert (result.returncode, result.stderr) == (0, "")
