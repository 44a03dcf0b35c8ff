"""What an artifact itself says of its entry points, beside what the manifest says (H19)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from remora.errors import UsageError

if TYPE_CHECKING:
    from remora.hal.executable import Kernel

__all__ = ["Export", "check_export"]


@dataclass(frozen=True, slots=True)
class Export:
    """One entry point as the compiler recorded it. 0 also stands for what it did not record."""

    name: str
    bindings: int = 0
    constants: int = 0
    """32-bit words of constants."""
    workgroup: tuple[int, int, int] = (0, 0, 0)


def check_export(kernel: Kernel, export: Export, *, exact: bool = False) -> None:
    """Raise UsageError when the manifest says something else of a kernel than its compiler recorded.

    `exact` says that counts of 0 are recorded too.
    """
    constants, bindings = kernel.constant_bytes // 4, len(kernel.info.bindings)
    for what, compiled, declared in (("constants", export.constants, constants), ("bindings", export.bindings, bindings)):
        if (compiled or exact) and compiled != declared:
            raise UsageError(
                f"{kernel.name} was compiled with {compiled} {what}, its manifest has {declared}: build the bundle again"
            )
    if all(export.workgroup) and export.workgroup != kernel.info.workgroup:
        raise UsageError(
            f"{kernel.name} was compiled for workgroups of {export.workgroup}, its manifest says {kernel.info.workgroup}: "
            "build the bundle again"
        )
