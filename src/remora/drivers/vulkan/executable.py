"""Executables: SPIR-V modules whose entry points are kernels. README.md says what a kernel is handed, and where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from remora.drivers.vulkan.buffer import AnyBuffer
from remora.drivers.vulkan.capability import check_capabilities
from remora.drivers.vulkan.memory import Memory
from remora.drivers.vulkan.pipeline import Code, Program
from remora.drivers.vulkan.spirv import Module, Owned, parse_module
from remora.errors import NotFoundError, UnsupportedError, UsageError
from remora.hal.artifact import Artifact
from remora.hal.executable import Executable, Kernel, KernelInfo
from remora.hal.exports import check_export
from remora.hal.launch import check_launch
from remora.hal.specialization import ExecutableInfo, GlobalRule

if TYPE_CHECKING:
    from remora.drivers.vulkan.device import VulkanDevice
    from remora.hal.exports import Export
    from remora.hal.target import Target

__all__ = ["VulkanExecutable", "VulkanKernel"]

#: An entry point that runs once when the code is loaded, to set the globals, which are zero before. It is no export.
INITIALIZE = "remora_initialize"
#: Storage buffers whose names begin so are the driver's affair, and no globals.
PRIVATE = "remora_"


class VulkanKernel(Kernel):
    """A kernel with its program; the program is None once the executable is closed."""

    __slots__ = ("program",)

    def __init__(self, executable: Executable, ordinal: int, info: KernelInfo, program: Program) -> None:
        super().__init__(executable, ordinal, info)
        self.program: Program | None = program


class VulkanExecutable(Executable):
    """A loaded module. Closing it drops the code; operations in flight hold theirs until they are done."""

    device: VulkanDevice

    def __init__(self, device: VulkanDevice, target: Target, artifact: Any, info: ExecutableInfo, constants: Sequence[int]) -> None:
        super().__init__(device, target, info, constants)
        data = Artifact.of(artifact).view
        module = parse_module(data)
        check_capabilities(module, device.adapter)
        if module.words != len(constants):
            raise UsageError(
                f"the artifact takes {module.words} words of specialization constants, its manifest declares {len(constants)}: "
                "build the bundle again"
            )
        self._owned = find_globals(module.owned, self.info.globals)
        self._told = tuple(entry.export for entry in module.entries if entry.name != INITIALIZE)
        for kernel in self._kernels.values():
            check_kernel(kernel, self._told, device.adapter.limits.maxPushConstantsSize)
        code = Code(device.logical, data, module.owned, device.kind, device.host_kind, constants)
        self._code: Code | None = code
        self._vulkan_kernels = [
            VulkanKernel(self, kernel.ordinal, kernel.info, code.program(kernel)) for kernel in self._kernels.values()
        ]
        self._kernels = {kernel.name: kernel for kernel in self._vulkan_kernels}
        device.initialize(code, code.bare_program(INITIALIZE) if has_initializer(module) else None)

    def close(self) -> None:
        """Unload the code once everything submitted so far is done with it. Safe to repeat."""
        self._close_globals()
        self.closed = True
        self.unload()

    def unload(self) -> None:
        """Drop the code: here, or when the device ends."""
        self._code = None
        for kernel in self._vulkan_kernels:
            kernel.program = None

    def _exports(self) -> tuple[Export, ...]:
        return self._told

    def _global(self, rule: GlobalRule) -> AnyBuffer:
        code = self._code
        if code is None:
            raise self._closed_error()
        segment = code.segments[self._owned[rule.name].binding]
        return self.device.buffer_over(Memory(self.device.pool, rule.size).adopt(segment))


def has_initializer(module: Module) -> bool:
    """Whether the module sets its globals itself."""
    return any(entry.name == INITIALIZE for entry in module.entries)


def find_globals(owned: Sequence[Owned], rules: Sequence[GlobalRule]) -> dict[str, Owned]:
    """The memory of each declared global. Raises NotFoundError without it, UsageError when it has another size."""
    there = {each.name: each for each in owned if not each.name.startswith(PRIVATE)}
    found = {}
    for rule in rules:
        export = rule.export or rule.name
        if export not in there:
            raise NotFoundError(f"the artifact exports no memory {export!r}; it exports: {', '.join(there) or 'none'}")
        if there[export].size != rule.size:
            raise UsageError(
                f"the global {rule.name} has {there[export].size} bytes in the artifact, its manifest says {rule.size}: "
                "build the bundle again"
            )
        found[rule.name] = there[export]
    return found


def check_kernel(kernel: Kernel, exports: Sequence[Export], most: int) -> None:
    """Raise NotFoundError without a kernel's entry point, UsageError when it is not what the manifest says.

    Raises UnsupportedError for a kernel whose bindings and constants are more than the device takes.
    """
    wanted = kernel.info.export or kernel.name
    export = next((each for each in exports if each.name == wanted), None)
    if export is None:
        raise NotFoundError(f"the artifact has no export {wanted!r}; it has: {', '.join(each.name for each in exports) or 'none'}")
    check_export(kernel, export)
    check_launch(kernel.info, "vulkan", shared=False)
    bindings, constants = len(kernel.info.bindings), kernel.constant_bytes // 4
    if 8 * bindings + 4 * constants > most:
        raise UnsupportedError(
            f"{kernel.name} has {bindings} bindings and {4 * constants} bytes of constants; this device takes {most} bytes of push "
            "constants, 8 for each binding: put the rest into a buffer"
        )
