"""What a compiled program says of its kernels: how many bindings and constants each takes, and what else it is given (H19)."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

import pyopencl as cl

from remora.errors import UsageError
from remora.hal.exports import Export

__all__ = ["INITIALIZE", "STATUS", "Entry", "read_entries"]

#: The kernel that fills a program's globals when it is loaded. It takes globals alone.
INITIALIZE = "remora_globals"
#: The argument through which a kernel reports an error: `__global int *remora_status`, the last one.
STATUS = "remora_status"
_WIDE = frozenset({"ulong", "long", "double", "unsigned long", "u64", "i64", "f64"})
_NARROW = frozenset({"uint", "int", "float", "unsigned int", "u32", "i32", "f32"})


class Entry(NamedTuple):
    """One kernel: what the HAL is told of it, and the arguments that it takes beside bindings and constants."""

    export: Export
    globals: tuple[str, ...]
    status: bool


def read_entries(program: cl.Program, device: cl.Device, text: str, owned: Collection[str]) -> dict[str, Entry]:
    """The kernels by name, in the order of the text. Raises UsageError for arguments that are not passed here."""
    kernels = {kernel.function_name: kernel for kernel in program.all_kernels()}
    return {name: _entry(kernels[name], name, device, owned) for name in sorted(kernels, key=lambda each: _position(text, each))}


def _position(text: str, name: str) -> int:
    found = re.search(rf"\b{re.escape(name)}\s*\(", text)
    return found.start() if found else len(text)


def _entry(kernel: cl.Kernel, name: str, device: cl.Device, owned: Collection[str]) -> Entry:
    info, address = cl.kernel_arg_info, cl.kernel_arg_address_qualifier
    bindings = constants = 0
    taken: list[str] = []
    status = False
    for index in range(kernel.num_args):
        argument = kernel.get_arg_info(index, info.NAME)
        if status:
            raise UsageError(f"the artifact's kernel {name} has {argument!r} behind {STATUS}, which has to be last")
        if kernel.get_arg_info(index, info.ADDRESS_QUALIFIER) == address.GLOBAL:
            if argument == STATUS:
                status = True
            elif argument in owned:
                taken.append(argument)
            elif constants or taken:
                raise _order(name, argument)
            else:
                bindings += 1
        elif taken:
            raise _order(name, argument)
        else:
            constants += _words(kernel.get_arg_info(index, info.TYPE_NAME), name, argument)
    x, y, z = kernel.get_work_group_info(cl.kernel_work_group_info.COMPILE_WORK_GROUP_SIZE, device)
    return Entry(Export(name, bindings, constants, (x, y, z)), tuple(taken), status)


def _words(kind: str, name: str, argument: str) -> int:
    plain = kind.removeprefix("const ").strip()
    if plain in _NARROW:
        return 1
    if plain in _WIDE:
        return 2
    raise UsageError(
        f"the artifact's kernel {name} takes {argument!r} of type {kind}; "
        "bindings are __global pointers, constants uint, int, float, ulong, long or double"
    )


def _order(name: str, argument: str) -> UsageError:
    return UsageError(
        f"the artifact's kernel {name} has {argument!r} out of order: bindings come first, then constants, then globals"
    )
