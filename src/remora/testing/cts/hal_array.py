"""HAL conformance: arrays and tensors in and out (H20)."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import pytest

from remora.errors import UsageError
from remora.hal.buffer import Access
from remora.hal.dlpack import Tensor
from remora.testing.cts.hal_factory import LONG, blob

if TYPE_CHECKING:
    from remora.hal.device import Device

__all__ = ["TestArrays", "TestTensors"]


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
