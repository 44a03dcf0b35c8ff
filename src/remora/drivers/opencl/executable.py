"""Executables: OpenCL C source, compiled when it is loaded. README.md says how a kernel's arguments are laid out.

Compiled code runs in the session's process (PoCL) or on the GPU: load only what you trust.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyopencl as cl

from remora.drivers.opencl.buffer import OpenclBuffer
from remora.drivers.opencl.exports import INITIALIZE, Entry, read_entries
from remora.drivers.opencl.failures import failing
from remora.drivers.opencl.memory import Memory
from remora.drivers.opencl.source import Declared, defines, read_source
from remora.errors import NotFoundError, UsageError
from remora.hal.artifact import Artifact
from remora.hal.executable import Executable, Kernel, KernelInfo
from remora.hal.exports import check_export
from remora.hal.launch import check_launch
from remora.hal.specialization import CONSTANT_CODES, ExecutableInfo, GlobalRule

if TYPE_CHECKING:
    from remora.drivers.opencl.device import OpenclDevice
    from remora.hal.exports import Export
    from remora.hal.target import Target

__all__ = ["OpenclExecutable", "OpenclKernel", "Program"]


class Program:
    """One kernel as it is launched: how its constants are cut, which globals it gets, and an OpenCL kernel object for each queue.

    Setting an argument changes the object, so no two queues share one.
    """

    __slots__ = ("_code", "_kernels", "constants", "entry", "globals", "info", "name", "workgroup")

    def __init__(self, code: cl.Program, entry: Entry, owned: Mapping[str, Memory], info: KernelInfo) -> None:
        self._code = code
        self._kernels: dict[int, cl.Kernel] = {}
        self.entry = entry
        self.name = info.name
        self.info = info
        self.workgroup = info.workgroup
        self.globals = [owned[name] for name in entry.globals]
        sizes = [struct.calcsize("<" + CONSTANT_CODES[rule.type]) for rule in info.constants]
        self.constants = [slice(sum(sizes[:index]), sum(sizes[: index + 1])) for index in range(len(sizes))]

    def kernel(self, queue: int) -> cl.Kernel:
        """The kernel object of one queue."""
        kernel = self._kernels.get(queue)
        if kernel is None:
            kernel = self._kernels[queue] = cl.Kernel(self._code, self.entry.export.name)
        return kernel


class OpenclKernel(Kernel):
    """A kernel with its program; the program is None once the executable is closed."""

    __slots__ = ("program",)

    def __init__(self, executable: Executable, ordinal: int, info: KernelInfo, program: Program) -> None:
        super().__init__(executable, ordinal, info)
        self.program: Program | None = program


class OpenclExecutable(Executable):
    """A compiled source. Closing it drops the code; operations in flight hold theirs until they are done."""

    device: OpenclDevice

    def __init__(self, device: OpenclDevice, target: Target, artifact: Any, info: ExecutableInfo, constants: Sequence[int]) -> None:
        super().__init__(device, target, info, constants)
        declared = read_source(Artifact.of(artifact).view)
        check_words(declared, len(constants))
        check_globals(declared, info.globals)
        code = device.compiler.compile(target.key.removeprefix("c"), defines(constants) + declared.text)
        with failing("the artifact's kernels"):
            entries = read_entries(code, device.native, declared.text, declared.globals)
        self._memories = {name: Memory(device.book, size, owned=True).make() for name, size in declared.globals.items()}
        self._told = tuple(entry.export for name, entry in entries.items() if name != INITIALIZE)
        self._opencl_kernels = [self._bind(code, entries, kernel) for kernel in self._kernels.values()]
        self._kernels = {kernel.name: kernel for kernel in self._opencl_kernels}
        if self._memories:
            device.initialize(self._memories.values(), self._initializer(code, entries))

    def close(self) -> None:
        """Drop the code once everything submitted so far is done with it. Safe to repeat."""
        self._close_globals()
        self.closed = True
        for kernel in self._opencl_kernels:
            kernel.program = None
        self._memories = {}

    def _bind(self, code: cl.Program, entries: Mapping[str, Entry], kernel: Kernel) -> OpenclKernel:
        wanted = kernel.info.export or kernel.name
        entry = entries.get(wanted)
        if entry is None:
            there = ", ".join(export.name for export in self._told) or "none"
            raise NotFoundError(f"the artifact has no export {wanted!r}; it has: {there}")
        check_export(kernel, entry.export, exact=True)
        check_launch(kernel.info, "opencl", shared=False)
        x, y, z = kernel.info.workgroup
        most = self.device.native.max_work_group_size
        if x * y * z > most:
            raise UsageError(
                f"{kernel.name} has workgroups of {x * y * z}, this device runs {most} at most: build it for smaller ones"
            )
        return OpenclKernel(self, kernel.ordinal, kernel.info, Program(code, entry, self._memories, kernel.info))

    def _initializer(self, code: cl.Program, entries: Mapping[str, Entry]) -> Program | None:
        entry = entries.get(INITIALIZE)
        if entry is None:
            return None
        if entry.export.bindings or entry.export.constants:
            raise UsageError(f"the artifact's {INITIALIZE} takes more than the program's globals")
        return Program(code, entry, self._memories, KernelInfo(INITIALIZE))

    def _exports(self) -> tuple[Export, ...]:
        return self._told

    def _global(self, rule: GlobalRule) -> OpenclBuffer:
        memory = self._memories.get(rule.export or rule.name)
        if memory is None:
            raise self._closed_error()
        return OpenclBuffer(self.device, memory)


def check_words(declared: Declared, words: int) -> None:
    """Raise UsageError when the text uses more words of specialization constants than the manifest declares."""
    if declared.words > words:
        raise UsageError(
            f"the artifact takes {declared.words} words of specialization constants, its manifest declares {words}: "
            "build the bundle again"
        )


def check_globals(declared: Declared, rules: Sequence[GlobalRule]) -> None:
    """Raise NotFoundError for a global that the text does not declare, UsageError for one of another size."""
    for rule in rules:
        export = rule.export or rule.name
        size = declared.globals.get(export)
        if size is None:
            there = ", ".join(declared.globals) or "none"
            raise NotFoundError(f"the artifact exports no memory {export!r}; it exports: {there}")
        if size != rule.size:
            raise UsageError(
                f"the global {rule.name} has {size} bytes in the artifact, its manifest says {rule.size}: build the bundle again"
            )
