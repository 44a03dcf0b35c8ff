"""Builds the sample bundles in src/remora/samples from the sources in this folder: `python kernels/build.py [name ...]`.

README.md says which compilers it takes and how to get them. The bundles are the same bytes on every run.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
SAMPLES = HERE.parent / "src" / "remora" / "samples"
sys.path.insert(0, str(HERE.parent / "src"))

from remora.builder.build import FAMILIES, Outcome, build, targets_of  # noqa: E402 the repository's own package, installed or not
from remora.builder.iree import import_model  # noqa: E402
from remora.hal.buffer import Access  # noqa: E402
from remora.hal.bundle import Bundle  # noqa: E402
from remora.hal.executable import BindingRule, GridRule, KernelInfo  # noqa: E402
from remora.hal.specialization import ExecutableInfo  # noqa: E402
from remora.hal.target import Target  # noqa: E402
from remora.hal.variant import KernelVariant  # noqa: E402

SIZE = 512  # as in matmul.mlir and matmul.c
#: Bundles that are one source and nothing else.
PLAIN = ("vector", "special", "faults")
#: Files that other compilers made, by bundle: they lie in this folder.
VULKAN = Target("vulkan", "spirv1.3+bda")
ADDED: dict[str, dict[Target, str]] = {name: {VULKAN: f"spirv/{name}.spv"} for name in (*PLAIN, "matmul")}


MATRIX_BYTES = SIZE * SIZE * 4
MATMUL = KernelInfo(
    "matmul",
    (
        BindingRule("a", Access.READ, MATRIX_BYTES, alignment=64),
        BindingRule("b", Access.READ, MATRIX_BYTES, alignment=64),
        BindingRule("c", Access.WRITE, MATRIX_BYTES, alignment=64),
    ),
    grid=GridRule(fixed=(64, 1, 1)),  # what the compiler chose for every processor; `check_contract` compares
    export=f"matmul_dispatch_0_matmul_{SIZE}x{SIZE}x{SIZE}_f32",
)


def check_contract(made: KernelInfo) -> None:
    """Exit unless the compiler's kernel is MATMUL, but for names: what it chose is in no library, only in the manifest."""
    named = tuple(replace(rule, name=own.name) for rule, own in zip(made.bindings, MATMUL.bindings, strict=True))
    found = replace(made, name=MATMUL.name, bindings=named)
    if found != MATMUL:
        sys.exit(f"the compiler made {found}, the manifest would say {MATMUL}: change MATMUL")


def matmul() -> Bundle:
    """IREE's library for processors; matmul.c for everything with items, with another grid."""
    others = [str(target) for target in targets_of([name for name in FAMILIES if name != "cpu"])]
    made = build(HERE / "matmul.c", others, added("matmul"), report).bundle
    artifacts = {target: made.artifact(target) for target in made.targets}
    kernel = made.kernels[0]
    variants = {target: {"matmul": KernelVariant(kernel.export, kernel.workgroup, kernel.grid)} for target in made.targets}
    compiled = import_model(HERE / "matmul.mlir", ["cpu"], report).bundle
    check_contract(compiled.kernels[0])
    artifacts |= {target: compiled.artifact(target) for target in compiled.targets}
    sources = {file: (HERE / file).read_bytes() for file in ("matmul.c", "matmul.mlir")}
    return Bundle.from_parts("matmul", ExecutableInfo((MATMUL,)), artifacts, sources, variants)


def report(outcome: Outcome) -> None:
    """One line for one target."""
    print(f"  {outcome.target}: {outcome.bytes:,} bytes, {outcome.seconds:.2f} s, {outcome.compiler}")


def added(name: str) -> dict[Target, bytes]:
    """The artifacts that other compilers made."""
    return {target: (HERE / file).read_bytes() for target, file in ADDED[name].items()}


def make(name: str) -> None:
    """Build one bundle. Every target is asked for: a sample that lacks one is no sample."""
    print(name)
    bundle = matmul() if name == "matmul" else build(HERE / f"{name}.c", list(FAMILIES), added(name), report).bundle
    path = SAMPLES / f"{name}.rbundle"
    bundle.save(path)
    print(f"  {path.relative_to(HERE.parent)}: {path.stat().st_size:,} bytes, digest {bundle.digest[:16]}")


def main() -> None:
    """Build the bundles named on the command line, or all."""
    parser = argparse.ArgumentParser(description="Build the sample bundles.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"which of {', '.join((*PLAIN, 'matmul'))}; all if none is given")
    names = parser.parse_args().names or [*PLAIN, "matmul"]
    if unknown := [name for name in names if name not in (*PLAIN, "matmul")]:
        sys.exit(f"there is no recipe for {', '.join(unknown)}; there are {', '.join((*PLAIN, 'matmul'))}")
    for name in names:
        make(name)


if __name__ == "__main__":
    main()
