"""The cpu family: shared libraries in the IREE executable-library ABI, version 0.6, without libc."""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import sys
from pathlib import Path
from typing import ClassVar

from remora.builder.clang import find_clang
from remora.builder.family import CompilerMissing, Family, run_compiler
from remora.builder.source import GlobalMemory, KernelDeclaration, Source, Specialization
from remora.errors import UsageError
from remora.hal.specialization import SpecializationRule
from remora.hal.target import Target

__all__ = ["CpuFamily"]

#: Key -> (architecture, zig's name of the processor, the -march of gcc and clang).
PROCESSORS = {
    "x86_64": ("x86_64", "x86_64", "x86-64"),
    "x86_64-v2": ("x86_64", "x86_64_v2", "x86-64-v2"),
    "x86_64-v3": ("x86_64", "x86_64_v3", "x86-64-v3"),
    "x86_64-v4": ("x86_64", "x86_64_v4", "x86-64-v4"),
    "aarch64": ("aarch64", "generic", "armv8-a"),
}
#: Freestanding, stripped, no contraction to fused multiply-add (results equal NumPy's), and pages of up to 64 KiB (arm64).
FLAGS = shlex.split("""-std=c11 -O3 -ffreestanding -nostdlib -shared -fPIC -fvisibility=hidden -ffp-contract=off
-fno-stack-protector -fno-unwind-tables -fno-asynchronous-unwind-tables -fno-ident -Wall -Wno-unused
-Wl,-s -Wl,--build-id=none -Wl,-z,max-page-size=65536""")
PACKAGE_HINT = "pip install ziglang (a C compiler for every processor), or a C compiler of the system for this processor"


class CpuFamily(Family):
    """C to shared libraries. The ziglang wheel serves every processor, the system's compiler its own, clang with lld all."""

    name: ClassVar[str] = "cpu"
    targets: ClassVar[tuple[Target, ...]] = (Target("cpu", "x86_64"), Target("cpu", "x86_64-v3"), Target("cpu", "aarch64"))
    header: ClassVar[str] = "remora_cpu.h"
    suffix: ClassVar[str] = ".c"

    def check(self, target: Target) -> None:
        if target.key not in PROCESSORS:
            raise UsageError(f"there is no recipe for {target}; the cpu family has {', '.join(PROCESSORS)}")

    def compiler(self, target: Target) -> str:
        return self._found(target)[0]

    def _found(self, target: Target) -> tuple[str, list[str]]:
        """(name for people, command with the flags that choose the target)."""
        machine, zig, march = PROCESSORS[target.key]
        if importlib.util.find_spec("ziglang") is not None:
            return "zig", [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-gnu", f"-mcpu={zig}"]
        if machine == platform.machine().lower():
            chosen = os.environ.get("CC")
            there = [found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))]
            command = shlex.split(chosen) if chosen else there[:1]
            if command:
                return Path(command[0]).name, [*command, f"-march={march}"]
        if clang := find_clang(links=True):
            return str(clang), [clang.path, "-target", f"{machine}-linux-gnu", f"-march={march}", "-fuse-ld=lld"]
        raise CompilerMissing(PACKAGE_HINT)

    def compile(self, target: Target, text: str, folder: Path) -> bytes:
        source, library = folder / f"kernels{self.suffix}", folder / "library.so"
        source.write_text(text)
        _, command = self._found(target)
        run_compiler([*command, *FLAGS, "-o", library.name, source.name], folder, str(target))
        return library.read_bytes()

    def begin_kernel(self, source: Source, kernel: KernelDeclaration) -> str:
        parameters = ", ".join(["remora_group_t *remora", *self.parameters(kernel)])
        return f"{self.shape(kernel)}static inline void remora_body_{kernel.info.name}({parameters}) {{"

    def specialization(self, declared: Specialization) -> str:
        rule = declared.rule
        return f"\n#define {rule.name} REMORA_AT({rule.type}, remora->words, {rule.ordinal})\n"

    def memory_of(self, declared: GlobalMemory) -> str:
        initial = f" = {declared.initial or '{0}'}"
        place = '__attribute__((visibility("protected"), aligned(64)))'
        return f"{place} {declared.type} {declared.rule.name}[{declared.count}]{initial};"

    def trailer(self, source: Source) -> str:
        """Entry points that unpack what the ABI gives, and the table that the ABI asks for."""
        kernels = [kernel.info for kernel in source.kernels]
        entries = "".join(map(entry_of, source.kernels))
        names = ", ".join(f'"{kernel.name}"' for kernel in kernels)
        attributes = ",\n".join(map(attributes_of, source.kernels))
        return f"""#line 1 "generated"
{entries}
static const remora_entry_t remora_entries[] = {{{", ".join(f"remora_entry_{kernel.name}" for kernel in kernels)}}};
static const char *const remora_names[] = {{{names}}};
static const remora_attributes_t remora_attributes[] = {{
{attributes}}};
static const remora_header_t remora_header = {{.version = 6, .name = "{source.name}"}};
static const remora_library_t remora_library = {{
    .header = &remora_header,
    .exports = {{.count = {len(kernels)}, .entries = remora_entries, .attributes = remora_attributes, .names = remora_names}},
    .constants = {source.words}}};
__attribute__((visibility("default"))) const remora_library_t *iree_hal_executable_library_query(
    u32 max_version, const remora_environment_t *environment) {{
  return max_version >= 6 ? &remora_library : 0;
}}
"""


def words_of(kernel: KernelDeclaration) -> list[int]:
    """The word that each constant begins at, and the number of words last."""
    at = [0]
    for rule in kernel.info.constants:
        at.append(at[-1] + SpecializationRule(rule.name, rule.type).words)
    return at


def entry_of(kernel: KernelDeclaration) -> str:
    """The function that the ABI calls for a workgroup."""
    name = kernel.info.name
    given = ["&group", *(f"dispatch->bindings[{index}]" for index in range(len(kernel.info.bindings)))]
    given += [
        f"REMORA_AT({rule.type}, dispatch->constants, {at})"
        for rule, at in zip(kernel.info.constants, words_of(kernel), strict=False)
    ]
    return f"""static int remora_entry_{name}(
    const remora_environment_t *environment, const remora_dispatch_t *dispatch, const remora_workgroup_t *workgroup) {{
  remora_group_t group = {{environment->constants, workgroup->x, workgroup->y, workgroup->z, 0}};
  remora_body_{name}({", ".join(given)});
  return group.status;
}}
"""


def attributes_of(kernel: KernelDeclaration) -> str:
    """What the table says of a kernel."""
    x, y, z = kernel.info.workgroup
    counts = f".constant_count = {words_of(kernel)[-1]}, .binding_count = {len(kernel.info.bindings)}"
    return f"    {{{counts}, .workgroup_size_x = {x}, .workgroup_size_y = {y}, .workgroup_size_z = {z}}}"
