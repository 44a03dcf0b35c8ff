"""The cuda family: cubins for a GPU architecture, and PTX that a driver compiles, both by nvcc.

A kernel's parameters are pointers to its bindings, then its constants, each aligned to its size. The words of the specialization
constants are the symbol `remora_words`, which whoever loads the code fills before the first dispatch; a global is a symbol too.

The key `ptxV` names the PTX ISA version that a driver must know. nvcc writes the newest version that it knows itself, which
drivers of the day refuse; so the text is declared to be of version V, and ptxas proves that it is.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import ClassVar

from remora.builder.family import CompilerMissing, Family, run_compiler, specialization_expression
from remora.builder.source import GlobalMemory, KernelDeclaration, Source, Specialization
from remora.errors import UsageError
from remora.hal.target import Target

__all__ = ["PTX_ARCHITECTURE", "CudaFamily"]

#: What PTX is written for: every GPU from it on can run the text.
PTX_ARCHITECTURE = 80
_SM = re.compile(r"sm_([0-9]{2,3}[af]?)")
_PTX = re.compile(r"ptx([0-9]\.[0-9])")
_VERSION = re.compile(r"^\.version +([0-9]+\.[0-9]+)$", re.MULTILINE)
HINT = "install the CUDA toolkit with nvcc and ptxas (version 12 or 13), and have nvcc on PATH"


class CudaFamily(Family):
    """CUDA C++ to cubins and PTX."""

    name: ClassVar[str] = "cuda"
    targets: ClassVar[tuple[Target, ...]] = (Target("cuda", "sm_80"), Target("cuda", "sm_90"), Target("cuda", "ptx7.8"))
    header: ClassVar[str] = "remora_cuda.h"
    suffix: ClassVar[str] = ".cu"
    restrict: ClassVar[str] = "__restrict__"

    def check(self, target: Target) -> None:
        if not (_SM.fullmatch(target.key) or _PTX.fullmatch(target.key)):
            raise UsageError(f"there is no recipe for {target}; a key is like sm_90 (an architecture) or ptx7.8 (a PTX version)")

    def compiler(self, target: Target) -> str:
        if not shutil.which("nvcc"):
            raise CompilerMissing(HINT)
        return "nvcc"

    def compile(self, target: Target, text: str, folder: Path) -> bytes:
        source, out = folder / f"kernels{self.suffix}", folder / "kernels.out"
        source.write_text(text)
        ptx = _PTX.fullmatch(target.key)
        command = [shutil.which("nvcc") or "nvcc", "-O3", "-fmad=false", "--no-compress", "-o", out.name, source.name]
        if ptx is None:
            run_compiler([*command, "-cubin", "-arch", target.key], folder, str(target))
            return out.read_bytes()
        run_compiler([*command, "-ptx", "-arch", f"compute_{PTX_ARCHITECTURE}"], folder, str(target))
        return lower_version(out.read_text(), ptx[1], folder, str(target)).encode()

    def begin_kernel(self, source: Source, kernel: KernelDeclaration) -> str:
        x, y, z = kernel.info.workgroup
        return (
            f'{self.shape(kernel)}extern "C" __global__ void __launch_bounds__({x * y * z}) '
            f"{kernel.info.name}({', '.join(self.parameters(kernel))}) {{"
        )

    def prelude(self, source: Source) -> str:
        as_f64 = "#define as_f64(value) __longlong_as_double((i64)(value))\n"
        return as_f64 + (f'extern "C" {{ __constant__ u32 remora_words[{source.words}]; }}\n' if source.words else "")

    def specialization(self, declared: Specialization) -> str:
        return specialization_expression(declared, "remora_words[{}]")

    def memory_of(self, declared: GlobalMemory) -> str:
        return f'extern "C" {{ __device__ {declared.type} {declared.rule.name}[{declared.count}] = {declared.initial or "{0}"}; }}'


def lower_version(text: str, version: str, folder: Path, what: str) -> str:
    """PTX that says it is of this ISA version. Raises UsageError when it uses what is newer, with the assembler's words."""
    written = _VERSION.search(text)
    if written is None:
        raise UsageError(f"{what}: nvcc wrote no PTX version; use nvcc 12 or 13")
    if tuple(map(int, written[1].split("."))) < tuple(map(int, version.split("."))):
        raise UsageError(f"{what}: this nvcc writes PTX {written[1]}, older than {version}; ask for cuda:ptx{written[1]}")
    lowered = re.sub(r"^//.*\n", "", _VERSION.sub(f".version {version}", text, count=1), flags=re.MULTILINE)
    checked = folder / "lowered.ptx"
    checked.write_text(lowered)
    run_compiler(
        [shutil.which("ptxas") or "ptxas", "-arch", f"sm_{PTX_ARCHITECTURE}", "-o", "proof.cubin", checked.name], folder, what
    )
    return lowered
