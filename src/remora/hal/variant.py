"""What one artifact has otherwise than the bundle says: its compiler chose another grid, workgroup, launch or name (D11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remora.hal.executable import Grid, GridRule
    from remora.hal.specialization import ExecutableInfo

__all__ = ["KernelVariant", "applied"]


@dataclass(frozen=True, slots=True)
class KernelVariant:
    """What stands in the place of a kernel's own entries in one artifact; None and the empty name leave them.

    Example: `variants={"cuda:sm_80": {"scale": KernelVariant(shared_bytes=0)}}` of `Bundle.from_parts`.
    """

    export: str = ""
    workgroup: Grid | None = None
    grid: GridRule | None = None
    shared_bytes: int | None = None
    cluster: Grid | None = None


def applied(info: ExecutableInfo, variants: Mapping[str, KernelVariant]) -> ExecutableInfo:
    """The contracts as an artifact with these variants, by kernel name, has them."""
    if not variants:
        return info
    kernels = tuple(
        replace(
            kernel,
            export=variant.export or kernel.export,
            workgroup=variant.workgroup or kernel.workgroup,
            grid=variant.grid or kernel.grid,
            shared_bytes=kernel.shared_bytes if variant.shared_bytes is None else variant.shared_bytes,
            cluster=variant.cluster or kernel.cluster,
        )
        for kernel in info.kernels
        for variant in (variants.get(kernel.name, KernelVariant()),)
    )
    return replace(info, kernels=kernels)
