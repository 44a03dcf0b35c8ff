"""`remora build`: one kernel source, one bundle with machine code for many targets (D11).

A source `kernels.json` has the contracts alone, as a manifest has them (`{"kernels": [...]}`): then every artifact is added.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from remora.builder.build import Built, Outcome, build
from remora.cli.show import CONSOLE, amount, duration, fact, waiting
from remora.errors import NotFoundError, UsageError
from remora.hal.bundle import Bundle
from remora.hal.manifest import parse_info
from remora.hal.target import Target, parse_target

__all__ = ["add_arguments", "run"]

SUFFIX = ".rbundle"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `remora build`."""
    parser.add_argument(
        "source", metavar="SOURCE", type=Path, help="a kernel source in C; with --iree a model in MLIR; contracts in .json"
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="the bundle (SOURCE with .rbundle, in this folder)")
    parser.add_argument(
        "--target",
        action="append",
        default=[],
        metavar="T,...",
        help="only these: cpu, opencl, cuda, hip, or one of a family such as cuda:sm_90, cpu:x86_64-v3, amdgpu:gfx942 (all)",
    )
    parser.add_argument(
        "--iree", action="store_true", help="compile a model with IREE's compiler, and take its executables and grids"
    )
    parser.add_argument(
        "--add",
        action="append",
        default=[],
        metavar="TARGET=FILE",
        help="put in what another compiler made, such as vulkan:spirv1.3+bda=kernels.spv",
    )


def run(args: argparse.Namespace) -> int:
    """Build and say what became of each target."""
    asked = [word for words in args.target for word in words.split(",") if word]
    added = dict(map(addition, args.add))
    output: Path = args.output or Path(args.source.name).with_suffix(SUFFIX)
    if not output.parent.is_dir():
        raise NotFoundError(f"there is no folder {output.parent}; make it, or give another -o")
    with waiting(f"building {args.source}"):
        if args.iree:
            built = model(args.source, asked, added)
        elif args.source.suffix == ".json":
            built = contracts(args.source, asked, added)
        else:
            built = build(args.source, asked, added, report)
    for target, artifact in added.items():
        fact(label(target), amount(len(artifact), "B"), "as given")
    write(built.bundle, output)
    return 0


def model(source: Path, asked: list[str], added: dict[Target, bytes]) -> Built:
    """What `--iree` does."""
    from remora.builder.iree import import_model

    if added:
        raise UsageError("--add goes with a kernel source: what it adds would need the names and grids of the model's kernels")
    return import_model(source, asked, report)


def contracts(source: Path, asked: list[str], added: dict[Target, bytes]) -> Built:
    """What a file of contracts makes: nothing is compiled."""
    if not source.is_file():
        raise NotFoundError(f"there is no file {source}; check the path")
    if asked or not added:
        raise UsageError(f"{source.name} has contracts and no code: give artifacts with --add TARGET=FILE, and no --target")
    return Built(Bundle.from_parts(source.stem, parse_info(source.read_bytes()), added))


def write(bundle: Bundle, output: Path) -> None:
    """Save the bundle and say what it is."""
    try:
        bundle.save(output)
    except OSError as error:
        raise UsageError(f"the bundle cannot be written to {output}: {error.strerror}; give another -o") from None
    size = amount(output.stat().st_size, "B")
    fact("bundle", str(output), size, f"{len(bundle.kernels)} kernels for {len(bundle.targets)} targets", style="green")
    CONSOLE.file.flush()


def report(outcome: Outcome) -> None:
    """One line for one target."""
    if outcome.missing:
        fact(label(outcome.target), f"left out: {outcome.missing}", style="yellow")
    else:
        fact(label(outcome.target), amount(outcome.bytes, "B"), duration(outcome.seconds), outcome.compiler)


def label(target: Target) -> str:
    """A target, as wide as the longest that is usual."""
    return str(target).ljust(22)


def addition(text: str) -> tuple[Target, bytes]:
    """`family:key=FILE` or `family,key=FILE`."""
    target, equals, file = text.partition("=")
    if not equals:
        raise UsageError(f"--add {text}: write TARGET=FILE, such as vulkan:spirv1.3+bda=kernels.spv")
    if not Path(file).is_file():
        raise NotFoundError(f"--add {text}: there is no file {file}")
    return parse_target(target.replace(",", ":", 1)), Path(file).read_bytes()
