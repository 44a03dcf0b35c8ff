"""Bundles from models: the executables of IREE's compiler, with the grids that it chose (D11).

The compiler is iree-compile of the package iree-base-compiler. For each target it makes one file with all executables of a model;
grids, bindings and workgroups are not in it and come from the compiler's text (`iree_text.py`). Calling conventions are those of
README.md; vulkan is IREE's own, descriptor sets and push constants, so its key is `spirv1.3+sets`.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import NamedTuple, TypeAlias

from remora.builder.build import Built, Outcome
from remora.builder.family import run_compiler
from remora.builder.iree_text import Chosen, kernel_of, read_bindings, read_exports
from remora.errors import NotFoundError, UnsupportedError, UsageError
from remora.hal.bundle import Bundle
from remora.hal.executable import BindingRule, KernelInfo
from remora.hal.specialization import ExecutableInfo
from remora.hal.target import Target
from remora.hal.variant import KernelVariant

__all__ = ["RECIPES", "import_model"]

_LOCAL = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-debug-symbols=false",
)
#: The architecture that PTX is made for: the newest that the compiler knows and every later GPU takes.
_CUDA_ARCHITECTURE = "sm_80"


def _processor(machine: str, cpu: str) -> tuple[str, ...]:
    return (*_LOCAL, f"--iree-llvmcpu-target-triple={machine}-unknown-linux-gnu", f"--iree-llvmcpu-target-cpu={cpu}")


#: Target -> the compiler's flags.
RECIPES: dict[Target, tuple[str, ...]] = {
    Target("cpu", "x86_64"): _processor("x86_64", "x86-64"),
    Target("cpu", "x86_64-v3"): _processor("x86_64", "x86-64-v3"),
    Target("cpu", "aarch64"): _processor("aarch64", "generic"),
    Target("vulkan", "spirv1.3+sets"): ("--iree-hal-target-device=vulkan", "--iree-vulkan-target=vp_android_baseline_2022"),
    Target("cuda", "ptx7.6"): ("--iree-hal-target-device=cuda", f"--iree-cuda-target={_CUDA_ARCHITECTURE}"),
    Target("amdgpu", "gfx90a"): ("--iree-hal-target-device=hip", "--iree-rocm-target=gfx90a"),
    Target("amdgpu", "gfx1100"): ("--iree-hal-target-device=hip", "--iree-rocm-target=gfx1100"),
}
ALIASES = {"hip": "amdgpu", "rocm": "amdgpu", "llvm-cpu": "cpu", "vulkan-spirv": "vulkan"}
HINT = "pip install iree-base-compiler"


#: By the name of an export.
Bindings: TypeAlias = "dict[str, tuple[BindingRule, ...]]"


class _Compiled(NamedTuple):
    artifact: bytes
    exports: tuple[Chosen, ...]


def import_model(path: Path, asked: Sequence[str] = (), told: Callable[[Outcome], None] | None = None) -> Built:
    """Compile a model (.mlir) for the targets that were asked for, or for all of RECIPES; `told` hears of each.

    Without `asked`, a target that cannot hold the model is left out with the reason. Raises UnsupportedError when the compiler is
    missing, UsageError with the compiler's words for a broken model, and where two targets have not the same kernels.
    """
    if not path.is_file():
        raise NotFoundError(f"there is no model {path}; give an MLIR file that iree-compile takes")
    if path.suffix == ".vmfb":
        raise UsageError(
            f"{path}: a compiled module does not say its grids in a form that lasts; give the .mlir that it was made from"
        )
    compiler = find_compiler()
    wanted = wanted_targets(asked)
    bindings = read_bindings(text_of(compiler, path, RECIPES[wanted[0]], "executable-sources"))
    outcomes, compiled = [], {}
    for target in wanted:
        begin = perf_counter()
        try:
            compiled[target] = compile_model(compiler, path, target)
            outcome = Outcome(target, len(compiled[target].artifact), perf_counter() - begin, "iree-compile")
        except UnsupportedError as error:
            if asked:
                raise
            outcome = Outcome(target, missing=error.message)
        outcomes.append(outcome)
        if told is not None:
            told(outcome)
    if not compiled:
        raise UsageError(f"{path}: no target can hold this model: {outcomes[0].missing}")
    return Built(assemble(path, compiled, bindings), tuple(outcomes))


def find_compiler() -> str:
    """iree-compile beside this Python, or on PATH. Raises UnsupportedError."""
    found = shutil.which("iree-compile", path=str(Path(sys.executable).parent)) or shutil.which("iree-compile")
    if found is None:
        raise UnsupportedError(f"iree-compile is missing: {HINT}")
    return found


def wanted_targets(asked: Sequence[str]) -> list[Target]:
    """Targets of families and full names. Raises NotFoundError that lists what there is."""
    if not asked:
        return list(RECIPES)
    found: dict[Target, None] = {}
    for word in asked:
        name, colon, key = word.partition(":")
        family = ALIASES.get(name, name)
        fitting = [target for target in RECIPES if target.family == family and (not colon or target.key == key)]
        if not fitting:
            raise NotFoundError(f"there is no IREE recipe for {word!r}; there are {', '.join(map(str, RECIPES))}")
        found.update(dict.fromkeys(fitting))
    return list(found)


def text_of(compiler: str, path: Path, flags: Sequence[str], phase: str) -> str:
    """The compiler's text after a phase."""
    with tempfile.TemporaryDirectory(prefix="remora-iree-") as folder:
        command = [compiler, str(path.resolve()), *flags, f"--compile-to={phase}"]
        return run_compiler(command, Path(folder), str(path)).stdout


def compile_model(compiler: str, path: Path, target: Target) -> _Compiled:
    """One target. Raises UnsupportedError when its executables are several files, since a bundle holds one for a target."""
    flags = RECIPES[target]
    with tempfile.TemporaryDirectory(prefix="remora-iree-") as name:
        folder = Path(name)
        command = [
            compiler,
            str(path.resolve()),
            *flags,
            f"--iree-hal-dump-executable-binaries-to={folder / 'made'}",
            "-o",
            "module",
        ]
        run_compiler(command, folder, f"{path.name} for {target}")
        made = sorted((folder / "made").glob("*")) if (folder / "made").is_dir() else []
        if len(made) > 1:
            raise UnsupportedError(f"the model makes {len(made)} executables for {target}, a bundle holds one: import them apart")
        if not made:
            raise UsageError(f"{path}: the compiler made no executable for {target}: the model has nothing to dispatch")
        artifact = made[0].read_bytes()
    if target.key.startswith("ptx") and not re.search(rf"^\.version {re.escape(target.key[3:])}$", artifact.decode(), re.MULTILINE):
        raise UnsupportedError(f"this iree-compile writes another PTX version than {target.key[3:]}; use iree-base-compiler 3.13")
    return _Compiled(artifact, read_exports(text_of(compiler, path, flags, "executable-targets")))


def assemble(path: Path, compiled: dict[Target, _Compiled], bindings: Bindings) -> Bundle:
    """The bundle: contracts of the first target, variants for what others chose otherwise."""
    first, *_ = compiled
    kernels = [contract(path, chosen, bindings) for chosen in compiled[first].exports]
    variants: dict[Target, dict[str, KernelVariant]] = {}
    for target, (_, exports) in compiled.items():
        own = {chosen.name: contract(path, chosen, bindings) for chosen in exports}
        for kernel in kernels:
            other = own.get(kernel.name)
            if other is None or len(own) != len(kernels) or other.constants != kernel.constants:
                raise UsageError(f"{path}: {target} and {first} have not the same kernels: import them into bundles of their own")
            if other != kernel:
                variants.setdefault(target, {})[kernel.name] = KernelVariant("", other.workgroup, other.grid)
    artifacts = {target: each.artifact for target, each in compiled.items()}
    name = re.sub(r"[^A-Za-z0-9_.+-]", "_", path.stem) or "model"
    return Bundle.from_parts(name, ExecutableInfo(tuple(kernels)), artifacts, {f"{name}.mlir": path.read_bytes()}, variants)


def contract(path: Path, chosen: Chosen, bindings: Bindings) -> KernelInfo:
    """A kernel's contract. Raises UsageError when the compiler did not say its bindings."""
    rules = bindings.get(chosen.name)
    if rules is None:
        raise UsageError(f"{path}: the bindings of {chosen.name} are not in the compiler's text; use iree-base-compiler 3.13")
    return kernel_of(chosen, rules)
