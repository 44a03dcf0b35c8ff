"""`remora build` and `remora inspect` as people use them (D11)."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib import resources

import pytest

import remora

NATIVE = f"cpu:{platform.machine()}"
needs_cc = pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler: apt-get install gcc libc6-dev")
SOURCE = (
    "#include <remora.h>\nkernel twice(in u32 x[n], out u32 y[n], u32 n) elements(64) { FOR_ELEMENTS(i, n) y[i] = 2 * x[i]; }\n"
)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "twice.c"
    path.write_text(SOURCE)
    (tmp_path / "empty.json").write_text("{}")
    return path


@pytest.fixture
def without_compilers(tmp_path):
    """The command with nothing on PATH."""

    def run(*args):
        command = [sys.executable, "-m", "remora.cli", *map(str, args)]
        environment = {**os.environ, "PATH": str(tmp_path)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=False, cwd=tmp_path)

    return run


@needs_cc
def test_d11_build_then_inspect_then_run(remora_command, source, tmp_path):
    spirv, output = tmp_path / "k.spv", tmp_path / "out.rbundle"
    spirv.write_bytes(b"\x03\x02\x23\x07")
    words = ["--target", NATIVE, "--add", f"vulkan,spirv1.3+bda={spirv}"]
    done = remora_command("build", str(source), "-o", str(output), *words)
    assert (done.returncode, done.stderr) == (0, "")
    first, second, last = (line.split() for line in done.stdout.splitlines())
    assert first[0] == NATIVE
    assert first[4] in {"ms", "s"}
    assert second == ["vulkan:spirv1.3+bda", "4", "B", "as", "given"]
    assert last[0] == "bundle"
    shown = remora_command("inspect", str(output))
    assert (shown.returncode, shown.stderr) == (0, "")
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["vulkan:spirv1.3+bda", "4", "B"] in lines
    assert ["twice", "x", "read", "4", "B", "x", "n", "4", "B", "1", "x", "1", "x", "1",
            "one", "for", "64", "x", "1", "x", "1", "elements"] in lines  # fmt: skip
    facts = json.loads(remora_command("inspect", str(output), "--json").stdout)
    assert [target["target"] for target in facts["targets"]] == [NATIVE, "vulkan:spirv1.3+bda"]
    assert facts["kernels"][0]["grid"] == {"elements": [64, 1, 1], "fixed": None}
    with remora.open("cpu") as device:
        twice = device.load(remora.Bundle.load(output))["twice"]
        x, y = device.upload(bytes([1, 0, 0, 0, 5, 0, 0, 0])), device.allocate(8)
        device.queue.dispatch(twice, twice.grid_for(2), [x, y], (2,))
        assert list(y.read(timeout=30).cast("I")) == [2, 10]


def test_d11_what_has_no_compiler_is_left_out_and_said(without_compilers, source, tmp_path):
    done = without_compilers("build", source)
    assert (done.returncode, done.stderr) == (0, "")
    assert any(line.startswith("cuda:sm_90") and "left out: no compiler: install" in line for line in done.stdout.splitlines())
    assert "opencl:c1.2" in remora.Bundle.load(tmp_path / "twice.rbundle").__repr__()


def test_d11_what_was_asked_for_and_has_no_compiler_is_an_error(without_compilers, source, tmp_path):
    done = without_compilers("build", source, "--target", "cuda,opencl")
    assert done.returncode == 1
    assert "error: cuda:sm_80: no compiler: install the CUDA toolkit" in done.stderr
    assert not (tmp_path / "twice.rbundle").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gone.c"], "there is no source gone.c"),
        (["{source}", "--target", "tpu"], "there is no recipe for 'tpu'"),
        (["{source}", "--add", "vulkan"], "write TARGET=FILE"),
        (["{source}", "--add", "vulkan:a=gone.spv"], "there is no file gone.spv"),
        (["gone.json"], "there is no file gone.json"),
        (["{source.parent}/empty.json"], "empty.json has contracts and no code: give artifacts with --add TARGET=FILE"),
        (["{source}", "-o", "/nowhere/at/all.rbundle"], "there is no folder /nowhere/at"),
    ],
)
def test_d11_wrong_words_are_told_and_nothing_is_written(remora_command, source, words, message):
    done = remora_command("build", *(word.format(source=source) for word in words))
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_d04_a_cubin_becomes_a_bundle_whose_launch_inspect_shows(remora_command, tmp_path):
    """Two kernels' contracts as JSON, and the code of another compiler."""
    contracts, cubin, output = tmp_path / "tile.json", tmp_path / "tile.cubin", tmp_path / "tile.rbundle"
    kernels = [{"name": "tile", "shared_bytes": 102400, "cluster": [2, 1, 1]}, {"name": "plain", "cluster": [1, 1, 1]}]
    contracts.write_text(json.dumps({"kernels": kernels}))
    cubin.write_bytes(b"code")
    done = remora_command("build", str(contracts), "-o", str(output), "--add", f"cuda:sm_90={cubin}")
    assert (done.returncode, done.stderr) == (0, "")
    shown = remora_command("inspect", str(output)).stdout.splitlines()
    assert [line for line in shown if line.startswith("launch")] == [
        "launch    tile  102400 B of dynamic shared memory  clusters of 2 x 1 x 1 workgroups"]  # fmt: skip
    tile, plain = json.loads(remora_command("inspect", str(output), "--json").stdout)["kernels"]
    assert (tile["shared_bytes"], tile["cluster"]) == (102400, [2, 1, 1])
    assert not {"shared_bytes", "cluster"} & plain.keys()
    assert remora.Bundle.load(output).artifact(remora.Target("cuda", "sm_90")) == b"code"


def test_d04_inspect_shows_a_variants_launch(remora_command, tmp_path):
    variants = {"cuda:sm_80": {"tile": remora.KernelVariant(shared_bytes=0, cluster=(1, 1, 1))}}
    kernel = remora.KernelInfo("tile", shared_bytes=4096, cluster=(2, 1, 1))
    remora.Bundle.from_parts("tile", [kernel], {"cuda:sm_90": b"a", "cuda:sm_80": b"b"}, variants=variants).save(tmp_path / "t")
    (line,) = [each for each in remora_command("inspect", str(tmp_path / "t")).stdout.splitlines() if "sm_80" in each]
    assert line.split("  ")[-1].strip().endswith(", 0 B of dynamic shared memory, clusters of 1 x 1 x 1 workgroups")


@pytest.mark.parametrize("name", ["vector", "matmul", "special"])
def test_d11_inspect_shows_the_samples(remora_command, name):
    place = resources.files("remora.samples").joinpath(f"{name}.rbundle")
    facts = json.loads(remora_command("inspect", str(place), "--json").stdout)
    targets = {target["target"]: target for target in facts["targets"]}
    assert {"cpu:aarch64", "opencl:c1.2", "cuda:sm_90", "cuda:ptx7.8", "amdgpu:gfx90a"} <= targets.keys()
    if name == "matmul":
        assert facts["kernels"][0]["grid"]["fixed"] == [64, 1, 1]
        assert targets["cuda:sm_90"]["kernels"][0]["grid"]["fixed"] == [8, 8, 1]


def test_d11_a_bundle_cut_short_is_told(remora_command, tmp_path):
    whole = resources.files("remora.samples").joinpath("vector.rbundle").read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.rbundle").write_bytes(whole[:length])
        done = remora_command("inspect", str(tmp_path / "cut.rbundle"))
        assert done.returncode == 2
        assert "cut.rbundle" in done.stderr
        assert "Traceback" not in done.stderr
