"""Executables: a module of machine code or PTX, and how its kernels take their arguments.

A kernel's parameters are the addresses of its bindings, then its constants, each at a multiple of its own size: what a C function
`kernel(void *a, const void *b, unsigned n, double f)` has. Specialization constants are a symbol `remora_words`, an array of
32-bit words in constant or global memory, written before the first kernel runs. Named globals are symbols of their own.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

from remora.drivers.cuda._ffi import call, driver, failure
from remora.drivers.cuda.arguments import MAX_ARGUMENTS, layout
from remora.drivers.cuda.buffer import CudaBuffer
from remora.drivers.cuda.exports import read_entry
from remora.drivers.cuda.launch import prepare
from remora.errors import Error, NotFoundError, OutOfMemoryError, UsageError
from remora.hal.artifact import Artifact
from remora.hal.device_memory import CodeMemory
from remora.hal.executable import NO_CLUSTER, Executable, Kernel, KernelInfo
from remora.hal.specialization import CONSTANT_CODES, ExecutableInfo, GlobalRule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remora.drivers.cuda.device import CudaDevice
    from remora.hal.exports import Export
    from remora.hal.target import Target

__all__ = ["CudaExecutable", "CudaKernel", "Program"]

WORDS_SYMBOL: Final = b"remora_words"
LOG_BYTES: Final = 8 << 10
#: Most workgroups of a grid per dimension.
MAX_GRID: Final = (1 << 31) - 1, (1 << 16) - 1, (1 << 16) - 1


class Code:
    """A loaded module; unloaded when the last reference is dropped, or with the device."""

    def __init__(self, device: CudaDevice, artifact: memoryview) -> None:
        self._device = device
        self.module: Any = None
        device.context.enter()
        image = bytes(artifact) + b"\0"  # PTX is a text, which ends at its first zero
        log = bytes(LOG_BYTES)  # cuda-bindings takes the memory of a bytes object, and the driver writes into it
        option = driver.CUjit_option
        names = [option.CU_JIT_ERROR_LOG_BUFFER, option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
        code, module = driver.cuModuleLoadDataEx(image, len(names), names, [log, LOG_BYTES])
        if code:
            raise refusal(code, log.partition(b"\0")[0].decode(errors="replace").strip())
        self.module = module
        device.context.residents.add(self)

    def functions(self) -> dict[str, Any]:
        """Its entry points by name. The vendor's driver may load one only when it is asked for more than that."""
        functions = call(driver.cuModuleEnumerateFunctions, call(driver.cuModuleGetFunctionCount, self.module), self.module)
        return {call(driver.cuFuncGetName, function).decode(): function for function in functions}

    def symbol(self, name: bytes) -> tuple[int, int] | None:
        """(address, bytes) of a variable, or None."""
        code, address, size = driver.cuModuleGetGlobal(self.module, name)
        return None if code else (int(address), int(size))

    def end(self) -> None:
        """See `Resident.end`."""
        module, self.module = self.module, None
        if module is not None:
            with self._device.context.lent():
                driver.cuModuleUnload(module)

    def __del__(self) -> None:
        self.end()


def refusal(code: Any, log: str) -> Error:
    """Why an artifact was not loaded."""
    error = failure(code, "cuModuleLoadDataEx")
    if isinstance(error, OutOfMemoryError):
        return error
    result = driver.CUresult
    cure = {
        result.CUDA_ERROR_NO_BINARY_FOR_GPU: "it is for another GPU: build the bundle for this one",
        result.CUDA_ERROR_UNSUPPORTED_PTX_VERSION: "its PTX is newer than the driver: build it as an older PTX, or as machine code",
        result.CUDA_ERROR_INVALID_PTX: "the driver's compiler refuses its PTX",
    }.get(code, "build it as a cubin or PTX for this GPU")
    return UsageError(f"the artifact does not load: {error.message}; {cure}{f': {log}' if log else ''}")


class Program:
    """How a kernel is launched: its function, and where its arguments lie. It keeps the code loaded."""

    def __init__(self, code: Code, function: Any, info: KernelInfo) -> None:
        self.code = code
        self.name = info.name
        self.function = function
        self.workgroup = info.workgroup
        self.shared_bytes = info.shared_bytes
        self.cluster = None if info.cluster == NO_CLUSTER else info.cluster
        self._bindings = struct.Struct(f"={len(info.bindings)}Q")
        sizes = [struct.calcsize(f"<{CONSTANT_CODES[rule.type]}") for rule in info.constants]
        self._pieces, self.argument_bytes = layout(len(info.bindings), sizes)
        if self.argument_bytes > MAX_ARGUMENTS:
            raise UsageError(f"{self.name} takes {self.argument_bytes} bytes of arguments; a kernel can have {MAX_ARGUMENTS}")

    def pack(self, arguments: Any, addresses: Sequence[int], constants: bytes) -> None:
        """Write the arguments of one launch."""
        self._bindings.pack_into(arguments, 0, *addresses)
        for start, end, place in self._pieces:
            arguments[place : place + end - start] = constants[start:end]


class CudaKernel(Kernel):
    """A kernel with its program, until the executable is closed."""

    __slots__ = ("program",)

    def __init__(self, executable: Executable, ordinal: int, info: KernelInfo, program: Program) -> None:
        super().__init__(executable, ordinal, info)
        self.program: Program | None = program


class CudaExecutable(Executable):
    """A module on the GPU."""

    def __init__(self, device: CudaDevice, target: Target, artifact: Any, info: ExecutableInfo, constants: tuple[int, ...]) -> None:
        super().__init__(device, target, info, constants)
        self._context = device.context
        code = Code(device, Artifact.of(artifact).view)
        self._code: Code | None = code  # the functions are its
        self._specialize(code, constants)
        self._functions = code.functions()
        self._kernels: dict[str, Kernel] = {
            kernel.name: self._kernel(code, ordinal, kernel) for ordinal, kernel in enumerate(self.info.kernels)
        }
        self._globals = {rule.name: self._find(code, rule) for rule in self.info.globals}

    def close(self) -> None:
        """See `Executable.close`."""
        self._close_globals()
        self.closed = True
        for kernel in self._kernels.values():
            kernel.program = None  # type: ignore[attr-defined]
        self._functions, self._code = {}, None
        self._globals = {}

    def _exports(self) -> tuple[Export, ...]:
        self._context.enter()
        return tuple(read_entry(function).export(name) for name, function in self._functions.items())

    def _kernel(self, code: Code, ordinal: int, info: KernelInfo) -> CudaKernel:
        function = self._functions.get(info.export or info.name)
        if function is None:
            there = ", ".join(self._functions) or "none"
            raise NotFoundError(f"the artifact has no export {info.export or info.name!r}; it has: {there}")
        program = Program(code, function, info)
        kernel = CudaKernel(self, ordinal, info, program)
        read_entry(function).check(kernel)
        prepare(self._context.device, program)
        return kernel

    def _specialize(self, code: Code, words: tuple[int, ...]) -> None:
        address, size = code.symbol(WORDS_SYMBOL) or (0, 0)
        if size != 4 * len(words):
            raise UsageError(
                f"the artifact takes {size // 4} words of specialization constants, its manifest declares {len(words)}: "
                "build the bundle again"
            )
        if words:
            call(driver.cuMemcpyHtoD, address, struct.pack(f"<{len(words)}I", *words), size)

    def _find(self, code: Code, rule: GlobalRule) -> CodeMemory:
        name = rule.export or rule.name
        place = code.symbol(name.encode())
        if place is None:
            raise NotFoundError(f"the artifact exports no memory {name!r}: build the bundle again")
        if place[1] != rule.size:
            raise UsageError(
                f"the global {rule.name} has {place[1]} bytes in the artifact, its manifest says {rule.size}: build it again"
            )
        return CodeMemory(code, *place)

    def _global(self, rule: GlobalRule) -> CudaBuffer:
        return CudaBuffer(self.device, self._globals[rule.name])
