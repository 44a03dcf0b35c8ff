"""Compiles the cpu driver's worker pool (pool.c) into a shared library that the driver loads with ctypes.

A C compiler is taken where one is found: $CC, cc, gcc, clang. Elsewhere the build asks for the `ziglang` wheel, which brings one.
Only Linux gets a pool; on other platforms the package installs without it and the cpu driver says what is missing.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = "src/remora/drivers/cpu"
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread"]
COMPILERS = ("cc", "gcc", "clang")
MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def on_linux() -> bool:
    """Whether the pool can be built and used here."""
    return sys.platform == "linux" and platform.machine().lower() in MACHINES


def found_compiler() -> list[str] | None:
    """The command of a C compiler on this machine, or None."""
    chosen = os.environ.get("CC")
    if chosen:
        return shlex.split(chosen)
    return next(([path] for name in COMPILERS if (path := shutil.which(name))), None)


def zig_compiler() -> list[str]:
    """The command of the compiler in the `ziglang` wheel, for any machine of this architecture."""
    libc = "musl" if "musl" in (sysconfig.get_config_var("SOABI") or "") else "gnu.2.17"
    return [sys.executable, "-m", "ziglang", "cc", "-target", f"{MACHINES[platform.machine().lower()]}-linux-{libc}"]


class PoolBuildHook(BuildHookInterface[Any]):
    """The build hook of wheels and of editable installs."""

    def dependencies(self) -> list[str]:
        """The compiler as a wheel, where the machine has none."""
        return ["ziglang"] if on_linux() and found_compiler() is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the pool and put it, with the platform's tag, into the wheel."""
        if not on_linux():
            return
        folder = Path(self.root, FOLDER)
        command = [*(found_compiler() or zig_compiler()), *FLAGS, str(folder / "pool.c"), "-o", str(folder / "_pool.so")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(
                f"the worker pool did not compile: {shlex.join(command)}\n{done.stderr}\n"
                "set CC to a working C compiler, or take cc, gcc and clang off PATH to build with the ziglang wheel"
            )
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{MACHINES[platform.machine().lower()]}"
        build_data["artifacts"].append(f"{FOLDER}/_pool.so")
