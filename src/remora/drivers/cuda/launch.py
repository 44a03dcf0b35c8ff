"""Launch attributes: dynamic shared memory and clusters, as the manifest asks for them and the GPU has them (requirement D04).

A function of a loaded module has to be told before its first launch that it takes more dynamic shared memory than 48 KiB less what
its code declares, and that its clusters are larger than every GPU that has clusters can run.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Final

from remora.drivers.cuda._ffi import attribute, call, driver
from remora.errors import UnsupportedError, UsageError
from remora.hal.executable import NO_CLUSTER

if TYPE_CHECKING:
    from remora.drivers.cuda.executable import Program
    from remora.hal.executable import Grid

__all__ = ["cluster_config", "prepare"]

#: Workgroups of a cluster that every GPU with clusters can run.
PORTABLE_CLUSTER: Final = 8


def prepare(device: Any, program: Program) -> None:
    """Make a program's function ready for its launches on this GPU, in its context.

    Raises UsageError for more than the GPU has or for clusters that the code was not compiled for, UnsupportedError for a GPU
    without clusters.
    """
    check_compiled(program)
    if program.shared_bytes:
        allow_shared(device, program)
    if program.cluster is not None:
        allow_cluster(device, program, program.cluster)


def check_compiled(program: Program) -> None:
    """Raise UsageError where the code was compiled for other clusters than the manifest's."""
    sides = [told(program.function, f"REQUIRED_CLUSTER_{side}") for side in ("WIDTH", "HEIGHT", "DEPTH")]
    compiled = tuple(max(side, 1) for side in sides)
    declared = program.cluster or NO_CLUSTER
    if any(sides) and compiled != declared:
        raise UsageError(
            f"{program.name} was compiled for clusters of {compiled}, its manifest says {declared}: build the bundle again"
        )
    if program.cluster is None and told(program.function, "CLUSTER_SIZE_MUST_BE_SET"):
        raise UsageError(f"{program.name} was compiled to run in clusters, its manifest gives none: give it a `cluster`")


def allow_shared(device: Any, program: Program) -> None:
    """Allow the function the dynamic shared memory that it asks for. Raises UsageError when the GPU has less."""
    static = told(program.function, "SHARED_SIZE_BYTES")
    most = attribute(device, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN") - static
    asked = program.shared_bytes
    if asked > most:
        beside = f", beside {static} that the code declares" if static else ""
        raise UsageError(
            f"{program.name} asks for {asked} bytes of dynamic shared memory; this GPU gives a workgroup {most}{beside}: "
            "build it for smaller tiles"
        )
    if asked > told(program.function, "MAX_DYNAMIC_SHARED_SIZE_BYTES"):
        tell(program.function, "MAX_DYNAMIC_SHARED_SIZE_BYTES", asked)


def allow_cluster(device: Any, program: Program, cluster: Grid) -> None:
    """Allow the function its clusters. Raises UnsupportedError where there are none, UsageError for one that has no room."""
    if not attribute(device, "CLUSTER_LAUNCH"):
        raise UnsupportedError(
            f"{program.name} runs in clusters of {cluster} workgroups, which this GPU does not have (sm_90 and newer ones do): "
            "build code without clusters for it"
        )
    if prod(cluster) > PORTABLE_CLUSTER:
        tell(program.function, "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1)
    if not call(driver.cuOccupancyMaxActiveClusters, program.function, cluster_config(program, cluster)):
        raise UsageError(
            f"{program.name} runs in clusters of {cluster} workgroups of {prod(program.workgroup)} items and "
            f"{program.shared_bytes} bytes of dynamic shared memory each, and this GPU has no room for one: build it smaller"
        )


def cluster_config(program: Program, cluster: Grid, stream: Any = None) -> Any:
    """What cuLaunchKernelEx takes for a program that runs in clusters. Its grid is one cluster, and is set for each launch."""
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = cluster
    config.blockDimX, config.blockDimY, config.blockDimZ = program.workgroup
    config.sharedMemBytes = program.shared_bytes
    if stream is not None:
        config.hStream = stream
    size = driver.CUlaunchAttribute()
    size.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    place = size.value.clusterDim
    place.x, place.y, place.z = cluster
    config.attrs = [size]
    config.numAttrs = 1
    return config


def told(function: Any, name: str) -> int:
    """An attribute of a function, such as `SHARED_SIZE_BYTES`."""
    return int(call(driver.cuFuncGetAttribute, getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}"), function))


def tell(function: Any, name: str, value: int) -> None:
    """Set an attribute of a function."""
    call(driver.cuFuncSetAttribute, function, getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}"), value)
