"""From one source to a bundle (D11)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from remora.builder.amdgpu import AmdgpuFamily
from remora.builder.cpu import CpuFamily
from remora.builder.cuda import CudaFamily
from remora.builder.family import CompilerMissing, Family
from remora.builder.opencl import OpenclFamily
from remora.builder.source import Source, read_source
from remora.errors import NotFoundError, UnsupportedError, UsageError
from remora.hal.bundle import Bundle
from remora.hal.target import Target, parse_target

__all__ = ["ALIASES", "FAMILIES", "Built", "Outcome", "build", "targets_of"]

FAMILIES: dict[str, Family] = {family.name: family for family in (CpuFamily(), OpenclFamily(), CudaFamily(), AmdgpuFamily())}
#: Other words for a family.
ALIASES = {"hip": "amdgpu", "rocm": "amdgpu"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one target: its artifact's bytes, seconds and compiler; or why it was left out."""

    target: Target
    bytes: int = 0
    seconds: float = 0.0
    compiler: str = ""
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Built:
    """A bundle, and what became of each target."""

    bundle: Bundle
    outcomes: tuple[Outcome, ...] = field(default=())


def targets_of(asked: Sequence[str]) -> tuple[Target, ...]:
    """The targets of words such as `cpu`, `hip` and `cuda:sm_90`. Raises NotFoundError or UsageError for what is unknown."""
    found: dict[Target, None] = {}
    for word in asked:
        name, colon, key = word.partition(":")
        family = FAMILIES.get(ALIASES.get(name, name))
        if family is None:
            known = ", ".join([*FAMILIES, *ALIASES])
            raise NotFoundError(
                f"there is no recipe for {word!r}; families: {known}; a target is family:key. What another compiler made is added "
                "with --add TARGET=FILE"
            )
        targets = (parse_target(f"{family.name}:{key}"),) if colon else family.targets
        for target in targets:
            family.check(target)
            found[target] = None
    return tuple(found)


def build(
    path: Path, asked: Sequence[str] = (), added: dict[Target, bytes] | None = None, told: Callable[[Outcome], None] | None = None
) -> Built:
    """Compile a source for the targets that were asked for, or for all; `told` hears of each as it is done.

    Without `asked`, a target without a compiler is left out. Raises UnsupportedError, which says what to install, when it was asked
    for; UsageError with the compiler's output when the source is wrong, and when there is nothing to put into the bundle.
    """
    source = read_source(path)
    wanted = targets_of(asked or list(FAMILIES))
    outcomes: list[Outcome] = []
    artifacts: dict[Target, bytes] = dict(added or {})
    for target in wanted:
        outcome, artifact = _compile(source, target)
        if artifact is not None:
            artifacts.setdefault(target, artifact)
        elif asked:
            raise UnsupportedError(f"{target}: {outcome.missing}")
        outcomes.append(outcome)
        if told is not None:
            told(outcome)
    if not artifacts:
        raise UsageError(f"nothing can be built; {outcomes[0].target}: {outcomes[0].missing}")
    return Built(Bundle.from_parts(source.name, source.info, artifacts, source.files), tuple(outcomes))


def _compile(source: Source, target: Target) -> tuple[Outcome, bytes | None]:
    family = FAMILIES[target.family]
    text = family.text(source)
    try:
        compiler = family.compiler(target)
    except CompilerMissing as missing:
        return Outcome(target, missing=f"no compiler: {missing}"), None
    begin = perf_counter()
    with tempfile.TemporaryDirectory(prefix="remora-build-") as folder:
        artifact = family.compile(target, text, Path(folder))
    return Outcome(target, len(artifact), perf_counter() - begin, compiler), artifact
