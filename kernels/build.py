"""Builds the sample bundles in src/remora/samples from the sources in this folder: `python kernels/build.py [name ...]`.

README.md says which compilers it takes and how to get them. The bundles are the same bytes on every run.
"""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

HERE = Path(__file__).resolve().parent
SAMPLES = HERE.parent / "src" / "remora" / "samples"
sys.path.insert(0, str(HERE.parent / "src"))

from remora.hal.buffer import Access  # noqa: E402 the repository's own package, installed or not
from remora.hal.bundle import Bundle  # noqa: E402
from remora.hal.executable import BindingRule, ConstantRule, GridRule, KernelInfo  # noqa: E402
from remora.hal.target import Target  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

ELEMENTS = 16384  # as in vector.c
SIZE = 512  # as in matmul.mlir
#: The workgroup count that the compiler chose for every target; `check_grid` compares.
MATMUL_GRID = (64, 1, 1)


class Machine(NamedTuple):
    """How the compilers name a target."""

    zig_triple: str
    zig_cpu: str
    iree_triple: str
    iree_cpu: str


MACHINES = {
    Target("cpu", "x86_64"): Machine("x86_64-linux-gnu", "x86_64", "x86_64-unknown-linux-gnu", "x86-64"),
    Target("cpu", "x86_64-v3"): Machine("x86_64-linux-gnu", "x86_64_v3", "x86_64-unknown-linux-gnu", "x86-64-v3"),
    Target("cpu", "aarch64"): Machine("aarch64-linux-gnu", "generic", "aarch64-unknown-linux-gnu", "generic"),
}
#: Freestanding, stripped, no contraction to fused multiply-add (results equal NumPy's), and pages of up to 64 KiB (arm64).
ZIG_FLAGS = shlex.split("""-std=c11 -O3 -ffreestanding -nostdlib -shared -fPIC -fvisibility=hidden -ffp-contract=off
-fno-stack-protector -fno-unwind-tables -fno-asynchronous-unwind-tables -fno-ident -Wall -Wextra -Wno-unused-parameter -Werror
-Wl,-s -Wl,--build-id=none -Wl,-z,max-page-size=65536""")


def array(name: str, access: Access) -> BindingRule:
    """A binding of n items of 4 bytes."""
    return BindingRule(name, access, constant="n", scale=4)


def vector_kernel(name: str, bindings: list[BindingRule], *constants: ConstantRule) -> KernelInfo:
    """The contract of an element-wise kernel."""
    return KernelInfo(name, tuple(bindings), (ConstantRule("n"), *constants), grid=GridRule((ELEMENTS, 1, 1)), export=name)


VECTOR = [
    vector_kernel("add_i32", [array("a", Access.READ), array("b", Access.READ), array("out", Access.WRITE)]),
    vector_kernel("mix_u32", [array("x", Access.READ), array("out", Access.WRITE)], ConstantRule("rounds")),
    KernelInfo("empty", export="empty"),
    vector_kernel("fill_index", [array("out", Access.WRITE)], ConstantRule("first")),
    vector_kernel("saxpy_f32", [array("x", Access.READ), array("y", Access.READ_WRITE)], ConstantRule("alpha", "f32")),
]
FAULTS = [
    KernelInfo("fail", constants=(ConstantRule("code", "i32"),), export="fail"),
    *(KernelInfo(name, export=name) for name in ("crash_segv", "crash_abort", "spin")),
]
MATRIX_BYTES = SIZE * SIZE * 4
MATMUL = [
    KernelInfo(
        "matmul",
        (
            BindingRule("a", Access.READ, MATRIX_BYTES, alignment=64),
            BindingRule("b", Access.READ, MATRIX_BYTES, alignment=64),
            BindingRule("c", Access.WRITE, MATRIX_BYTES, alignment=64),
        ),
        grid=GridRule(fixed=MATMUL_GRID),
        export=f"matmul_dispatch_0_matmul_{SIZE}x{SIZE}x{SIZE}_f32",
    )
]


def compile_c(source: Path, machine: Machine, folder: Path) -> bytes:
    """A C file to a shared library."""
    out = folder / "library.so"
    target = ["-target", machine.zig_triple, f"-mcpu={machine.zig_cpu}"]
    subprocess.run([sys.executable, "-m", "ziglang", "cc", *target, *ZIG_FLAGS, "-o", str(out), source.name], cwd=HERE, check=True)
    return out.read_bytes()


def compile_mlir(source: Path, machine: Machine, folder: Path) -> bytes:
    """An MLIR file with one dispatch to the shared library that the compiler embeds in its module."""
    command = [
        iree_compile(),
        source.name,
        "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=llvm-cpu",
        f"--iree-llvmcpu-target-triple={machine.iree_triple}",
        f"--iree-llvmcpu-target-cpu={machine.iree_cpu}",
        "--iree-llvmcpu-debug-symbols=false",
    ]
    dump = folder / "binaries"
    subprocess.run([*command, f"--iree-hal-dump-executable-binaries-to={dump}", "-o", str(folder / "module")], cwd=HERE, check=True)
    check_grid(
        subprocess.run([*command, "--compile-to=executable-targets"], cwd=HERE, check=True, capture_output=True, text=True).stdout
    )
    (library,) = dump.glob("*.so")
    return library.read_bytes()


def check_grid(text: str) -> None:
    """Exit unless the count region of the export, which is not in the library, gives MATMUL_GRID."""
    lines = iter(text.splitlines())
    next(line for line in lines if "hal.executable.export" in line)
    values: dict[str, int] = {}
    for line in lines:
        words = line.replace(",", " ").split()
        if words[0] == "hal.return":
            grid = tuple(values[name] for name in words[1:4])
            break
        values[words[0]] = int(words[3])
    if grid != MATMUL_GRID:
        sys.exit(f"the compiler chose the grid {grid}, the manifest would say {MATMUL_GRID}: change MATMUL_GRID")


def iree_compile() -> str:
    """The compiler beside this Python, or on PATH."""
    found = shutil.which("iree-compile", path=str(Path(sys.executable).parent)) or shutil.which("iree-compile")
    if found is None:
        sys.exit("iree-compile is missing: pip install -r kernels/requirements.txt")
    return found


class Recipe(NamedTuple):
    """What a bundle is made of."""

    kernels: list[KernelInfo]
    compile: Callable[[Path, Machine, Path], bytes]
    sources: tuple[str, ...]


RECIPES = {
    "vector": Recipe(VECTOR, compile_c, ("vector.c", "executable_library.h")),
    "faults": Recipe(FAULTS, compile_c, ("faults.c", "executable_library.h")),
    "matmul": Recipe(MATMUL, compile_mlir, ("matmul.mlir",)),
}


def build(name: str) -> None:
    """Compile one bundle's source for every machine and write the bundle."""
    recipe = RECIPES[name]
    artifacts: dict[Target, bytes] = {}
    for target, machine in MACHINES.items():
        with tempfile.TemporaryDirectory() as folder:
            artifacts[target] = recipe.compile(HERE / recipe.sources[0], machine, Path(folder))
        print(f"{name} {target}: {len(artifacts[target]):,} bytes")
    bundle = Bundle.from_parts(name, recipe.kernels, artifacts, {file: (HERE / file).read_bytes() for file in recipe.sources})
    path = SAMPLES / f"{name}.rbundle"
    bundle.save(path)
    print(f"{path.relative_to(HERE.parent)}: {path.stat().st_size:,} bytes, digest {bundle.digest[:16]}")


def main() -> None:
    """Build the bundles named on the command line, or all."""
    parser = argparse.ArgumentParser(description="Build the sample bundles.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"which of {', '.join(RECIPES)}; all if none is given")
    names = parser.parse_args().names or list(RECIPES)
    if unknown := [name for name in names if name not in RECIPES]:
        sys.exit(f"there is no recipe for {', '.join(unknown)}; there are {', '.join(RECIPES)}")
    if importlib.util.find_spec("ziglang") is None:
        sys.exit("ziglang is missing: pip install -r kernels/requirements.txt")
    for name in names:
        build(name)


if __name__ == "__main__":
    main()
