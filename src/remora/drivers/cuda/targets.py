"""Which artifacts a GPU takes: its own machine code first, then that of lesser minor versions, then PTX (requirement H19).

sm_90a     machine code for exactly this GPU
sm_90      machine code: runs on GPUs of the same major version and no lesser minor one
ptx8.0     PTX, by the version of its instruction set: the driver compiles it if it is no newer than the driver
"""

from __future__ import annotations

from typing import Final

from remora.hal.target import Target

__all__ = ["ptx_version", "targets"]

#: CUDA version of the driver -> the newest PTX it knows, from the release notes of the PTX ISA. CUDA 13.n knows PTX 9.n.
PTX_OF_CUDA: Final = {
    (11, 0): (7, 0), (11, 1): (7, 1), (11, 2): (7, 2), (11, 3): (7, 3), (11, 4): (7, 4), (11, 5): (7, 5), (11, 6): (7, 6),
    (11, 7): (7, 7), (11, 8): (7, 8), (12, 0): (8, 0), (12, 1): (8, 1), (12, 2): (8, 2), (12, 3): (8, 3), (12, 4): (8, 4),
    (12, 5): (8, 5), (12, 6): (8, 5), (12, 7): (8, 6), (12, 8): (8, 7), (12, 9): (8, 8),
}  # fmt: skip
OLDEST_PTX: Final = (6, 0)


def ptx_version(driver_version: int) -> tuple[int, int]:
    """The newest PTX that a driver takes; `driver_version` is cuDriverGetVersion's, 12040 for CUDA 12.4."""
    cuda = driver_version // 1000, driver_version % 1000 // 10
    if cuda >= (13, 0):
        return 9, cuda[1] if cuda[0] == 13 else 9
    return PTX_OF_CUDA.get(cuda, (7, 0))


def targets(capability: tuple[int, int], driver_version: int) -> tuple[Target, ...]:
    """In order of preference, for a GPU of this compute capability under a driver of this version."""
    major, minor = capability
    keys = [f"sm_{major}{minor}a"] if major >= 9 else []
    keys += [f"sm_{major}{lesser}" for lesser in range(minor, -1, -1)]
    newest = ptx_version(driver_version)
    for family in range(newest[0], OLDEST_PTX[0] - 1, -1):
        top = newest[1] if family == newest[0] else 8
        keys += [f"ptx{family}.{minor_version}" for minor_version in range(top, -1, -1)]
    return tuple(Target("cuda", key) for key in keys)
