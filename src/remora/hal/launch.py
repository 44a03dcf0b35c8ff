"""Launch attributes of kernels: what some devices give a workgroup beside its grid, and others do not have (requirement D04)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remora.errors import UnsupportedError
from remora.hal.executable import NO_CLUSTER

if TYPE_CHECKING:
    from remora.hal.executable import KernelInfo

__all__ = ["check_launch"]


def check_launch(info: KernelInfo, driver: str, *, shared: bool) -> None:
    """Raise UnsupportedError for a kernel whose launch attributes a driver does not give; none gives clusters but cuda.

    `shared` says that it gives dynamic shared memory.
    """
    if info.cluster != NO_CLUSTER:
        raise UnsupportedError(
            f"{info.name} runs in clusters of {info.cluster} workgroups, which the {driver} driver does not have: "
            "build code without clusters for this target, and give it a variant with cluster (1, 1, 1)"
        )
    if info.shared_bytes and not shared:
        raise UnsupportedError(
            f"{info.name} asks for {info.shared_bytes} bytes of dynamic shared memory, which the {driver} driver does not have: "
            "declare the memory in the code for this target, and give it a variant with 0 shared_bytes"
        )
