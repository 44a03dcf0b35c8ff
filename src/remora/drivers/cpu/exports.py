"""What a library in the executable-library ABI says of its entry points, and whether the manifest says the same (H19, H25)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remora.errors import UsageError
from remora.hal.exports import Export, check_export

if TYPE_CHECKING:
    from remora.drivers.cpu._ffi import Library
    from remora.hal.executable import Kernel

__all__ = ["MAX_BINDINGS", "MAX_CONSTANTS", "check_kernel", "read_exports"]

#: What the ABI carries to a kernel: bindings, and 32-bit words of constants.
MAX_BINDINGS = 64
MAX_CONSTANTS = 64
MAX_EXPORTS = 1 << 16


def read_exports(table: Library) -> tuple[Export, ...]:
    """The exports by ordinal. Raises UsageError when they cannot be told apart."""
    exports = table.exports
    if exports.count > MAX_EXPORTS:
        raise UsageError(f"the artifact claims {exports.count} exports, more than {MAX_EXPORTS}: it is damaged")
    if exports.count and not (exports.names and exports.pointers):
        raise UsageError("the artifact has no names for its exports: compile it without stripping them")
    return tuple(_export(table, ordinal) for ordinal in range(exports.count))


def _export(table: Library, ordinal: int) -> Export:
    name, attributes = table.exports.names[ordinal], table.exports.attributes
    if name is None:
        raise UsageError(f"the artifact has no name for its export {ordinal}: compile it without stripping them")
    text = name.decode(errors="replace")
    if not attributes:
        return Export(text)
    told = attributes[ordinal]
    workgroup = told.workgroup_size_x, told.workgroup_size_y, told.workgroup_size_z
    return Export(text, told.binding_count, told.constant_count, workgroup)


def check_kernel(kernel: Kernel, export: Export) -> None:
    """Raise UsageError when the manifest says something else of a kernel than the compiler, or more than the ABI carries."""
    name, constants, bindings = kernel.name, kernel.constant_bytes // 4, len(kernel.info.bindings)
    if constants > MAX_CONSTANTS or bindings > MAX_BINDINGS:
        raise UsageError(
            f"{name} has {constants} words of constants and {bindings} bindings; "
            f"the ABI carries {MAX_CONSTANTS} and {MAX_BINDINGS}: put the rest into a buffer"
        )
    check_export(kernel, export)
