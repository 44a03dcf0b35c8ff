"""One CUDA stream, and the operations that this driver puts into it. For one thread at a time, in the device's context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from remora.drivers.cuda._ffi import call, driver, failure
from remora.drivers.cuda.arguments import ArgumentBlock
from remora.drivers.cuda.launch import cluster_config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remora.drivers.cuda.executable import Program
    from remora.hal.executable import Grid

__all__ = ["Stream"]

FILLS: Final = {1: driver.cuMemsetD8Async, 2: driver.cuMemsetD16Async, 4: driver.cuMemsetD32Async}


class Stream:
    """A stream of its own; `handle` is the vendor's."""

    def __init__(self) -> None:
        self.handle = call(driver.cuStreamCreate, int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self.dispatches = 0
        self._block = ArgumentBlock()
        #: What launches of programs with clusters take; the stream's own, because each launch changes it.
        self._configs: WeakKeyDictionary[Program, Any] = WeakKeyDictionary()

    def launch(self, program: Program, grid: Grid, constants: bytes, addresses: Sequence[int]) -> None:
        """Run a kernel. A grid without workgroups is none."""
        if not all(grid):
            self.dispatches += 1
            return
        extra = self._block.fill(program, addresses, constants)
        if program.cluster is None:
            (code,) = driver.cuLaunchKernel(
                program.function, *grid, *program.workgroup, program.shared_bytes, self.handle, 0, extra
            )
        else:
            code = self._launch_clusters(program, program.cluster, grid, extra)
        if code:
            raise failure(code, f"kernel {program.name}")
        self.dispatches += 1

    def _launch_clusters(self, program: Program, cluster: Grid, grid: Grid, extra: int) -> Any:
        config = self._configs.get(program)
        if config is None:
            config = self._configs[program] = cluster_config(program, cluster, self.handle)
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        (code,) = driver.cuLaunchKernelEx(config, program.function, 0, extra)
        return code

    def fill(self, address: int, size: int, pattern: bytes) -> None:
        """Repeat a pattern of 1, 2 or 4 bytes."""
        if size:
            call(FILLS[len(pattern)], address, int.from_bytes(pattern, "little"), size // len(pattern), self.handle)

    def write(self, address: int, data: Any, size: int) -> None:
        """Copy from host memory: an address of pinned memory, or a buffer, which may be used again when this returns."""
        if size:
            call(driver.cuMemcpyHtoDAsync, address, data, size, self.handle)

    def read(self, into: Any, address: int, size: int) -> None:
        """Copy to host memory: an address of pinned memory, or a buffer, for which this waits."""
        if size:
            call(driver.cuMemcpyDtoHAsync, into, address, size, self.handle)

    def copy(self, source: int, target: int, size: int) -> None:
        """Copy inside the GPU."""
        if size:
            call(driver.cuMemcpyDtoDAsync, target, source, size, self.handle)

    def destroy(self) -> None:
        """Give it back; it is idle."""
        driver.cuStreamDestroy(self.handle)
