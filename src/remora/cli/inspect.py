"""`remora inspect`: what a bundle holds: targets, kernels, and their contracts (D11)."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from remora.cli.show import amount, fact, table
from remora.hal.bundle import Bundle
from remora.hal.executable import BindingRule, Grid, GridRule, KernelInfo
from remora.hal.manifest import encode_info
from remora.hal.specialization import ExecutableInfo
from remora.hal.target import Target

__all__ = ["add_arguments", "run"]

#: A kernel that has nothing but a name.
PLAIN = KernelInfo("")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `remora inspect`."""
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="a .rbundle file")
    parser.add_argument("--json", action="store_true", help="print JSON: the same facts, sizes in bytes")


def run(args: argparse.Namespace) -> int:
    """Print what is in the bundle. Every artifact is unpacked and compared with its SHA-256."""
    bundle = Bundle.load(args.bundle)
    sizes = {str(target): len(bundle.artifact(target)) for target in bundle.targets}
    if args.json:
        print(json.dumps(as_json(bundle, sizes), indent=2))
        return 0
    fact("bundle", bundle.name, f"digest {bundle.digest[:16]}", amount(args.bundle.stat().st_size, "B"))
    fact("sources", *(bundle.sources or ("none",)))
    print()
    table(("target", "size", "otherwise"), [target_row(bundle, target, sizes) for target in map(str, bundle.targets)], ("size",))
    print()
    columns = ("kernel", "parameter", "type", "at least", "aligned", "workgroup", "grid")
    table(columns, [row for kernel in bundle.kernels for row in kernel_rows(kernel)])
    print_launches(bundle.kernels)
    print_specials(bundle.info)
    return 0


def print_launches(kernels: Sequence[KernelInfo]) -> None:
    """Launch attributes, of kernels that have some."""
    told = [(kernel.name, launch) for kernel in kernels if (launch := launch_of(kernel, PLAIN))]
    if told:
        print()
    for name, launch in told:
        fact("launch", name, *launch)


def print_specials(info: ExecutableInfo) -> None:
    """Specialization constants and named globals, where there are some."""
    if info.constants or info.globals:
        print()
    for rule in info.constants:
        told = "no default" if rule.default is None else f"default {rule.default}"
        fact("constant", f"{rule.name}: {rule.type}", f"word {rule.ordinal}", told)
    for owned in info.globals:
        fact("global", owned.name, amount(owned.size, "B"))


def target_row(bundle: Bundle, name: str, sizes: dict[str, int]) -> tuple[str, str, str]:
    """A target, and what its artifact has otherwise than the bundle says."""
    target = next(each for each in bundle.targets if str(each) == name)
    pairs = zip(bundle.kernels, bundle.info_for(target).kernels, strict=True)
    other = [
        ", ".join([f"{own.name}: workgroup {shown(own.workgroup)}", f"grid {grid_of(own.grid)}", *launch_of(own, kernel)])
        for kernel, own in pairs
        if own != kernel
    ]
    return name, amount(sizes[name], "B"), "; ".join(other)


def kernel_rows(kernel: KernelInfo) -> list[tuple[str, ...]]:
    """A row for each binding and constant; the first has the kernel's own facts too."""
    rows = [(rule.name, access_of(rule), extent_of(rule), f"{rule.alignment} B") for rule in kernel.bindings]
    rows += [(rule.name, f"constant {rule.type}", "", "") for rule in kernel.constants]
    facts = shown(kernel.workgroup), grid_of(kernel.grid)
    return [
        (kernel.name, *row, *facts) if not index else ("", *row, "", "") for index, row in enumerate(rows or [("none", "", "", "")])
    ]


def launch_of(kernel: KernelInfo, usual: KernelInfo) -> list[str]:
    """The launch attributes that a kernel has otherwise than `usual` has."""
    shared = [f"{kernel.shared_bytes} B of dynamic shared memory"] if kernel.shared_bytes != usual.shared_bytes else []
    return [*shared, f"clusters of {shown(kernel.cluster)} workgroups"] if kernel.cluster != usual.cluster else shared


def access_of(rule: BindingRule) -> str:
    """read, write or read_write."""
    return (rule.access.name or str(int(rule.access))).lower()


def extent_of(rule: BindingRule) -> str:
    """`4 B x n`, `20 B`, `16 B + 4 B x n`."""
    parts = [amount(rule.bytes, "B")] if rule.bytes or not rule.constant else []
    return " + ".join([*parts, f"{rule.scale} B x {rule.constant}"] if rule.constant else parts)


def grid_of(rule: GridRule) -> str:
    """How many workgroups a dispatch has."""
    return f"always {shown(rule.fixed)}" if rule.fixed else f"one for {shown(rule.elements)} elements"


def shown(sizes: Grid) -> str:
    """`256 x 1 x 1`."""
    return " x ".join(map(str, sizes))


def as_json(bundle: Bundle, sizes: dict[str, int]) -> dict[str, Any]:
    """The same for programs."""
    info = json.loads(encode_info(bundle.info))
    targets = [{"target": str(target), "bytes": sizes[str(target)], **variants_json(bundle, target)} for target in bundle.targets]
    return {"name": bundle.name, "digest": bundle.digest, "targets": targets, **info, "sources": list(bundle.sources)}


def variants_json(bundle: Bundle, target: Target) -> dict[str, Any]:
    """The kernels that the artifact has otherwise."""
    own = bundle.info_for(target)
    if own == bundle.info:
        return {}
    return {"kernels": json.loads(encode_info(own))["kernels"]}
