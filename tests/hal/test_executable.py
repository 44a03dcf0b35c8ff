"""Kernel contracts (H19): what a dispatch may be, and what each refusal says."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.errors import ClosedError, NotFoundError, Status, UsageError
from remora.hal.buffer import Access
from remora.hal.executable import MAX_GRID, BindingRule, ConstantRule, Executable, GridRule, KernelInfo
from remora.hal.specialization import CONSTANT_CODES
from remora.hal.target import Target

ADD = KernelInfo(
    "add",
    (
        BindingRule("a", Access.READ, constant="n", scale=4),
        BindingRule("table", Access.READ, bytes=16, constant="n", scale=2, alignment=64),
        BindingRule("out", Access.WRITE, bytes=8),
    ),
    (ConstantRule("alpha", "f32"), ConstantRule("n", "u32")),
    grid=GridRule((64, 8, 1)),
)
FIXED = KernelInfo("fixed", grid=GridRule(fixed=(64, 1, 1)))


def kernel_of(info, device=None):
    """The kernel as if loaded; without a device where no buffer of one is bound."""
    return Executable(device, Target("python", "any"), [info])[info.name]


@pytest.fixture
def bindings(device):
    return [device.allocate(40), device.allocate(36), device.allocate(8)]


@pytest.fixture
def add(device):
    return kernel_of(ADD, device)


def test_a_dispatch_that_keeps_the_contract_passes_and_the_next_one_does_not(add, bindings):
    add.check((0, 0, 0), bindings, add.pack((0.5, 0)))
    add.check((1, 1, 1), bindings, add.pack((0.5, 10)))
    add.check(MAX_GRID, bindings, add.pack([0.5, 1]))
    for grid, n in (((1, 1, 1), 11), ((MAX_GRID[0] + 1, *MAX_GRID[1:]), 1)):
        with pytest.raises(UsageError):
            add.check(grid, bindings, add.pack((0.5, n)))


@pytest.mark.parametrize("count", [0, 2, 4])
def test_a_wrong_number_of_bindings_names_those_it_takes(add, bindings, count):
    with pytest.raises(UsageError, match=rf"add takes 3 bindings \(a, table, out\), got {count}"):
        add.check((1, 1, 1), (bindings * 2)[:count], add.pack((0, 0)))


def test_a_kernel_without_bindings_says_none(bindings):
    with pytest.raises(UsageError, match=r"fixed takes 0 bindings \(none\), got 3"):
        kernel_of(FIXED).check((64, 1, 1), bindings, b"")


@pytest.mark.parametrize(
    ("n", "message"),
    [(11, r"add: binding 0 \(a\) needs 44 bytes, got 40"), (1 << 31, r"binding 0 \(a\) needs 8589934592 bytes")],
)
def test_a_buffer_that_is_too_small_is_named_with_its_need(add, bindings, n, message):
    with pytest.raises(UsageError, match=message) as caught:
        add.check((1, 1, 1), bindings, add.pack((0, n)))
    assert caught.value.code is Status.OUT_OF_RANGE


def test_bytes_and_scaled_constant_add_up(add, device, bindings):
    bindings[1] = device.allocate(35)
    with pytest.raises(UsageError, match=r"binding 1 \(table\) needs 36 bytes, got 35"):
        add.check((1, 1, 1), bindings, add.pack((0, 10)))


@given(st.integers(0, 1 << 20), st.integers(0, 1 << 10), st.integers(0, 1 << 10), st.integers(0, (1 << 32) - 1))
def test_the_extent_rule_is_the_formula(size, fixed, scale, n):
    class Sized:
        device = None
        offset = 0
        _closed = _guarded = False

    binding = Sized()
    binding.buffer, binding.size = binding, size
    kernel = kernel_of(KernelInfo("k", (BindingRule("x", bytes=fixed, constant="n", scale=scale),), (ConstantRule("n"),)))
    if size >= fixed + scale * n:
        kernel.check((1, 1, 1), [binding], kernel.pack((n,)))
    else:
        with pytest.raises(UsageError, match=f"needs {fixed + scale * n} bytes, got {size}"):
            kernel.check((1, 1, 1), [binding], kernel.pack((n,)))


def test_an_offset_must_be_aligned(add, device, bindings):
    bindings[1] = device.allocate(200).view(32)
    with pytest.raises(UsageError, match="add: binding 1 must start at a multiple of 64 bytes, not 32"):
        add.check((1, 1, 1), bindings, add.pack((0, 1)))
    bindings[1] = device.allocate(200).view(64)
    add.check((1, 1, 1), bindings, add.pack((0, 1)))


def test_a_buffer_of_another_device_is_refused(add, bindings, other_device):
    bindings[1] = other_device.allocate(36)
    with pytest.raises(UsageError, match="add: binding 1 belongs to another device; copy it through host memory"):
        add.check((1, 1, 1), bindings, add.pack((0, 1)))


def test_a_closed_buffer_is_refused(add, bindings):
    view = bindings[2].view()
    bindings[2].close()
    for binding in (bindings[2], view):
        with pytest.raises(ClosedError, match="was closed; allocate a new one"):
            add.check((1, 1, 1), [*bindings[:2], binding], add.pack((0, 1)))


def test_a_baked_in_grid_takes_no_other():
    kernel = kernel_of(FIXED)
    assert kernel.grid_for() == kernel.grid_for(7) == (64, 1, 1)
    kernel.check((64, 1, 1), [], b"")
    with pytest.raises(UsageError, match=r"compiled for the grid \(64, 1, 1\), got \(63, 1, 1\)"):
        kernel.check((63, 1, 1), [], b"")


@pytest.mark.parametrize("grid", [(-1, 1, 1), (1 << 32, 1, 1), (1, 1 << 32, 1), (1, 1, 1 << 16), (1, 1, -5)])
def test_a_grid_outside_the_limits_is_refused(grid):
    with pytest.raises(UsageError, match="is outside 0 to") as caught:
        kernel_of(KernelInfo("k")).check(grid, [], b"")
    assert caught.value.code is Status.OUT_OF_RANGE


@pytest.mark.parametrize("grid", [(1, 1), (1, 1, 1, 1), 5, None, (1.5, 1, 1), "111"])
def test_a_grid_is_three_whole_numbers(grid):
    with pytest.raises(UsageError, match="a grid is three whole numbers"):
        kernel_of(KernelInfo("k")).check(grid, [], b"")


@given(st.lists(st.integers(0, 1 << 60), max_size=3))
def test_a_grid_covers_the_elements_and_no_workgroup_is_idle(elements):
    grid = kernel_of(ADD).grid_for(*elements)
    for count, each, wanted in zip(grid, (64, 8, 1), (*elements, 1, 1, 1), strict=False):
        assert count * each >= wanted > (count - 1) * each


@pytest.mark.parametrize("elements", [(1, 1, 1, 1), (-1,), (1, -1)])
def test_elements_are_up_to_three_counts(add, elements):
    with pytest.raises(UsageError, match="up to three counts"):
        add.grid_for(*elements)


LIMITS = {
    "u32": (0, (1 << 32) - 1),
    "i32": (-(1 << 31), (1 << 31) - 1),
    "u64": (0, (1 << 64) - 1),
    "i64": (-(1 << 63), (1 << 63) - 1),
    "f32": (-math.inf, math.inf),
    "f64": (-1e308, 1e308),
}


@pytest.mark.parametrize("kind", CONSTANT_CODES)
def test_constants_of_each_type_are_packed_little_endian_in_whole_words(kind):
    kernel = kernel_of(KernelInfo("k", constants=(ConstantRule("before"), ConstantRule("x", kind), ConstantRule("after"))))
    for value in LIMITS[kind]:
        packed = kernel.pack((1, value, 2))
        assert len(packed) == kernel.constant_bytes
        assert kernel.constant_bytes % 4 == 0
        assert struct.unpack("<I" + CONSTANT_CODES[kind] + "I", packed) == (1, value, 2)
    assert kernel.pack(packed) is packed


def test_numpy_scalars_are_constants(add):
    assert add.pack((np.float32(0.5), np.int64(7))) == add.pack((0.5, 7))


@pytest.mark.parametrize("constants", [(), (1,), (1, 2, 3), ("x", 1), (0.5, 0.5), (0.5, -1), (0.5, 1 << 32), (1e300, 1), 5, None])
def test_wrong_constants_say_what_the_kernel_takes(add, constants):
    with pytest.raises(UsageError, match=r"add takes the constants \(alpha: f32, n: u32\), got"):
        add.pack(constants)


def test_packed_constants_must_have_the_size(add):
    with pytest.raises(UsageError, match="add takes 8 bytes of constants, got 4"):
        add.pack(b"1234")
    assert kernel_of(FIXED).pack(()) == kernel_of(FIXED).pack(b"") == b""


def test_an_executable_is_a_mapping_of_its_kernels(device):
    executable = Executable(device, device.targets[0], [ADD, FIXED])
    assert list(executable) == ["add", "fixed"]
    assert len(executable) == 2
    assert "add" in executable
    assert "sub" not in executable
    assert executable["fixed"].ordinal == 1
    assert repr(executable["add"]) == "<Kernel add: 3 bindings, 2 constants>"
    assert repr(executable) == "<Executable python:any: add, fixed>"
    executable.close()
    with pytest.raises(NotFoundError, match="there is no kernel 'sub'; this executable has: add, fixed"):
        _ = executable["sub"]
