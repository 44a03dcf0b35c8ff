"""D04, D05, D11: one model by IREE's compiler runs where its executables do.

`kernels/iree_sum.rbundle` was made by `remora build --iree iree_sum.mlir` with iree-base-compiler 3.13; the model is in the bundle
(`remora inspect`). IREE writes PTX for sm_80 and knows no sm_90: a newer GPU's driver compiles that PTX for itself.
"""

from array import array
from pathlib import Path

import pytest
from tests.cuda_device import need_cuda

import remora
from remora.drivers.hip.code_object import read_code_object
from remora.hal.target import Target

BUNDLE = Path(__file__).parent / "kernels/iree_sum.rbundle"
N = 100_003


def check(uri, family):
    """Adds two arrays of whole numbers on the device."""
    bundle = remora.Bundle.load(BUNDLE)
    (kernel,) = bundle.kernels
    with remora.open(uri, retry=30) as device:
        add = device.load(bundle)[kernel.name]
        assert add.executable.target.family == family
        a, b, out = device.upload(array("f", range(N))), device.upload(array("f", [3.0] * N)), device.allocate(4 * N)
        device.queue.dispatch(add, add.grid_for(N), [a, b, out], (N, 0) * (len(kernel.constants) // 2))
        assert out.read(timeout=30).cast("f") == array("f", range(3, N + 3))


def test_d11_on_the_processor():
    check("cpu", "cpu")


@pytest.mark.cuda
def test_d04_irees_ptx_for_sm_80_runs_on_a_newer_gpu():
    need_cuda()
    ptx = bytes(remora.Bundle.load(BUNDLE).artifact(Target("cuda", "ptx7.6")))
    assert b".target sm_80\n" in ptx
    check("cuda", "cuda")


@pytest.mark.parametrize("processor", ["gfx90a", "gfx1100"])
def test_d05_irees_code_objects_are_what_the_manifest_says(processor):
    bundle, target = remora.Bundle.load(BUNDLE), Target("amdgpu", processor)
    (kernel,) = bundle.info_for(target).kernels
    code = read_code_object(bytes(bundle.artifact(target)))
    entry = code.kernels[kernel.export or kernel.name]
    assert code.processor.name == processor
    kinds = [argument.kind for argument in entry.arguments]
    assert kinds == ["global_buffer"] * len(kernel.bindings) + ["by_value"] * len(kernel.constants)
    x, y, z = kernel.workgroup
    assert x * y * z <= entry.most
