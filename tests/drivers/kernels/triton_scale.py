"""Builds triton_scale.rbundle and triton_scale_pairs.rbundle with Triton, for D04's tests. No GPU is needed.

`pip install triton`, then `TRITON_PTXAS_PATH=$(which ptxas) python triton_scale.py` with CUDA 13.0's ptxas: a driver may
refuse code of a newer toolkit than it knows. Made with Triton 3.9.
"""

from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from remora import Access, BindingRule, Bundle, ConstantRule, GridRule, KernelInfo

BLOCK = 1024
SIGNATURE = {"x": "*fp32", "out": "*fp32", "n": "i32", "factor": "fp32", "BLOCK": "constexpr"}


@triton.jit
def scale(x, out, n, factor, BLOCK: tl.constexpr):  # noqa: N803 - Triton's way to write a constant
    """out = x + factor * the sum of the block."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0.0)
    tl.store(out + at, value + factor * tl.sum(value), mask=at < n)


def bundle_of(compiled) -> Bundle:
    """The cubin with its contract. No scratch memory is asked for, so both addresses that Triton adds are 0."""
    told = compiled.metadata
    assert told.global_scratch_size == told.profile_scratch_size == 0
    kernel = KernelInfo(
        told.name,
        (BindingRule("x", Access.READ, constant="n", scale=4), BindingRule("out", Access.WRITE, constant="n", scale=4)),
        (
            ConstantRule("n", "i32"),
            ConstantRule("factor", "f32"),
            ConstantRule("global_scratch", "u64"),
            ConstantRule("profile_scratch", "u64"),
        ),
        workgroup=(32 * told.num_warps, 1, 1),
        grid=GridRule((BLOCK // told.num_ctas, 1, 1)),
        shared_bytes=told.shared,
        cluster=(told.num_ctas, 1, 1),
    )
    return Bundle.from_parts(told.name, [kernel], {"cuda:sm_90": compiled.asm["cubin"]})


def main() -> None:
    """Write both bundles."""
    source = ASTSource(scale, SIGNATURE, {"BLOCK": BLOCK})
    for ctas, name in ((1, "triton_scale"), (2, "triton_scale_pairs")):
        options = {"num_ctas": ctas, "ptx_version": 80}
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        bundle_of(compiled).save(Path(__file__).with_name(f"{name}.rbundle"))


if __name__ == "__main__":
    main()
