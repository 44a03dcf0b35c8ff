"""Bundles that travel with remora: real kernels for x86-64 and aarch64 Linux. Sources and recipe are in kernels/.

vector    exact element-wise kernels: add_i32 mix_u32 empty fill_index saxpy_f32    (C)
matmul    a float32 matrix product, 512 x 512 x 512                                   (MLIR, compiled by IREE)
special   specialization constants and named globals: reveal affine_u32 tally look_up    (C)
faults    kernels that go wrong: fail crash_segv crash_abort spin                   (C)
"""

from __future__ import annotations

from functools import cache
from importlib import resources

from remora.errors import NotFoundError
from remora.hal.bundle import Bundle

__all__ = ["load", "names"]

_SUFFIX = ".rbundle"


def names() -> tuple[str, ...]:
    """The names that `load` takes, in alphabetical order."""
    files = (entry.name for entry in resources.files(__name__).iterdir())
    return tuple(sorted(file.removesuffix(_SUFFIX) for file in files if file.endswith(_SUFFIX)))


@cache
def load(name: str) -> Bundle:
    """A sample bundle. Raises NotFoundError that lists the names. Example: `kernels = device.load(samples.load("vector"))`."""
    if name not in names():
        raise NotFoundError(f"there is no sample {name!r}; there are {', '.join(names())}")
    return Bundle.load(resources.files(__name__).joinpath(name + _SUFFIX).read_bytes())
