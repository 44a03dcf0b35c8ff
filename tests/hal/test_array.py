"""Slices and shapes of device arrays, with NumPy as the oracle (H20)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import remora
from remora.errors import UsageError
from remora.hal.array import Array
from remora.hal.dtypes import DTYPES, dtype_name, dtype_of

ELLIPSIS = st.just(Ellipsis)


@pytest.fixture(scope="module")
def device():
    with remora.open("null") as opened:
        yield opened


def indices(shape):
    """Indices inside, slices of any kind, sometimes an ellipsis, sometimes too few."""
    axes = [
        st.one_of(st.integers(-extent, extent - 1) if extent else st.just(slice(None)), st.slices(extent).filter(one_step))
        for extent in shape
    ]
    whole = st.tuples(*axes)
    cut = st.integers(0, len(shape))
    return st.one_of(
        whole, st.tuples(whole, cut).map(lambda pair: (*pair[0][: pair[1]], Ellipsis)), st.tuples(whole, cut).map(tail)
    )


def one_step(each):
    return each.step in {None, 1}


def tail(pair):
    whole, cut = pair
    return (Ellipsis, *whole[cut:])


@given(st.data(), st.lists(st.integers(0, 4), min_size=1, max_size=4))
def test_h20_a_part_is_numpys_part_or_has_gaps(device, data, shape):
    index = data.draw(indices(shape))
    numbers = np.arange(int(np.prod(shape)), dtype="u2").reshape(shape)
    expected = numbers[index]
    with device.array(numbers) as held:
        try:
            part = held[index]
        except UsageError as error:
            assert "gaps" in str(error)
            assert not expected.flags.c_contiguous
            return
        assert part.shape == expected.shape
        assert bytes(part.read(timeout=30).view) == expected.tobytes()
        assert expected.flags.c_contiguous or not expected.size


@pytest.mark.parametrize("name", DTYPES)
def test_h20_every_type_has_its_names(name):
    dtype = DTYPES[name]
    assert dtype_name(name) == dtype_name(dtype.long) == dtype_name(f"torch.{dtype.long}") == name
    if dtype.typestr:
        assert dtype_name(np.dtype(dtype.typestr)) == name
        assert dtype_of(np.zeros(2, dtype.typestr)) == name
        assert np.dtype(dtype.typestr).itemsize == dtype.size


def test_h20_every_type_of_ml_dtypes_is_known_by_its_own_name():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="needs ml_dtypes: pip install ml_dtypes")
    for name, dtype in DTYPES.items():
        kind = getattr(ml_dtypes, dtype.long, None)
        if not dtype.typestr:
            assert kind is not None, name
            assert dtype_name(kind) == dtype_name(np.dtype(kind)) == name
            assert np.dtype(kind).itemsize == dtype.size


@pytest.mark.parametrize("bad", [np.dtype(">f4"), np.dtype("f4,i4"), np.dtype("M8[s]"), np.dtype("S3"), "float", None, 4])
def test_h20_a_type_that_is_none_is_refused(bad):
    with pytest.raises(UsageError, match="is no element type; known: i1, "):
        dtype_name(bad)


def test_h20_a_slice_keeps_the_memory_and_gives_back_nothing(device):
    held = device.array(bytes(8))
    part = held[2:4]
    part.close()
    assert not held.buffer.closed
    assert (part.offset, part.size, part.device) == (2, 2, device)
    assert [row.shape for row in held.reshape(2, 4)] == [(4,), (4,)]
    held.close()
    held.close()
    with pytest.raises(remora.ClosedError):
        part.read(timeout=30)


def test_h20_a_scalar_has_no_length(device):
    with device.array(np.float32(3.5)) as held:
        assert (held.shape, held.ndim) == ((), 0)
        with pytest.raises(TypeError, match="no length"):
            len(held)
        assert np.asarray(held.read(timeout=30)).item() == 3.5


class Addressed:
    """What a GPU's buffer is to an array: memory with an address in this process."""

    __cuda_array_interface__: ClassVar = {"shape": (96,), "typestr": "|u1", "data": (0x7000, False), "version": 3, "strides": None}


def test_h20_the_cuda_interface_has_type_shape_and_place():
    whole = Array(Addressed(), 0, "f4", (2, 3, 4))
    assert whole[1].__cuda_array_interface__ == {
        "shape": (3, 4),
        "typestr": "<f4",
        "data": (0x7000 + 48, False),
        "version": 3,
        "strides": None,
    }
    short = whole[1, 2].astype_view("bf16")
    assert not hasattr(short, "__cuda_array_interface__")
    assert short.astype_view("u2").__cuda_array_interface__["shape"] == (8,)


def test_h20_an_array_without_such_an_address_has_no_cuda_interface(device):
    with device.array(bytes(4)) as held:
        assert not hasattr(held, "__cuda_array_interface__")
