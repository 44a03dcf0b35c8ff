"""What a module says of its kernels: where their parameters lie, and the largest workgroup that they were compiled for (H19)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from remora.drivers.cuda._ffi import call, driver
from remora.drivers.cuda.arguments import ADDRESS_BYTES, offsets
from remora.errors import UsageError
from remora.hal.exports import Export, check_export
from remora.hal.specialization import CONSTANT_CODES

if TYPE_CHECKING:
    from remora.hal.executable import Kernel

__all__ = ["Entry", "read_entry"]


class Entry(NamedTuple):
    """One entry point."""

    function: Any
    parameters: tuple[tuple[int, int], ...]
    """(offset, bytes) of each, in order. Whether one is an address is not recorded."""
    most: int
    """The most items that a workgroup may have."""

    def export(self, name: str) -> Export:
        """As `Executable.exports` shows it: what begins the parameters and has the size of an address counts as a binding."""
        sizes = [size for _, size in self.parameters]
        bindings = next((number for number, size in enumerate(sizes) if size != ADDRESS_BYTES), len(sizes))
        return Export(name, bindings, sum(sizes[bindings:]) // 4, (1, 1, 1) if self.most == 1 else (0, 0, 0))

    def check(self, kernel: Kernel) -> None:
        """Compare with what the manifest says. Raises UsageError."""
        info = kernel.info
        sizes = [struct.calcsize(f"<{CONSTANT_CODES[rule.type]}") for rule in info.constants]
        wanted = tuple(offsets([ADDRESS_BYTES] * len(info.bindings) + sizes))
        if self.parameters != wanted:
            check_export(kernel, self.export(info.export or info.name), exact=True)
            raise UsageError(
                f"{kernel.name}: the manifest gives parameters at {wanted} (offset, bytes), the code has {self.parameters}: "
                "they are the addresses of the bindings, then the constants"
            )
        x, y, z = info.workgroup
        if self.most == 1:
            check_export(kernel, Export(kernel.name, workgroup=(1, 1, 1)))
        if x * y * z > self.most:
            raise UsageError(
                f"{kernel.name} was compiled for workgroups of up to {self.most} items, its manifest says {info.workgroup}: "
                "build the bundle again"
            )


def read_entry(function: Any) -> Entry:
    """What is recorded of a function of a module, which is loaded for this."""
    call(driver.cuFuncLoad, function)
    parameters: list[tuple[int, int]] = []
    while True:
        code, offset, size = driver.cuFuncGetParamInfo(function, len(parameters))
        if code:
            break
        parameters.append((int(offset), int(size)))
    most = call(driver.cuFuncGetAttribute, driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function)
    return Entry(function, tuple(parameters), int(most))
