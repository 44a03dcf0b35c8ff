"""Builds triton_matmul.rbundle with Triton: c = a @ b in bf16, for D04's tests and tools/measure_cuda.py. No GPU is needed.

`pip install triton`, then `python triton_matmul.py`. Made with Triton 3.6.
"""

from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from remora import Access, BindingRule, Bundle, ConstantRule, GridRule, KernelInfo

ROWS, COLUMNS, DEPTH = 128, 256, 64
SIZES = ("m", "n", "k")
SIGNATURE = (
    {"a": "*bf16", "b": "*bf16", "c": "*bf16"} | dict.fromkeys(SIZES, "i32") | dict.fromkeys(("BM", "BN", "BK"), "constexpr")
)
#: Every address and size is a multiple of 16.
EVEN = {(index,): [["tt.divisibility", 16]] for index in range(6)}


@triton.jit
def matmul(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):  # noqa: N803 - Triton's way to write constants
    """A workgroup makes BM x BN results. m, n and k are multiples of BM, BN and BK."""
    row = tl.program_id(1) * BM + tl.arange(0, BM)
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    left = a + row[:, None] * k + depth[None, :]
    right = b + depth[:, None] * n + column[None, :]
    total = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, k, BK):
        total = tl.dot(tl.load(left), tl.load(right), total)
        left += BK
        right += BK * n
    tl.store(c + row[:, None] * n + column[None, :], total.to(tl.bfloat16))


def main() -> None:
    """Write the bundle."""
    source = ASTSource(matmul, SIGNATURE, {"BM": ROWS, "BN": COLUMNS, "BK": DEPTH}, attrs=EVEN)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8, "num_stages": 3})
    told = compiled.metadata
    assert told.global_scratch_size == told.profile_scratch_size == 0
    kernel = KernelInfo(
        told.name,
        (BindingRule("a", Access.READ, alignment=16), BindingRule("b", Access.READ, alignment=16), BindingRule("c", Access.WRITE)),
        (
            *(ConstantRule(name, "i32") for name in SIZES),
            ConstantRule("global_scratch", "u64"),
            ConstantRule("profile_scratch", "u64"),
        ),
        workgroup=(32 * told.num_warps, 1, 1),
        grid=GridRule((COLUMNS, ROWS, 1)),
        shared_bytes=told.shared,
    )
    bundle = Bundle.from_parts("triton_matmul", [kernel], {"cuda:sm_90a": compiled.asm["cubin"]})
    bundle.save(Path(__file__).with_name("triton_matmul.rbundle"))


if __name__ == "__main__":
    main()
