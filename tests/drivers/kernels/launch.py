"""Builds launch.rbundle from launch.cu with nvcc 12 or 13, for D04's tests: `python launch.py`. No GPU is needed."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from remora import Access, BindingRule, Bundle, ConstantRule, GridRule, KernelInfo

FOLDER = Path(__file__).parent
SHARED = 100 << 10

WORDS = tuple(BindingRule(name, access, constant="n", scale=4) for name, access in (("x", Access.READ), ("out", Access.WRITE)))
TURN = KernelInfo("turn", WORDS, (ConstantRule("n"),), (256, 1, 1), GridRule((SHARED // 4, 1, 1)), shared_bytes=SHARED)
RANKS = KernelInfo("ranks", (BindingRule("out", Access.WRITE, bytes=16),), workgroup=(32, 1, 1), export="ranks")
CLUSTERS = ((2, 1, 1), (4, 1, 1), (2, 2, 1))
KERNELS = (
    TURN,
    replace(TURN, name="turn_beside"),
    replace(TURN, name="turn_small", export="turn", shared_bytes=1024, grid=GridRule((256, 1, 1))),
    *(replace(RANKS, name="ranks_" + "x".join(map(str, cluster)), cluster=cluster) for cluster in CLUSTERS),
    replace(RANKS, name="pairs", export="pairs", cluster=(2, 1, 1)),
)


def compiled(*options: str) -> bytes:
    """What nvcc makes of the source."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        subprocess.run(["nvcc", "-O3", "--no-compress", *options, "-o", out, FOLDER / "launch.cu"], check=True)
        return out.read_bytes()


def check_ptx(ptx: bytes) -> None:
    """ptxas proves that the text is of the version that it says."""
    with TemporaryDirectory() as folder:
        text = Path(folder) / "launch.ptx"
        text.write_bytes(ptx)
        subprocess.run(["ptxas", "-arch=sm_90", "-o", text.with_suffix(".cubin"), text], check=True)


def main() -> None:
    """Write the bundle."""
    ptx = re.sub(rb"^\.version .*$", b".version 8.0", compiled("-ptx", "-arch=compute_90"), count=1, flags=re.MULTILINE)
    ptx = re.sub(rb"^//.*\n", b"", ptx, flags=re.MULTILINE)
    check_ptx(ptx)
    artifacts = {"cuda:sm_90": compiled("-cubin", "-arch=sm_90"), "cuda:ptx8.0": ptx}
    sources = {"launch.cu": (FOLDER / "launch.cu").read_bytes()}
    Bundle.from_parts("launch", KERNELS, artifacts, sources).save(FOLDER / "launch.rbundle")


if __name__ == "__main__":
    main()
