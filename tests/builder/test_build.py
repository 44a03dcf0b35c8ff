"""From a source to a bundle whose kernels compute (D11, H19), and what is told when that is not possible."""

from __future__ import annotations

import platform
import shutil
import struct
from array import array

import pytest

import remora
from remora.builder.build import FAMILIES, build, targets_of
from remora.builder.clang import find_clang
from remora.errors import NotFoundError, UnsupportedError, UsageError
from remora.hal.bundle import Bundle
from remora.hal.target import Target, choose_target

MACHINE = platform.machine()
NATIVE = f"cpu:{MACHINE}"
needs_cc = pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler: apt-get install gcc libc6-dev")
needs_nvcc = pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc: install the CUDA toolkit 12 or 13")
needs_clang = pytest.mark.skipif(find_clang() is None, reason="needs clang: apt-get install clang")
needs_amdgpu = pytest.mark.skipif(
    find_clang(16, links=True) is None, reason="needs clang with lld: apt-get install clang-19 lld-19"
)
LONG = 30.0

SOURCE = """#include <remora.h>
#define TILE 64
#include "shared.h"
specialization u32 FACTOR = 3;
specialization f64 RATE = 0.5;
specialization f32 HALF = 0.25;
specialization i64 FAR = -5;
global u32 calls[2] = {7, 0};

// Sums of tiles: two phases of the items, shared and private memory.
kernel sums(in u32 x[n], out u32 out[TILE], u32 n) elements(TILE) workgroup(16) {
  SHARED(u32, part, 16);
  PRIVATE(u32, mine, 1);
  FOR_ITEMS(t) {
    OWN(mine, t)[0] = 0;
    for (u32 i = GROUP_X * TILE + t; i < n && i < GROUP_X * TILE + TILE; i += 16) OWN(mine, t)[0] += twice(x, i);
  }
  FOR_ITEMS(t) part[15 - t] = OWN(mine, t)[0];
  FOR_ITEMS(t) if (t == 0) {
    u32 sum = 0;
    for (u32 i = 0; i < 16; ++i) sum += part[i];
    out[GROUP_X] = sum;
    ATOMIC_ADD(&calls[1], 1u);
  }
}

kernel wide(out i64 out[4], u32 small, i64 far, f32 alpha, u64 huge) {
  out[0] = far;
  out[1] = (i64)huge;
  out[2] = (i64)as_u32(alpha) + small;
  out[3] = FAR * (i64)FACTOR;
}

kernel spots(out u32 out[12]) elements(2, 3) {
  out[GROUP_X + 2 * GROUP_Y + 6 * GROUP_Z] = 100 * GROUP_X + 10 * GROUP_Y + GROUP_Z;
}
kernel rates(out u32 out[2]) { out[0] = (u32)(8 * RATE); out[1] = as_u32(HALF + as_f32(calls[0] - 7)); }
"""
SHARED = "FUNCTION u32 twice(DEVICE const u32 *x, u32 i) { return 2 * x[i]; }\n"


@pytest.fixture
def source(tmp_path):
    """A source that uses all of the language."""
    (tmp_path / "shared.h").write_text(SHARED)
    path = tmp_path / "whole.c"
    path.write_text(SOURCE)
    return path


@needs_cc
def test_d11_a_source_becomes_a_bundle_that_computes(source, tmp_path):
    built = build(source, [NATIVE])
    assert [(outcome.target, outcome.missing) for outcome in built.outcomes] == [(Target("cpu", MACHINE), "")]
    built.bundle.save(tmp_path / "whole.rbundle")
    bundle = Bundle.load(tmp_path / "whole.rbundle")
    assert bundle.sources == ("shared.h", "whole.c")
    with remora.open("cpu") as device:
        kernels = device.load(bundle, {"FACTOR": 9})
        n = 150
        x, out = device.upload(array("I", range(n))), device.upload(bytes(256))
        sums = kernels["sums"]
        assert sums.grid_for(n) == (3, 1, 1)
        device.queue.dispatch(sums, sums.grid_for(n), [x, out], (n,))
        expected = [2 * sum(range(64)), 2 * sum(range(64, 128)), 2 * sum(range(128, n))]
        assert list(out.read(timeout=LONG).cast("I"))[:3] == expected
        assert list(kernels.globals["calls"].read(timeout=LONG).cast("I")) == [7, 3]
        device.queue.dispatch(kernels["wide"], (1, 1, 1), [out], (5, -1 << 40, 1.0, 1 << 63))
        assert struct.unpack_from("<4q", out.read(timeout=LONG)) == (-1 << 40, -1 << 63, 0x3F800000 + 5, -45)
        spots = kernels["spots"]
        assert spots.grid_for(4, 6, 3) == (2, 2, 3)
        device.queue.dispatch(spots, (2, 3, 2), [out])
        got = list(out.read(timeout=LONG).cast("I"))[:12]
        assert got == [100 * x + 10 * y + z for z in range(2) for y in range(3) for x in range(2)]
        device.queue.dispatch(kernels["rates"], (1, 1, 1), [out])
        assert list(out.read(timeout=LONG).cast("I"))[:2] == [4, 0x3E800000]


@needs_cc
def test_d11_what_another_compiler_made_goes_in_beside(source):
    target = Target("vulkan", "spirv1.3+bda")
    bundle = build(source, [NATIVE], {target: b"\x03\x02\x23\x07rest"}).bundle
    assert bundle.targets == (Target("cpu", MACHINE), target)
    assert bundle.artifact(target) == b"\x03\x02\x23\x07rest"


@needs_clang
def test_d11_opencl_text_is_whole_and_its_lines_are_the_sources(source):
    text = build(source, ["opencl"]).bundle.artifact(Target("opencl", "c1.2")).decode()
    assert "#include" not in text.replace("#include <remora.h>", "")
    for parameters in (
        "sums(__global const u32 *restrict x, __global u32 *restrict out, u32 n, __global u32 *calls)",
        "remora_globals(__global u32 *calls)",
    ):
        assert f"void {parameters} {{" in text
    assert '#line 1 "shared.h"' in text


@needs_clang
def test_d11_broken_opencl_shows_what_the_compiler_says(source):
    source.write_text("#include <remora.h>\n\nkernel k(out u32 x[4]) {\n  x[0] = nowhere;\n}\n")
    with pytest.raises(UsageError, match=r"(?s)opencl:c1.2 did not compile; clang.* ended with 1:\n.*whole.c:4:.*nowhere"):
        build(source, ["opencl"])


@needs_cc
def test_d11_a_broken_source_shows_what_the_compiler_says(source):
    source.write_text("#include <remora.h>\n\nkernel k(out u32 x[4]) {\n  x[0] = nowhere;\n}\n")
    with pytest.raises(UsageError, match=r"(?s)cpu:.* did not compile; .* ended with 1:\n.*whole.c:4:.*nowhere"):
        build(source, [NATIVE])


@needs_nvcc
@pytest.mark.slow
def test_d11_cuda_gets_code_for_its_architectures_and_text_for_older_drivers(source):
    bundle = build(source, ["cuda", "cuda:ptx7.0"]).bundle
    for key in ("sm_80", "sm_90"):
        cubin = bundle.artifact(Target("cuda", key))
        assert struct.unpack_from("<H", cubin, 18) == (190,)
        assert all(kernel.export.encode() in cubin for kernel in bundle.kernels)
    for version in ("7.0", "7.8"):
        text = bundle.artifact(Target("cuda", f"ptx{version}")).decode()
        assert text.count(f".version {version}\n") == 1
        assert ".target sm_80" in text
        assert ".visible .const .align 4 .b8 remora_words[24]" in text or "remora_words" in text


@needs_nvcc
@pytest.mark.slow
def test_d11_ptx_that_needs_a_newer_isa_than_asked_for_is_refused(source):
    with pytest.raises(UsageError, match=r"older than 9.9; ask for cuda:ptx"):
        build(source, ["cuda:ptx9.9"])
    source.write_text('#include <remora.h>\nkernel k(out u32 x[4]) { asm volatile("griddepcontrol.wait;"); x[0] = 1; }\n')
    with pytest.raises(UsageError, match=r"(?s)cuda:ptx7.0 did not compile; (ptxas|nvcc) ended with"):
        build(source, ["cuda:ptx7.0"])


@needs_amdgpu
def test_d11_hip_gets_code_objects_of_version_5_with_their_metadata(source):
    bundle = build(source, ["hip", "amdgpu:gfx942"]).bundle
    assert [target.key for target in bundle.targets] == ["gfx1100", "gfx90a", "gfx942"]
    machines = {"gfx90a": 0x3F, "gfx942": 0x4C, "gfx1100": 0x41}
    for target in bundle.targets:
        code = bundle.artifact(target)
        assert code[:4] == b"\x7fELF"
        assert (code[7], code[8]) == (64, 3)  # HSA, code object version 5
        kind, machine = struct.unpack_from("<HH", code, 16)
        (flags,) = struct.unpack_from("<I", code, 48)
        assert (kind, machine, flags & 0xFF) == (3, 224, machines[target.key])
        assert b"amdhsa.kernels" in code
        assert all(f"{kernel.export}.kd".encode() in code for kernel in bundle.kernels)


def test_h19_ptx_newer_than_the_driver_is_not_chosen():
    """A driver of CUDA 13.0 advertises PTX up to 9.0: what NVRTC 13.5 makes (9.5) must not reach it, 7.8 must."""
    advertised = [Target("cuda", key) for key in ("sm_90", "ptx9.0", "ptx8.8", "ptx8.0", "ptx7.8", "ptx7.0")]
    assert choose_target(advertised, [Target("cuda", "ptx9.5"), Target("cuda", "ptx7.8")]) == Target("cuda", "ptx7.8")
    with pytest.raises(NotFoundError, match=r"it takes cuda:sm_90, .*; the bundle has cuda:ptx9.5, cuda:sm_100"):
        choose_target(advertised, [Target("cuda", "ptx9.5"), Target("cuda", "sm_100")])


@needs_cc
@pytest.mark.skipif(MACHINE != "x86_64", reason="is about levels of x86-64")
def test_h19_an_artifact_for_a_newer_processor_is_refused_with_both_sides(source):
    newer = Bundle.from_parts("newer", build(source, [NATIVE]).bundle.info, {Target("cpu", "x86_64-v9"): b"?"})
    with remora.open("cpu") as device, pytest.raises(NotFoundError, match=r"it takes .*cpu:x86_64; the bundle has cpu:x86_64-v9"):
        device.load(newer, {"FACTOR": 1})


@pytest.mark.parametrize(
    ("word", "error", "message"),
    [
        ("fpga", NotFoundError, r"no recipe for 'fpga'; families: cpu, opencl, cuda, amdgpu, hip, rocm"),
        ("vulkan", NotFoundError, r"is added with --add"),
        ("cpu:riscv64", UsageError, r"no recipe for cpu:riscv64; the cpu family has x86_64, "),
        ("cuda:90", UsageError, r"no recipe for cuda:90; a key is like sm_90"),
        ("hip:sm_90", UsageError, r"no recipe for amdgpu:sm_90"),
        ("opencl:c3.0", UsageError, r"has c1.2"),
        ("cpu:", UsageError, r"no target"),
    ],
)
def test_d11_an_unknown_target_is_told_what_there_is(source, word, error, message):
    with pytest.raises(error, match=message):
        build(source, [word])


def test_d11_words_are_families_targets_and_aliases():
    assert targets_of(["hip", "amdgpu:gfx90a"]) == FAMILIES["amdgpu"].targets
    assert targets_of(["cpu:x86_64-v4"]) == (Target("cpu", "x86_64-v4"),)


def test_d11_a_compiler_that_is_missing_is_an_error_when_it_was_asked_for(source, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedError, match=r"cuda:sm_80: no compiler: install the CUDA toolkit"):
        build(source, ["cuda"])
    told = []
    bundle = build(source, told=told.append).bundle
    assert Target("opencl", "c1.2") in bundle.targets
    assert Target("cuda", "sm_80") not in bundle.targets
    assert any("CUDA toolkit" in outcome.missing for outcome in told if outcome.target.family == "cuda")


def test_d11_a_source_without_the_header_is_refused(source):
    source.write_text("kernel k() {}\n")
    with pytest.raises(UsageError, match=r"begin the source with #include <remora\.h>"):
        build(source, ["opencl"])


@needs_cc
def test_d11_equal_sources_make_equal_bundles(source):
    assert build(source, [NATIVE]).bundle.to_bytes() == build(source, [NATIVE]).bundle.to_bytes()
