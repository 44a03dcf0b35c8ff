"""Executables of IREE's compiler become bundles with their grids (D11, H19)."""

from __future__ import annotations

import platform
import shutil
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import remora
from remora.builder.iree import import_model, wanted_targets
from remora.builder.iree_grid import grid_rule
from remora.builder.iree_text import kernel_of, read_bindings, read_exports
from remora.errors import NotFoundError, UnsupportedError, UsageError
from remora.hal.buffer import Access
from remora.hal.executable import BindingRule, GridRule
from remora.hal.target import Target

NATIVE = f"cpu:{platform.machine()}"
needs_iree = pytest.mark.skipif(not shutil.which("iree-compile"), reason="needs iree-compile: pip install iree-base-compiler")
MODEL = """
func.func @f(%a: tensor<?xf32>, %x: tensor<?xf32>) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %a, %c0 : tensor<?xf32>
  %e = tensor.empty(%n) : tensor<?xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
      iterator_types = ["parallel"]} ins(%a, %x : tensor<?xf32>, tensor<?xf32>) outs(%e : tensor<?xf32>) {
  ^bb0(%p: f32, %q: f32, %o: f32):
    %s = arith.addf %p, %q : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  return %r : tensor<?xf32>
}
"""
#: What iree-compile 3.13 wrote, shortened: a fixed grid, ceil(n / 4096) in arith, and ceil(n / 32) in affine.
FIXED = ("%c64 = arith.constant 64 : index", "%c1 = arith.constant 1 : index", "hal.return %c64, %c1, %c1 : index, index, index")
ARITH = """%c4096 = arith.constant 4096 : index
%c0 = arith.constant 0 : index
%c1 = arith.constant 1 : index
%0 = arith.cmpi sle, %arg2, %c0 : index
%1 = arith.subi %c0, %arg2 : index
%2 = arith.subi %arg2, %c1 : index
%3 = arith.select %0, %1, %2 : index
%4 = arith.divsi %3, %c4096 : index
%5 = arith.subi %c0, %4 : index
%6 = arith.addi %4, %c1 : index
%7 = arith.select %0, %5, %6 : index
hal.return %7, %c1, %c1 : index, index, index""".splitlines()
AFFINE = (
    "%c1 = arith.constant 1 : index",
    "%0 = affine.min affine_map<()[s0] -> (s0 ceildiv 32, 2147483647)>()[%arg2]",
    "hal.return %0, %c1, %c1 : index, index, index",
)
LAYOUT = '#hal.pipeline.layout<constants = 4, bindings = [#hal.pipeline.binding<storage_buffer, "ReadOnly|Indirect">]>'
DEVICE = "%arg0: !hal.device"
TARGETS = f"""
  hal.executable private @f_dispatch_0 {{
      hal.executable.export public @one ordinal(0) layout({LAYOUT}) count({DEVICE}, %arg1: index, %arg2: index) -> (index) {{
        {AFFINE[0]}
        {AFFINE[1]}
        {AFFINE[2]}
      }} <workgroup_size = [32 : index, 2 : index, 1 : index], subgroup_size = 32>
      hal.executable.export public @two ordinal(1) layout(#hal.pipeline.layout<bindings = []>) count({DEVICE}) -> (index) {{
        {FIXED[0]}
        {FIXED[1]}
        {FIXED[2]}
      }}
"""
SPAN = "hal.interface.binding.subspan layout(<constants = 4>)"
TENSOR = "!iree_tensor_ext.dispatch.tensor"
FLAGS = 'flags("ReadOnly|Indirect")'
SOURCES = f"""
        func.func @one() {{
          %17 = {SPAN} binding(0) alignment(64) offset(%c0) {FLAGS} : {TENSOR}<readonly:tensor<?xf32>>{{%1}}
          %18 = {SPAN} binding(2) alignment(64) offset(%c16384) : {TENSOR}<writeonly:tensor<4x8xbf16>>
          %19 = {SPAN} binding(1) alignment(4) offset(%3) : {TENSOR}<readonly:tensor<4x8xi64>>
          %20 = {SPAN} binding(2) alignment(64) offset(%c0) : {TENSOR}<readonly:tensor<4xi64>>
"""


def test_d11_a_constant_region_is_a_fixed_grid():
    assert grid_rule("k", FIXED, []) == GridRule(fixed=(64, 1, 1))


@pytest.mark.parametrize(("lines", "elements"), [(ARITH, 4096), (AFFINE, 32)])
def test_d11_a_region_over_the_workload_is_elements_a_workgroup(lines, elements):
    assert grid_rule("k", lines, ["%arg1", "%arg2"]) == GridRule((elements, 1, 1))


@settings(max_examples=25)  # each runs its region some hundred times
@given(st.tuples(*[st.integers(1, 5000)] * 3))
def test_d11_any_ceiling_division_is_recognised(elements):
    lines = [f"%{axis} = affine.apply affine_map<()[s0] -> (s0 ceildiv {each})>()[%n]" for axis, each in enumerate(elements)]
    assert grid_rule("k", [*lines, "hal.return %0, %1, %2 : index"], ["%n"]) == GridRule(elements)


@pytest.mark.parametrize(
    "line",
    [
        "%0 = affine.apply affine_map<()[s0] -> (s0 * 2)>()[%n]",
        "%0 = affine.apply affine_map<()[s0] -> (s0 floordiv 7)>()[%n]",
        "%0 = affine.apply affine_map<()[s0] -> ((s0 ceildiv 4) * (s0 ceildiv 4))>()[%n]",
        "%0 = affine.apply affine_map<()[s0] -> (s0 ** 2)>()[%n]",
        "%0 = affine.apply affine_map<()[s0] -> ((s0)>()[%n]",
        "%0 = arith.shli %n, %n : index",
        "%0 = arith.divsi %n, %gone : index",
        "%0 = arith.divui %n, %zero : index",
    ],
)
def test_d11_a_grid_that_no_rule_says_is_refused_with_the_region(line):
    with pytest.raises(UsageError, match=r"k: .*%0 = (arith|affine)"):
        grid_rule("k", ["%zero = arith.constant 0 : index", line, "hal.return %0, %0, %0 : index"], ["%n"])


def test_d11_exports_have_their_grids_workgroups_and_constants():
    one, two = read_exports(TARGETS)
    assert (one.name, one.constants, one.workgroup, one.grid) == ("one", 4, (32, 2, 1), GridRule((32, 1, 1)))
    assert (two.name, two.constants, two.workgroup, two.grid) == ("two", 0, (1, 1, 1), GridRule(fixed=(64, 1, 1)))
    with pytest.raises(UsageError, match="nothing to dispatch"):
        read_exports("module {}")
    with pytest.raises(UsageError, match="ends inside the count region of one"):
        read_exports(TARGETS[: TARGETS.index("hal.return")])


def test_d11_bindings_have_access_extent_and_alignment():
    rules = read_bindings(SOURCES)["one"]
    assert rules == (
        BindingRule("b0", Access.READ, 0, alignment=64),
        BindingRule("b1", Access.READ, 0, alignment=4),
        BindingRule("b2", Access.READ_WRITE, 16384 + 64, alignment=64),
    )
    kernel = kernel_of(read_exports(TARGETS)[0], rules)
    assert [rule.name for rule in kernel.constants] == ["c0", "c1", "c2", "c3"]


@given(st.text(alphabet="hal.executable.export public @one ordinal(0) layout() count(%arg0: !hal.device) -> {}\n<>x", max_size=200))
def test_d11_any_text_is_read_or_refused(text):
    read_bindings(text)
    with pytest.raises(UsageError, match="nothing to dispatch"):
        read_exports(text)


def test_d11_words_and_files_that_are_none_are_told(tmp_path, monkeypatch):
    with pytest.raises(NotFoundError, match="no IREE recipe for 'opencl'; there are cpu:x86_64, "):
        wanted_targets(["opencl"])
    assert wanted_targets(["hip", "llvm-cpu:aarch64"]) == [
        Target("amdgpu", "gfx90a"), Target("amdgpu", "gfx1100"), Target("cpu", "aarch64")]  # fmt: skip
    with pytest.raises(NotFoundError, match="there is no model"):
        import_model(tmp_path / "gone.mlir")
    (tmp_path / "made.vmfb").write_bytes(b"?")
    with pytest.raises(UsageError, match=r"give the \.mlir that it was made from"):
        import_model(tmp_path / "made.vmfb")
    (tmp_path / "model.mlir").write_text(MODEL)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(UnsupportedError, match="iree-compile is missing: pip install iree-base-compiler"):
        import_model(tmp_path / "model.mlir")


@needs_iree
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_d11_a_model_becomes_a_bundle_that_computes(tmp_path):
    path = tmp_path / "sum.mlir"
    path.write_text(MODEL)
    bundle = import_model(path, [NATIVE, "cuda", "hip", "vulkan"]).bundle
    assert {target.family for target in bundle.targets} == {"cpu", "cuda", "amdgpu", "vulkan"}
    assert b".version 7.6\n" in bundle.artifact(Target("cuda", "ptx7.6"))
    (kernel,) = bundle.kernels
    for target in bundle.targets:
        (own,) = bundle.info_for(target).kernels
        assert (own.grid.elements[0] > 1, own.bindings, own.export) == (True, kernel.bindings, kernel.export)
    n = 100_003
    with remora.open("cpu") as device:
        add = device.load(bundle)[kernel.name]
        a, b, out = device.upload(array("f", range(n))), device.upload(array("f", [0.5] * n)), device.allocate(4 * n)
        device.queue.dispatch(add, add.grid_for(n), [a, b, out], (n, 0) * (len(kernel.constants) // 2))
        assert list(out.read(timeout=30).cast("f")) == [number + 0.5 for number in range(n)]


@needs_iree
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_d11_a_broken_model_shows_what_the_compiler_says(tmp_path):
    path = tmp_path / "broken.mlir"
    path.write_text("func.func @f() { return %nothing : f32 }")
    with pytest.raises(UsageError, match=r"(?s)did not compile; iree-compile ended with 1:.*broken.mlir"):
        import_model(path, [NATIVE])
