"""Executables: shared libraries in the IREE executable-library ABI, version 0.6.

An artifact is native code that runs in this process: load only what you trust. Before it is loaded its ELF header must fit this
machine, and afterwards its version, exports and counts must fit the manifest (requirement H25).
"""

from __future__ import annotations

import _ctypes
import ctypes
import os
import struct
import threading
from collections.abc import Mapping, Sequence
from ctypes import addressof
from typing import TYPE_CHECKING, Any

from remora.drivers.cpu._ffi import Attributes, Environment, KernelRecord, Library
from remora.drivers.cpu.elf import check_elf
from remora.drivers.cpu.exports import check_kernel, read_exports
from remora.drivers.cpu.named_globals import CpuGlobal, GlobalBlock, find_globals
from remora.errors import NotFoundError, UnsupportedError, UsageError
from remora.hal.artifact import Artifact
from remora.hal.executable import Executable, Kernel, KernelInfo
from remora.hal.launch import check_launch
from remora.hal.specialization import ExecutableInfo, GlobalRule

if TYPE_CHECKING:
    from remora.drivers.cpu.device import CpuDevice
    from remora.hal.exports import Export
    from remora.hal.target import Target

__all__ = ["CpuExecutable", "CpuKernel", "Program"]

QUERY = "iree_hal_executable_library_query"
VERSION = 6
PAGE_BYTES = 4096


#: (device, inode) of the files that libraries are loaded from: the loader takes a second one of the same file for the first.
_loaded_files: set[tuple[int, int]] = set()
_loaded_lock = threading.Lock()


class Code:
    """A loaded shared library with data of its own; unloaded when the last reference is dropped.

    The loader knows a library by its file and by its path. So each is loaded from a file that no other is loaded from: the sealed
    one in which the artifact lies if that is free, else a copy. The descriptor stays open meanwhile, so that nothing else gets
    the same /proc/self/fd path.
    """

    __slots__ = ("_constants", "_environment", "_fd", "_file", "_handle", "environment", "table")

    def __init__(self, artifact: Artifact, environment: Environment, constants: Sequence[int]) -> None:
        self._environment = environment
        if constants:
            self._constants = (ctypes.c_uint32 * len(constants))(*constants)
            self._environment = Environment(constants=addressof(self._constants), processor=environment.processor)
        self.environment = addressof(self._environment)
        self._handle, self._fd, self._file = 0, -1, (-1, -1)
        try:
            self._fd, self._file = own_file(artifact)
            library = ctypes.CDLL(self._path)
        except OSError as error:
            raise UsageError(f"the artifact does not load: {error}. Build it as a shared library without missing symbols") from None
        self._handle = library._handle
        self.table = query(library, self.environment, len(constants))

    def address_of(self, export: str) -> int:
        """Where the memory lies that the library exports under this name. Raises NotFoundError when there is none."""
        try:
            return _ctypes.dlsym(self._handle, export)
        except OSError as error:
            raise NotFoundError(f"the artifact exports no memory {export!r}: {error}") from None

    @property
    def _path(self) -> str:
        return f"/proc/self/fd/{self._fd}"

    def __del__(self) -> None:
        if self._handle:
            _ctypes.dlclose(self._handle)
            if is_loaded(self._path):  # it asked never to be unloaded: then its path and its file stay taken
                return
        if self._fd >= 0:
            os.close(self._fd)
            _loaded_files.discard(self._file)


def own_file(artifact: Artifact) -> tuple[int, tuple[int, int]]:
    """A descriptor of a file with the artifact that no library is loaded from, and what identifies the file."""
    if artifact.descriptor >= 0:
        descriptor = os.dup(artifact.descriptor)
        status = os.fstat(descriptor)
        file = status.st_dev, status.st_ino
        with _loaded_lock:
            if file not in _loaded_files:
                _loaded_files.add(file)
                return descriptor, file
        os.close(descriptor)
    descriptor = os.memfd_create("remora-code", os.MFD_CLOEXEC)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as writer:
            writer.write(artifact.view)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, (-1, descriptor)


def is_loaded(path: str) -> bool:
    """Whether the loader still has a library of this path."""
    try:
        _ctypes.dlopen(path, os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return False
    return True


def query(library: ctypes.CDLL, environment: int, words: int) -> Library:
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
    if table.constant_count != words:
        raise UsageError(
            f"the artifact takes {table.constant_count} words of specialization constants, its manifest declares {words}: "
            "build the bundle again"
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

    device: CpuDevice

    def __init__(self, device: CpuDevice, target: Target, artifact: Any, info: ExecutableInfo, constants: Sequence[int]) -> None:
        super().__init__(device, target, info, constants)
        given = Artifact.of(artifact)
        check_elf(given.view)
        code = Code(given, device.environment, constants)
        self._global_places = find_globals(code, given.view, self.info.globals)
        self._told = read_exports(code.table)
        ordinals = {export.name: ordinal for ordinal, export in enumerate(self._told)}
        self._programs = [load_program(device, code, self._told, ordinals, kernel) for kernel in self._kernels.values()]
        bound = zip(self._kernels.values(), self._programs, strict=True)
        self._cpu_kernels = [CpuKernel(self, kernel.ordinal, kernel.info, program) for kernel, program in bound]
        self._kernels = {kernel.name: kernel for kernel in self._cpu_kernels}
        self._code: Code | None = code

    def close(self) -> None:
        """Unload the code once everything submitted so far is done with it. Safe to repeat."""
        self._close_globals()
        self.closed = True
        self._code = None
        for kernel in self._cpu_kernels:
            kernel.program = None
        self._programs.clear()

    def _exports(self) -> tuple[Export, ...]:
        return self._told

    def _global(self, rule: GlobalRule) -> CpuGlobal:
        code = self._code
        if code is None:
            raise self._closed_error()
        return CpuGlobal(self.device, GlobalBlock(code, self._global_places[rule.name], rule.size))


def load_program(device: CpuDevice, code: Code, exports: Sequence[Export], ordinals: Mapping[str, int], kernel: Kernel) -> Program:
    """Find a kernel's entry point. Raises NotFoundError without it, UsageError when it is not what the manifest says."""
    wanted = kernel.info.export or kernel.name
    ordinal = ordinals.get(wanted)
    if ordinal is None:
        raise NotFoundError(f"the artifact has no export {wanted!r}; it has: {', '.join(ordinals) or 'none'}")
    check_kernel(kernel, exports[ordinal])
    check_launch(kernel.info, "cpu", shared=True)
    table = code.table.exports
    attributes = table.attributes[ordinal] if table.attributes else Attributes()
    constants, bindings = kernel.constant_bytes // 4, len(kernel.info.bindings)
    record = KernelRecord(
        pool=device.pool.address,
        entry=table.pointers[ordinal],
        environment=code.environment,
        ns_per_workgroup=-1.0,
        local_memory_bytes=attributes.local_memory_pages * PAGE_BYTES + kernel.info.shared_bytes,
        constant_count=constants,
        binding_count=bindings,
    )
    record.workgroup_size_x, record.workgroup_size_y, record.workgroup_size_z = kernel.info.workgroup
    return Program(code, record, kernel.name, constants, bindings)
