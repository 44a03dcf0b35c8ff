"""Executables: shared libraries in the IREE executable-library ABI, version 0.6.

An artifact is native code that runs in this process: load only what you trust. Before it is loaded its ELF header must fit this
machine, and afterwards its version, exports and counts must fit the manifest (requirement H25).
"""

from __future__ import annotations

import _ctypes
import ctypes
import os
import struct
from collections.abc import Sequence
from ctypes import addressof
from typing import TYPE_CHECKING, Any

from remora.drivers.cpu._ffi import Attributes, KernelRecord, Library
from remora.drivers.cpu.elf import check_elf
from remora.errors import NotFoundError, UnsupportedError, UsageError
from remora.hal.executable import Executable, Kernel, KernelInfo

if TYPE_CHECKING:
    from remora.drivers.cpu.device import CpuDevice
    from remora.hal.target import Target

__all__ = ["MAX_BINDINGS", "MAX_CONSTANTS", "CpuExecutable", "CpuKernel", "Program"]

QUERY = "iree_hal_executable_library_query"
VERSION = 6
MAX_BINDINGS = 64
MAX_CONSTANTS = 64
MAX_EXPORTS = 1 << 16
PAGE_BYTES = 4096


class Code:
    """A loaded shared library; unloaded when the last reference is dropped.

    Its descriptor stays open meanwhile: the loader knows a library by its path, and a second one must not get the same
    /proc/self/fd path while the first is there.
    """

    __slots__ = ("_fd", "_handle", "table")

    def __init__(self, artifact: memoryview, environment: int) -> None:
        self._handle = 0
        self._fd = os.memfd_create("remora-code", os.MFD_CLOEXEC)
        try:
            with os.fdopen(self._fd, "wb", closefd=False) as file:
                file.write(artifact)
            library = ctypes.CDLL(self._path)
        except OSError as error:
            raise UsageError(f"the artifact does not load: {error}. Build it as a shared library without missing symbols") from None
        self._handle = library._handle
        self.table = query(library, environment)

    @property
    def _path(self) -> str:
        return f"/proc/self/fd/{self._fd}"

    def __del__(self) -> None:
        if self._handle:
            _ctypes.dlclose(self._handle)
            if is_loaded(self._path):  # it asked never to be unloaded: then its path stays taken
                return
        os.close(self._fd)


def is_loaded(path: str) -> bool:
    """Whether the loader still has a library of this path."""
    try:
        _ctypes.dlopen(path, os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    return True


def query(library: ctypes.CDLL, environment: int) -> Library:
    """The library's table. Raises UsageError when it is not of the one ABI version understood here."""
    try:
        function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p)((QUERY, library))
    except AttributeError:
        raise UsageError(f"the artifact does not export {QUERY}: build it for the IREE executable-library ABI") from None
    address = function(VERSION, environment)
    if not address:
        raise UsageError(
            f"the artifact refused this host: it needs an ABI newer than version {VERSION} or other processor features"
        )
    table = Library.from_address(address)
    header = table.header.contents
    if header.version != VERSION:
        raise UsageError(
            f"the artifact has ABI version {header.version:#x}, only {VERSION:#x} is understood: compile it with IREE 3"
        )
    if header.sanitizer:
        raise UnsupportedError("the artifact was built with a sanitizer, which needs a host built with it: build it without")
    for index in range(table.imports.count):
        symbol = table.imports.symbols[index].decode(errors="replace")
        if not symbol.endswith("?"):
            raise UnsupportedError(f"the artifact imports {symbol!r}; nothing is offered to kernels here: link it in statically")
    if table.constant_count:
        raise UnsupportedError(
            f"the artifact needs {table.constant_count} specialization constants: build it with their values fixed"
        )
    return table


class Program:
    """One loaded entry point: what `remora_dispatch` needs of it, and how a dispatch of it is packed."""

    __slots__ = ("_code", "address", "bindings_at", "call_bytes", "name", "pack_into", "record")

    def __init__(self, code: Code, record: KernelRecord, name: str, constants: int, bindings: int) -> None:
        self._code = code
        self.record = record
        self.address = addressof(record)
        self.name = name
        #: kernel, grid x y z, reserved, constants, binding pointers, binding lengths: remora_call_t of pool.c.
        call = struct.Struct(f"=Q4I{-(-constants // 2) * 8}s{2 * bindings}Q")
        self.pack_into = call.pack_into
        self.call_bytes = call.size
        self.bindings_at = call.size - 16 * bindings


class CpuKernel(Kernel):
    """A kernel with its program; the program is None once the executable is closed."""

    __slots__ = ("program",)

    def __init__(self, executable: Executable, ordinal: int, info: KernelInfo, program: Program) -> None:
        super().__init__(executable, ordinal, info)
        self.program: Program | None = program


class CpuExecutable(Executable):
    """A loaded artifact. Closing it drops the code; operations in flight hold theirs until they are done."""

    def __init__(self, device: CpuDevice, target: Target, artifact: Any, infos: Sequence[KernelInfo]) -> None:
        super().__init__(device, target, infos)
        view = memoryview(artifact).cast("B")
        check_elf(view)
        code = Code(view, device.environment)
        exports = export_names(code.table)
        self._programs = [load_program(device, code, exports, kernel) for kernel in self._kernels.values()]
        bound = zip(self._kernels.values(), self._programs, strict=True)
        self._cpu_kernels = [CpuKernel(self, kernel.ordinal, kernel.info, program) for kernel, program in bound]
        self._kernels = {kernel.name: kernel for kernel in self._cpu_kernels}

    def close(self) -> None:
        """Unload the code once everything submitted so far is done with it. Safe to repeat."""
        self.closed = True
        for kernel in self._cpu_kernels:
            kernel.program = None
        self._programs.clear()


def export_names(table: Library) -> dict[str, int]:
    """Ordinal of each export by name."""
    exports = table.exports
    if exports.count > MAX_EXPORTS:
        raise UsageError(f"the artifact claims {exports.count} exports, more than {MAX_EXPORTS}: it is damaged")
    if exports.count and not (exports.names and exports.pointers):
        raise UsageError("the artifact has no names for its exports: compile it without stripping them")
    return {exports.names[ordinal].decode(errors="replace"): ordinal for ordinal in range(exports.count)}


def load_program(device: CpuDevice, code: Code, exports: dict[str, int], kernel: Kernel) -> Program:
    """Find a kernel's entry point. Raises NotFoundError without it, UsageError when its counts are not the manifest's."""
    export = kernel.info.export or kernel.name
    ordinal = exports.get(export)
    if ordinal is None:
        raise NotFoundError(f"the artifact has no export {export!r}; it has: {', '.join(exports) or 'none'}")
    constants = kernel.constant_bytes // 4
    bindings = len(kernel.info.bindings)
    if constants > MAX_CONSTANTS or bindings > MAX_BINDINGS:
        raise UsageError(
            f"{kernel.name} has {constants} words of constants and {bindings} bindings; "
            f"the ABI carries {MAX_CONSTANTS} and {MAX_BINDINGS}: put the rest into a buffer"
        )
    table = code.table.exports
    attributes = table.attributes[ordinal] if table.attributes else Attributes()
    check_counts(kernel.name, attributes, constants, bindings)
    record = KernelRecord(
        pool=device.pool.address,
        entry=table.pointers[ordinal],
        environment=device.environment,
        ns_per_workgroup=-1.0,
        local_memory_bytes=attributes.local_memory_pages * PAGE_BYTES,
        constant_count=constants,
        binding_count=bindings,
    )
    record.workgroup_size_x, record.workgroup_size_y, record.workgroup_size_z = kernel.info.workgroup
    return Program(code, record, kernel.name, constants, bindings)


def check_counts(name: str, attributes: Attributes, constants: int, bindings: int) -> None:
    """The counts that the compiler recorded must be the manifest's. Zero means that it recorded none."""
    pairs = (("constants", attributes.constant_count, constants), ("bindings", attributes.binding_count, bindings))
    for what, compiled, declared in pairs:
        if compiled and compiled != declared:
            raise UsageError(f"{name} was compiled with {compiled} {what}, its manifest has {declared}: build the bundle again")
