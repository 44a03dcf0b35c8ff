"""Executables: a code object on the GPU, which is read and checked here before the vendor's library sees it.

Specialization constants are a symbol `remora_words`, an array of 32-bit words that is written before the first kernel runs. Named
globals are symbols of their own.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from ctypes import byref, c_size_t, c_void_p
from typing import TYPE_CHECKING, Any, Final

from remora.drivers.hip._ffi import OUT_OF_MEMORY
from remora.drivers.hip.buffer import HipBuffer
from remora.drivers.hip.code_object import CodeObject, read_code_object
from remora.drivers.hip.program import HipKernel, Program, check_kernel, check_shared, export_of
from remora.errors import DeviceError, NotFoundError, UsageError
from remora.hal.artifact import Artifact
from remora.hal.device_memory import CodeMemory
from remora.hal.executable import Executable, Kernel, KernelInfo
from remora.hal.launch import check_launch
from remora.hal.specialization import ExecutableInfo, GlobalRule

if TYPE_CHECKING:
    from remora.drivers.hip._ffi import Runtime
    from remora.drivers.hip.device import HipDevice
    from remora.drivers.hip.targets import Processor
    from remora.hal.exports import Export
    from remora.hal.target import Target

__all__ = ["HipExecutable"]

WORDS_SYMBOL: Final = "remora_words"


class Code:
    """A loaded module; unloaded when the last reference is dropped."""

    def __init__(self, runtime: Runtime, image: bytes) -> None:
        self._runtime = runtime
        self.module = 0
        place = c_void_p()
        runtime.enter()
        code = runtime.raw["hipModuleLoadData"](byref(place), image)
        if code:
            error = runtime.failure(code, "hipModuleLoadData")
            raise error if code == OUT_OF_MEMORY else UsageError(f"the code object does not load: {error.message}")
        self.module = place.value or 0

    def function(self, name: str) -> int:
        """A kernel's handle."""
        return self._runtime.made("hipModuleGetFunction", self.module, name.encode())

    def address(self, name: str, size: int) -> int:
        """Where the memory with this symbol is. Raises DeviceError when the runtime has another size of it."""
        place, there = c_void_p(), c_size_t()
        self._runtime.call("hipModuleGetGlobal", byref(place), byref(there), self.module, name.encode())
        if there.value != size:
            raise DeviceError(f"ROCm's runtime gives {name} {there.value} bytes, the code object {size}: build the bundle again")
        return place.value or 0

    def __del__(self) -> None:
        if self.module and not sys.is_finalizing():  # at the end of the process the library goes by itself
            self._runtime.raw["hipModuleUnload"](self.module)


class HipExecutable(Executable):
    """A code object on the GPU."""

    def __init__(self, device: HipDevice, target: Target, artifact: Any, info: ExecutableInfo, constants: tuple[int, ...]) -> None:
        super().__init__(device, target, info, constants)
        image = bytes(Artifact.of(artifact).view)
        self._told = told = read_code_object(image)
        check_processor(told, device.processor)
        check_memory(told, self.info)
        for kernel in self._kernels.values():
            entry = told.kernels[find_export(told, kernel.info)]
            check_kernel(kernel, entry)
            check_launch(kernel.info, "hip", shared=True)
            check_shared(kernel.info, entry, device.shared_bytes)
        code = Code(device.runtime, image)
        self._code: Code | None = code
        self._kernels: dict[str, Kernel] = {
            kernel.name: self._loaded(code, ordinal, kernel) for ordinal, kernel in enumerate(self.info.kernels)
        }
        if constants:
            words = struct.pack(f"<{len(constants)}I", *constants)
            device.runtime.call("hipMemcpyHtoD", code.address(WORDS_SYMBOL, len(words)), ctypes.c_char_p(words), len(words))
        self._globals = {rule.name: self._find(code, rule) for rule in self.info.globals}

    def close(self) -> None:
        """See `Executable.close`."""
        self._close_globals()
        self.closed = True
        for kernel in self._kernels.values():
            kernel.program = None  # type: ignore[attr-defined]
        self._code, self._globals = None, {}

    def _exports(self) -> tuple[Export, ...]:
        return tuple(export_of(kernel) for kernel in self._told.kernels.values())

    def _loaded(self, code: Code, ordinal: int, info: KernelInfo) -> HipKernel:
        program = Program(code, code.function(info.export or info.name), info)
        return HipKernel(self, ordinal, info, program)

    def _find(self, code: Code, rule: GlobalRule) -> CodeMemory:
        return CodeMemory(code, code.address(rule.export or rule.name, rule.size), rule.size)

    def _global(self, rule: GlobalRule) -> HipBuffer:
        return HipBuffer(self.device, self._globals[rule.name])  # type: ignore[arg-type]


def check_processor(told: CodeObject, gpu: Processor) -> None:
    """Raise UsageError unless this GPU runs the code."""
    if not gpu.takes(told.processor):
        raise UsageError(
            f"the code object was built for {told.processor}, this GPU is {gpu}: build the bundle for it, "
            f"`remora build --target amdgpu:{gpu.name}`"
        )


def find_export(told: CodeObject, info: KernelInfo) -> str:
    """The name of a kernel inside the code object. Raises NotFoundError that lists those that are there."""
    name = info.export or info.name
    if name not in told.kernels:
        there = ", ".join(told.kernels) or "none"
        raise NotFoundError(f"the artifact has no export {name!r}; it has: {there}")
    return name


def check_memory(told: CodeObject, info: ExecutableInfo) -> None:
    """Compare the sizes of the specialization words and of the globals. Raises UsageError or NotFoundError."""
    words = told.memory.get(WORDS_SYMBOL, 0)
    if words != 4 * info.words:
        raise UsageError(
            f"the artifact takes {words // 4} words of specialization constants, its manifest declares {info.words}: "
            "build the bundle again"
        )
    for rule in info.globals:
        name = rule.export or rule.name
        size = told.memory.get(name)
        if size is None:
            there = ", ".join(told.memory) or "none"
            raise NotFoundError(f"the artifact exports no memory {name!r}; it exports: {there}. Build the bundle again")
        if size != rule.size:
            raise UsageError(
                f"the global {rule.name} has {size} bytes in the artifact, its manifest says {rule.size}: build it again"
            )
