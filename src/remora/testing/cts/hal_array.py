"""HAL conformance: arrays and tensors in and out (H20)."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import pytest

from remora.errors import UsageError
from remora.hal.buffer import Access
from remora.hal.dlpack import Tensor
from remora.testing.cts.compare import same
from remora.testing.cts.hal_factory import LONG, HalFactory, blob

if TYPE_CHECKING:
    from remora.hal.device import Device

__all__ = ["TestArrays", "TestDeviceArrays", "TestTensors"]


class OnlyDlpack:
    """A tensor that speaks DLPack and nothing else."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __dlpack__(self, **options: Any) -> Any:
        return self._inner.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._inner.__dlpack_device__()


class TestArrays:
    """H20: any contiguous buffer-protocol object goes in and out."""

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: array("I", data)])
    def test_h20_objects_of_the_standard_library(self, device: Device, kind: Any) -> None:
        data = blob(4000)
        with device.upload(kind(data)) as buffer:
            assert bytes(buffer.read(timeout=LONG)) == data

    def test_h20_numpy_arrays_go_in_and_come_out(self, device: Device) -> None:
        np = pytest.importorskip("numpy", reason="needs NumPy: pip install numpy")
        matrix = np.arange(600_000, dtype="f8").reshape(200, 3000)
        with device.upload(matrix) as buffer:
            assert buffer.size == matrix.nbytes
            back = np.frombuffer(buffer.read(timeout=LONG), "f8").reshape(200, 3000)
            assert np.array_equal(back, matrix)
            into = np.zeros_like(matrix)
            buffer.read_into(into, timeout=LONG)
            assert np.array_equal(into, matrix)
            buffer.write(matrix[0], 3000 * 8, timeout=LONG)
            buffer.read_into(into, timeout=LONG)
            assert np.array_equal(into[1], matrix[0])

    def test_h20_an_array_with_gaps_is_refused(self, device: Device) -> None:
        np = pytest.importorskip("numpy", reason="needs NumPy: pip install numpy")
        with pytest.raises(UsageError, match="contiguous"):
            device.upload(np.zeros((8, 8))[:, ::2])
        with device.allocate(256) as buffer, pytest.raises(UsageError, match="contiguous"):
            buffer.read_into(np.zeros((8, 8))[:, ::2])

    def test_h20_a_wrong_size_of_the_target_is_refused(self, device: Device) -> None:
        with device.allocate(8) as buffer, pytest.raises(UsageError, match="not inside"):
            buffer.read_into(bytearray(9))


class TestTensors:
    """H20: DLPack in both directions."""

    def test_h20_a_dlpack_tensor_goes_in(self, device: Device) -> None:
        tensor = OnlyDlpack(Tensor(memoryview(bytearray(blob(96))), "f4", (4, 6)))
        with device.upload(tensor) as buffer:
            assert bytes(buffer.read(timeout=LONG)) == blob(96)

    def test_h20_a_dlpack_tensor_receives(self, device: Device) -> None:
        memory = bytearray(96)
        with device.upload(blob(96)) as buffer:
            buffer.read_into(OnlyDlpack(Tensor(memoryview(memory), "i4")), timeout=LONG)
        assert memory == blob(96)

    def test_h20_a_mapping_is_a_tensor(self, device: Device) -> None:
        np = pytest.importorskip("numpy", reason="needs NumPy: pip install numpy")
        with device.upload(np.arange(12, dtype="i4")) as buffer:
            with buffer.map(Access.READ_WRITE, timeout=LONG) as mapping:
                view = np.from_dlpack(mapping.tensor("i4", (3, 4)))
                assert view.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
                np.asarray(mapping.tensor("i4"))[5] = 55
            assert np.frombuffer(buffer.read(timeout=LONG), "i4")[5] == 55


class TestDeviceArrays:
    """H20: arrays on the device keep their type and shape, and slices are views."""

    def test_h20_an_array_keeps_type_and_shape(self, device: Device) -> None:
        np = pytest.importorskip("numpy", reason="needs NumPy: pip install numpy")
        for dtype in ("u1", "i2", "u4", "f4", "f8", "c8", "?"):
            data = np.frombuffer(blob(480), "u1").view("u1" if dtype == "?" else dtype).reshape(3, -1)
            data = data % 2 == 1 if dtype == "?" else data
            with device.array(data) as held:
                back = np.asarray(held.read(timeout=LONG))
                assert (held.shape, held.nbytes, back.dtype, back.shape) == (data.shape, data.nbytes, data.dtype, data.shape)
                assert same(back.tobytes(), data.tobytes())

    @pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float4_e2m1fn", "int4"])
    def test_h20_types_of_ml_dtypes_are_kept(self, device: Device, name: str) -> None:
        np = pytest.importorskip("numpy", reason="needs NumPy: pip install numpy")
        ml_dtypes = pytest.importorskip("ml_dtypes", reason="needs ml_dtypes: pip install ml_dtypes")
        data = np.array([[0, 1, 2], [3, -2, 1.5]]).astype(getattr(ml_dtypes, name))
        with device.array(data) as held:
            assert (held.shape, held.nbytes) == ((2, 3), data.nbytes)
            into = np.zeros_like(data)
            held[1].read_into(into[1], timeout=LONG)
            held[0].read_into(into[0], timeout=LONG)
            assert into.tobytes() == data.tobytes()
            assert held.read(timeout=LONG).dtype == held.dtype
            held.write(data[::-1].copy(), timeout=LONG)
            assert bytes(held.read(timeout=LONG).view) == data[::-1].tobytes()

    def test_h20_objects_without_numpy(self, device: Device) -> None:
        with device.array(array("d", [1.0, 2.0, 3.0, 4.0]), shape=(2, -1)) as held:
            assert (held.dtype, held.shape, len(held)) == ("f8", (2, 2), 2)
            assert held[1].read(timeout=LONG).view.cast("d").tolist() == [3.0, 4.0]
        with device.array(blob(16), dtype="bf16") as held:
            assert (held.dtype, held.shape) == ("bf16", (8,))
        with device.array(OnlyDlpack(Tensor(memoryview(bytearray(blob(24))), "f4", (2, 3))), dtype="float32", shape=(3, 2)) as held:
            assert (held.dtype, held.shape) == ("f4", (3, 2))

    def test_h20_slices_are_views_that_kernels_and_copies_take(self, factory: HalFactory, device: Device) -> None:
        with device.array(array("I", range(12)), shape=(3, 4)) as held:
            row = held[1]
            row.write(array("I", [100, 101, 102, 103]), timeout=LONG)
            device.queue.fill(held[2, 1:3], b"\xff")
            device.queue.copy(held[0], held[2][..., :4])
            expected = [0, 1, 2, 3, 100, 101, 102, 103, 0, 1, 2, 3]
            assert held.read(timeout=LONG).view.cast("I").tolist() == expected
            factory.need_kernels()
            add = device.load(factory.vector)["add_i32"]
            device.queue.dispatch(add, add.grid_for(4), [held[0], held[1], held[2]], (4,))
            assert held[2].read(timeout=LONG).view.cast("I").tolist() == [100, 102, 104, 106]

    def test_h20_an_array_without_data_and_its_mapping(self, device: Device) -> None:
        with device.array(shape=(4, 8), dtype="u2") as held:
            assert (held.nbytes, held.buffer.size) == (64, 64)
            with held[1].map(Access.WRITE | Access.DISCARD, timeout=LONG) as tensor:
                tensor.view[:] = blob(16)
            assert bytes(held[1].read(timeout=LONG).view) == blob(16)
        assert held.buffer.closed

    @pytest.mark.parametrize("index", [4, -5, (0, 0, 0), (slice(None), 0), slice(0, 4, 2), (slice(0, 2), slice(0, 3)), "x"])
    def test_h20_what_is_outside_or_has_gaps_is_refused(self, device: Device, index: Any) -> None:
        with device.array(array("I", range(16)), shape=(4, 4)) as held, pytest.raises(UsageError, match=r"gaps|not inside|indices"):
            held[index]

    def test_h20_wrong_types_and_shapes_are_refused(self, device: Device) -> None:
        for words, message in (
            ({}, "give data, or a shape"),
            ({"data": bytes(6), "dtype": "f4"}, "no whole number of f4"),
            ({"data": bytes(8), "dtype": "float7"}, "'float7' is no element type"),
            ({"data": bytes(8), "shape": (3, -1)}, "does not fit"),
            ({"shape": (2, -1)}, "does not fit"),
            ({"shape": (1,) * 33}, "a shape is up to 32"),
            ({"data": memoryview(bytes(8)).cast("P")}, "no element type"),
        ):
            with pytest.raises(UsageError, match=message):
                device.array(**words)
        with device.array(array("f", [1, 2, 3])) as held:
            for bad in (array("f", [1]), array("i", [1, 2, 3])):
                with pytest.raises(UsageError, match="give the same"):
                    held.write(bad)
            with pytest.raises(UsageError, match="read-only"):
                held.read_into(bytes(12))
            with pytest.raises(UsageError, match="no whole number"):
                held.astype_view("f8")
            assert held.astype_view("u2").shape == (6,)
            assert held.reshape(3, 1).shape == (3, 1)
