"""The opencl family: OpenCL C text, which the device's own driver compiles when it is loaded.

A kernel's arguments are pointers to its bindings, then its constants, then a pointer to each named global of the bundle, each in
the order of the manifest, then `__global i32 *remora_status` if it can FAIL: a code that it stores there fails the dispatch. A
specialization constant is given to the compiler word by word: -D REMORA_WORD_0=7u. `#pragma remora global total 4` declares a
global and its bytes; the kernel `remora_globals` takes the pointers to all of them and writes what they hold at first: run once,
one item.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar

from remora.builder.clang import find_clang
from remora.builder.family import Family, run_compiler, specialization_expression
from remora.builder.source import GlobalMemory, KernelDeclaration, Source, Specialization
from remora.errors import UsageError
from remora.hal.target import Target

__all__ = ["OpenclFamily"]

_FAIL = re.compile(r"\bFAIL\s*\(")


class OpenclFamily(Family):
    """Text; where clang is installed its syntax is checked."""

    name: ClassVar[str] = "opencl"
    targets: ClassVar[tuple[Target, ...]] = (Target("opencl", "c1.2"),)
    header: ClassVar[str] = "remora_opencl.h"
    suffix: ClassVar[str] = ".cl"
    memory: ClassVar[str] = "__global "

    def check(self, target: Target) -> None:
        if target.key != "c1.2":
            raise UsageError(f"there is no recipe for {target}; the opencl family has c1.2, which every device takes")

    def compiler(self, target: Target) -> str:
        clang = find_clang()
        return f"text, checked by {clang}" if clang else "text, not checked: clang is not installed"

    def compile(self, target: Target, text: str, folder: Path) -> bytes:
        source = folder / f"kernels{self.suffix}"
        source.write_text(text)
        if clang := find_clang():
            words = [f"-DREMORA_WORD_{index}=0u" for index in range(text.count("#define REMORA_HAS_WORD_"))]
            flags = ["-x", "cl", "-cl-std=CL1.2", "-target", "spir64-unknown-unknown", "-Xclang", "-finclude-default-header"]
            run_compiler([clang.path, *flags, *words, "-fsyntax-only", source.name], folder, str(target))
        return text.encode()

    def prelude(self, source: Source) -> str:
        wide = any(kind == "f64" for kernel in source.kernels for kind in kernel_types(kernel))
        wide = wide or any(each.rule.type == "f64" for each in source.specializations)
        doubles = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\ntypedef double f64;\n#define as_f64 as_double\n"
        words = [
            f"#define REMORA_HAS_WORD_{index} 1\n#ifndef REMORA_WORD_{index}\n"
            f'#error "give every word of the specialization constants: -D REMORA_WORD_{index}=..."\n#endif\n'
            for index in range(source.words)
        ]
        return "".join([doubles if wide else "", *words])

    def begin_kernel(self, source: Source, kernel: KernelDeclaration) -> str:
        x, y, z = kernel.info.workgroup
        status = ["__global i32 *remora_status"] if can_fail(source, kernel) else []
        parameters = ", ".join([*self.parameters(kernel), *map(self.pointer, source.globals), *status])
        size = f"__attribute__((reqd_work_group_size({x}, {y}, {z})))"
        return f"{self.shape(kernel)}__kernel {size} void {kernel.info.name}({parameters or 'void'}) {{"

    def specialization(self, declared: Specialization) -> str:
        return specialization_expression(declared, "REMORA_WORD_{}")

    def memory_of(self, declared: GlobalMemory) -> str:
        if not declared.initial:
            return ""
        return f"__constant {declared.type} remora_initial_{declared.rule.name}[{declared.count}] = {declared.initial};"

    def pointer(self, declared: GlobalMemory) -> str:
        """The parameter through which kernels see a global."""
        return f"__global {declared.type} *{declared.rule.name}"

    def trailer(self, source: Source) -> str:
        if not source.globals:
            return ""
        loops = "".join(
            f"  for (u32 i = 0; i < {each.count}u; ++i) {each.rule.name}[i] = "
            f"{f'remora_initial_{each.rule.name}[i]' if each.initial else '0'};\n"
            for each in source.globals
        )
        sizes = "".join(f"#pragma remora global {each.rule.name} {each.rule.size}\n" for each in source.globals)
        head = f"__kernel void remora_globals({', '.join(map(self.pointer, source.globals))}) {{"
        return f'#line 1 "generated"\n{sizes}{head}\n{loops}}}\n'


def can_fail(source: Source, kernel: KernelDeclaration) -> bool:
    """Whether the body of a kernel, which ends before the next kernel, has a FAIL."""
    end = min((each.place.begin for each in source.kernels if each.place.begin > kernel.place.begin), default=len(source.text))
    return _FAIL.search(source.text, kernel.place.end, end) is not None


def kernel_types(kernel: KernelDeclaration) -> list[str]:
    """All types of a kernel's parameters."""
    return [*kernel.types, *(rule.type for rule in kernel.info.constants)]
