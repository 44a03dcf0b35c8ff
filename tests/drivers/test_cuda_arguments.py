"""D04: what a kernel of the cuda driver is called with, and what a GPU takes. No GPU is needed."""

import ctypes
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.drivers.cuda.arguments import layout, offsets
from remora.drivers.cuda.targets import ptx_version, targets

CODES = {"I": ctypes.c_uint32, "f": ctypes.c_float, "Q": ctypes.c_uint64, "d": ctypes.c_double}


@given(st.integers(0, 8), st.lists(st.sampled_from("IfQd"), max_size=12))
def test_d04_arguments_lie_where_a_c_compiler_puts_them(bindings, codes):
    fields = [(f"a{n}", ctypes.c_void_p) for n in range(bindings)] + [(f"c{n}", CODES[code]) for n, code in enumerate(codes)]
    struct_of = type("Arguments", (ctypes.Structure,), {"_fields_": fields})
    sizes = [struct.calcsize(code) for code in codes]
    assert offsets([8] * bindings + sizes) == [
        (getattr(struct_of, name).offset, getattr(struct_of, name).size) for name, _ in fields
    ]
    packed = struct.pack("<" + "".join(codes), *range(1, len(codes) + 1))
    pieces, end = layout(bindings, sizes)
    arguments = bytearray(ctypes.sizeof(struct_of))
    for start, stop, place in pieces:
        arguments[place : place + stop - start] = packed[start:stop]
    got = struct_of.from_buffer(arguments)
    assert [getattr(got, f"c{n}") for n in range(len(codes))] == list(range(1, len(codes) + 1))
    assert (end + 7) // 8 * 8 in (ctypes.sizeof(struct_of), ctypes.sizeof(struct_of) + 4)


def test_d04_constants_of_one_size_are_one_piece():
    assert layout(3, [4, 4, 4]) == ([(0, 12, 24)], 36)
    assert layout(1, [4, 8, 4]) == ([(0, 4, 8), (4, 16, 16)], 28)
    assert layout(0, []) == ([], 0)


@pytest.mark.parametrize(
    ("driver", "ptx"),
    [(11080, (7, 8)), (12000, (8, 0)), (12060, (8, 5)), (12090, (8, 8)), (13000, (9, 0)), (13020, (9, 2)), (10020, (7, 0))],
)
def test_d04_the_newest_ptx_that_a_driver_knows(driver, ptx):
    assert ptx_version(driver) == ptx


def test_h19_a_gpu_takes_its_own_code_then_lesser_code_then_ptx():
    keys = [target.key for target in targets((9, 0), 13000)]
    assert keys[:3] == ["sm_90a", "sm_90", "ptx9.0"]
    assert keys.index("ptx8.8") < keys.index("ptx8.0") < keys.index("ptx7.8") < keys.index("ptx6.0")
    assert [target.key for target in targets((8, 6), 12000)][:3] == ["sm_86", "sm_85", "sm_84"]
    assert "ptx8.1" not in [target.key for target in targets((8, 6), 12000)]
    assert "sm_90" not in keys[3:]
    assert "sm_80" not in keys
