"""What this processor is: its name, the targets it runs, its memory, and the feature words that compiled kernels look at."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from remora.hal.target import Target

__all__ = ["architecture", "available_bytes", "feature_words", "flags", "model_name", "targets", "total_bytes"]

#: Architecture levels of the x86-64 psABI, best first, by the flags in /proc/cpuinfo that each adds to the next.
X86_LEVELS = (
    ("x86_64-v4", frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})),
    ("x86_64-v3", frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"})),
    ("x86_64-v2", frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})),
    ("x86_64", frozenset[str]()),
)

#: Bit of processor word 0 in the executable-library ABI, by the kernel's name of the feature.
X86_BITS = {
    "pni": 0, "ssse3": 1, "sse4_1": 2, "sse4_2": 3, "sse4a": 4,
    "avx": 10, "fma": 11, "fma4": 12, "xop": 13, "f16c": 14, "avx2": 15,
    "avx512f": 20, "avx512cd": 21, "avx512vl": 22, "avx512dq": 23, "avx512bw": 24, "avx512ifma": 25, "avx512vbmi": 26,
    "avx512_vpopcntdq": 27, "avx512_vnni": 28, "avx512_vbmi2": 29, "avx512_bitalg": 30, "avx512_bf16": 31, "avx512_fp16": 32,
    "amx_tile": 50, "amx_int8": 51, "amx_bf16": 52,
}  # fmt: skip
ARM_BITS = {
    "fp": 0, "atomics": 1, "lse128": 2, "asimdhp": 10, "asimdfhm": 11, "asimddp": 12, "i8mm": 13, "bf16": 14,
    "sve": 20, "sve2": 21, "sve2p1": 22, "svebitperm": 23, "svef32mm": 24, "svef64mm": 25,
    "sme": 30, "sme2": 31, "sme2p1": 32, "smef16f16": 33, "smef64f64": 34, "smei16i64": 35,
}  # fmt: skip

CPUINFO = Path("/proc/cpuinfo")
MEMINFO = Path("/proc/meminfo")
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def architecture() -> str:
    """`x86_64`, `aarch64`, or what the kernel calls any other."""
    return platform.machine()


def cpuinfo(key: str) -> str:
    """The first value of a key in /proc/cpuinfo, or an empty string."""
    for line in CPUINFO.read_text(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""


def model_name() -> str:
    """The processor's name for people."""
    return cpuinfo("model name") or f"{architecture()} processor"


def flags() -> frozenset[str]:
    """The processor's features, as the kernel names them."""
    return frozenset((cpuinfo("flags") or cpuinfo("Features")).split())


def targets(machine: str, features: frozenset[str]) -> tuple[Target, ...]:
    """What the processor runs, best first. An x86-64 level needs its own features and those of all levels below."""
    if machine != "x86_64":
        return (Target("cpu", machine),)
    fitting: list[Target] = []
    for key, needed in reversed(X86_LEVELS):
        if not needed <= features:
            break
        fitting.insert(0, Target("cpu", key))
    return tuple(fitting)


def feature_words(machine: str, features: frozenset[str]) -> list[int]:
    """The eight processor words of the ABI; all zero on an architecture without a table."""
    bits = {"x86_64": X86_BITS, "aarch64": ARM_BITS}.get(machine, {})
    return [sum(1 << bit for name, bit in bits.items() if name in features), 0, 0, 0, 0, 0, 0, 0]


def total_bytes() -> int:
    """The memory this process may use: the machine's, or the control group's limit where that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = CGROUP_LIMIT.read_text().strip() if CGROUP_LIMIT.exists() else "max"
    return min(total, int(limit)) if limit.isdigit() else total


def available_bytes() -> int:
    """What the kernel can give out now without swapping."""
    for line in MEMINFO.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return total_bytes()
