"""The amdgpu family: code objects (HSACO, version 5) for HIP, from OpenCL C by clang and lld, without AMD's device libraries.

A kernel's arguments are pointers to its bindings, then its constants, each aligned to its size. The words of the specialization
constants are the symbol `remora_words`, which whoever loads the code fills before the first dispatch; a global is a symbol too.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar

from remora.builder.clang import Clang, find_clang
from remora.builder.family import CompilerMissing, run_compiler, specialization_expression
from remora.builder.opencl import OpenclFamily
from remora.builder.source import GlobalMemory, KernelDeclaration, Source, Specialization
from remora.errors import UsageError
from remora.hal.target import Target

__all__ = ["AmdgpuFamily"]

#: The first clang that writes code objects of version 5.
FIRST_CLANG = 16
_VISIBLE = '__attribute__((visibility("protected")))'
_KEY = re.compile(r"gfx[0-9a-f]{3,6}")


class AmdgpuFamily(OpenclFamily):
    """OpenCL C 2.0, which has memory of the program's own, to an AMD code object."""

    name: ClassVar[str] = "amdgpu"
    targets: ClassVar[tuple[Target, ...]] = (Target("amdgpu", "gfx90a"), Target("amdgpu", "gfx1100"))

    def check(self, target: Target) -> None:
        if not _KEY.fullmatch(target.key):
            raise UsageError(f"there is no recipe for {target}; a key is a processor such as gfx90a, gfx942 or gfx1100")

    def compiler(self, target: Target) -> str:
        return str(_clang())

    def compile(self, target: Target, text: str, folder: Path) -> bytes:
        source, out = folder / f"kernels{self.suffix}", folder / "kernels.hsaco"
        source.write_text(text)
        flags = ["-x", "cl", "-cl-std=CL2.0", "-target", "amdgcn-amd-amdhsa", f"-mcpu={target.key}", "-nogpulib", "-O3"]
        flags += ["-mcode-object-version=5", "-ffp-contract=off", "-DREMORA_AMDGPU", "-fvisibility=hidden", "-fno-ident", "-Wl,-s"]
        run_compiler([_clang().path, *flags, "-o", out.name, source.name], folder, str(target))
        return out.read_bytes()

    def prelude(self, source: Source) -> str:
        words = f"{_VISIBLE} __global u32 remora_words[{source.words}] = {{0}};\n" if source.words else ""
        return "typedef double f64;\n#define as_f64(value) __builtin_astype((u64)(value), f64)\n" + words

    def begin_kernel(self, source: Source, kernel: KernelDeclaration) -> str:
        x, y, z = kernel.info.workgroup
        size = f"__attribute__((reqd_work_group_size({x}, {y}, {z})))"
        return f"{self.shape(kernel)}__kernel {size} void {kernel.info.name}({', '.join(self.parameters(kernel)) or 'void'}) {{"

    def specialization(self, declared: Specialization) -> str:
        return specialization_expression(declared, "remora_words[{}]")

    def memory_of(self, declared: GlobalMemory) -> str:
        return f"{_VISIBLE} __global {declared.type} {declared.rule.name}[{declared.count}] = {declared.initial or '{0}'};"

    def trailer(self, source: Source) -> str:
        return ""


def _clang() -> Clang:
    """One that writes code objects of version 5 and links them. Raises CompilerMissing."""
    found = find_clang(FIRST_CLANG, links=True)
    if found is None:
        raise CompilerMissing(f"clang {FIRST_CLANG} or newer with lld: apt-get install clang-19 lld-19 (a distribution's newest)")
    return found
