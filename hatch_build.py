"""Compiles the cpu driver's worker pool (pool.c) into a shared library that the driver loads with ctypes.

A C compiler is taken where one is found: $CC, cc, gcc, clang. Elsewhere the build asks for the `ziglang` wheel, which brings one.
Only Linux gets a pool; on other platforms the package installs without it and the cpu driver says what is missing.

REMORA_COMPILE=1 also compiles the modules of HOT, with mypyc, into extension modules of one group: calls between them are C calls.
They replace the .py files beside them, which stay. This needs a C compiler of the machine and Python's headers.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = "src/remora/drivers/cpu"
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread"]
COMPILERS = ("cc", "gcc", "clang")
MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
#: What a small command passes through on both sides, but for what users and drivers subclass, or call with anything.
HOT = {
    "base": ("frontier", "ids"),
    "wire": ("commands", "frame", "layout", "queue"),
    "session": ("axes", "bootstrap", "keepalive", "life", "queue_lane", "session", "state"),
    "link": ("latch", "link", "pump"),
    "server": ("axis", "dispatch", "operations", "resources", "runner"),
}
#: The module that all of them share is named after it.
GROUP = "remora"
#: mypyc's rules differ between versions.
MYPYC = "mypy[mypyc]==2.4.1"


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


def wants_compiled() -> bool:
    """Whether the hot modules are to be compiled."""
    return os.environ.get("REMORA_COMPILE", "") not in ("", "0")


def check_compilable() -> None:
    """Exit with what to install unless the hot modules can be compiled here."""
    if not on_linux() or sys.implementation.name != "cpython" or "t" in sys.abiflags:
        raise SystemExit("REMORA_COMPILE=1 is for CPython with a GIL on Linux; install without it, which works everywhere")
    if found_compiler() is None:
        raise SystemExit("REMORA_COMPILE=1 needs a C compiler: apt-get install gcc libc6-dev; or install without REMORA_COMPILE")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        raise SystemExit("REMORA_COMPILE=1 needs Python's headers: apt-get install python3-dev; or install without REMORA_COMPILE")


def compile_hot(folder: Path) -> None:
    """Compile the hot modules into `folder`/lib, laid out as in `src`. Runs in a process of its own, in the project's folder."""
    from mypyc.build import mypycify
    from setuptools import Distribution

    sources = [f"src/remora/{room}/{name}.py" for room, names in HOT.items() for name in names]
    options = ["--config-file=pyproject.toml", "--follow-imports=silent", f"--cache-dir={folder / 'cache'}"]
    with tempfile.TemporaryDirectory() as made:
        modules = mypycify([*options, *sources], opt_level="2", debug_level="0", group_name=GROUP, multi_file=True, target_dir=made)
        command = Distribution({"name": "remora", "ext_modules": modules}).get_command_obj("build_ext")
        command.build_lib, command.build_temp, command.parallel = str(folder / "lib"), made, os.cpu_count()
        command.ensure_finalized()
        command.run()


def remove_compiled(root: Path) -> None:
    """Take extension modules that an earlier editable install left beside the sources away, for whichever Python they are."""
    rooms = [(Path(root, "src/remora", room), names) for room, names in HOT.items()]
    for folder, names in (*rooms, (Path(root, "src"), (f"{GROUP}__mypyc",))):
        for name in names:
            for old in folder.glob(f"{name}.*.so"):
                old.unlink()


class RemoraBuildHook(BuildHookInterface[Any]):
    """The build hook of wheels and of editable installs."""

    _made: tempfile.TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        """The compiler as a wheel, where the machine has none; mypyc, where it is asked for."""
        if wants_compiled():
            check_compilable()
            return [MYPYC]
        return ["ziglang"] if on_linux() and found_compiler() is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile what is compiled and put it, with the platform's tag, into the wheel."""
        if version == "editable":
            remove_compiled(Path(self.root))
        if not on_linux():
            return
        self._add_pool(build_data)
        if wants_compiled():
            check_compilable()
            self._add_hot(version, build_data)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """The wheel is written: what it was made of goes."""
        if self._made is not None:
            self._made.cleanup()

    def _add_pool(self, build_data: dict[str, Any]) -> None:
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

    def _add_hot(self, version: str, build_data: dict[str, Any]) -> None:
        """A wheel gets the modules from a folder that goes afterwards; an editable install needs them beside the sources."""
        self._made = tempfile.TemporaryDirectory(prefix="remora-compile-")
        command = [sys.executable, str(Path(self.root, "hatch_build.py")), self._made.name]
        environment = {**os.environ, "CC": shlex.join(found_compiler() or ())}
        done = subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(
                f"the hot modules did not compile: {done.stdout}\n{done.stderr}\n"
                "set CC to a working C compiler, or install without REMORA_COMPILE, which needs none of this"
            )
        library = Path(self._made.name, "lib")
        for module in library.rglob("*.so"):
            place = module.relative_to(library)
            if version == "editable":
                shutil.copy(module, Path(self.root, "src", place))
            else:
                build_data["force_include"][str(module)] = str(place)
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        build_data["tag"] = f"{python}-{python}-linux_{MACHINES[platform.machine().lower()]}"


if __name__ == "__main__":
    compile_hot(Path(sys.argv[1]))
