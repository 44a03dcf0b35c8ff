"""One HIP stream, and the operations that this driver puts into it. For one thread at a time, which has entered the device."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remora.drivers.hip._ffi import Runtime
    from remora.drivers.hip.program import Program
    from remora.hal.executable import Grid

__all__ = ["MAX_ARGUMENTS", "Stream"]

NON_BLOCKING: Final = 1
#: Bytes of arguments that a kernel may have here.
MAX_ARGUMENTS: Final = 4096
#: What `extra` of hipModuleLaunchKernel points to: HIP_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE, _END.
BUFFER_POINTER, BUFFER_SIZE, END = 1, 2, 3
FILLS: Final = {1: "hipMemsetD8Async", 2: "hipMemsetD16Async", 4: "hipMemsetD32Async"}


class Stream:
    """A stream of its own, which waits for no other."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._launch = runtime.raw["hipModuleLaunchKernel"]
        self.handle = runtime.made("hipStreamCreateWithFlags", NON_BLOCKING)
        self.dispatches = 0
        self._arguments = ctypes.create_string_buffer(MAX_ARGUMENTS)
        self._size = ctypes.c_size_t()
        self._extra = (ctypes.c_void_p * 5)(
            BUFFER_POINTER, ctypes.addressof(self._arguments), BUFFER_SIZE, ctypes.addressof(self._size), END
        )

    def launch(self, program: Program, grid: Grid, constants: bytes, addresses: Sequence[int]) -> None:
        """Run a kernel. A grid without workgroups is none."""
        if all(grid):
            self._size.value = program.pack(self._arguments, addresses, constants)
            code = self._launch(program.function, *grid, *program.workgroup, program.shared_bytes, self.handle, None, self._extra)
            if code:
                raise self._runtime.failure(code, f"kernel {program.name}")
        self.dispatches += 1

    def fill(self, address: int, size: int, pattern: bytes) -> None:
        """Repeat a pattern of 1, 2 or 4 bytes."""
        if size:
            value, count = int.from_bytes(pattern, "little"), size // len(pattern)
            self._runtime.call(FILLS[len(pattern)], address, value, count, self.handle)

    def write(self, address: int, source: int, size: int) -> None:
        """Copy from pinned memory, which must stay as it is until the stream has done this."""
        if size:
            self._runtime.call("hipMemcpyHtoDAsync", address, source, size, self.handle)

    def read(self, target: int, address: int, size: int) -> None:
        """Copy to pinned memory, which has the bytes once the stream has done this."""
        if size:
            self._runtime.call("hipMemcpyDtoHAsync", target, address, size, self.handle)

    def copy(self, source: int, target: int, size: int) -> None:
        """Copy inside the GPU."""
        if size:
            self._runtime.call("hipMemcpyDtoDAsync", target, source, size, self.handle)

    def mark(self, address: int, value: int) -> None:
        """Write a number to pinned memory behind everything before."""
        self._runtime.call("hipStreamWriteValue64", self.handle, address, value, 0)

    def query(self) -> int:
        """The code of its state: 0, NOT_READY, or what went wrong."""
        return self._runtime.raw["hipStreamQuery"](self.handle)

    def synchronize(self) -> int:
        """Block until all is done; the code of what went wrong, or 0."""
        return self._runtime.raw["hipStreamSynchronize"](self.handle)

    def destroy(self) -> None:
        """Give it back; it is idle."""
        self._runtime.raw["hipStreamDestroy"](self.handle)
