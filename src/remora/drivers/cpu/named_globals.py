"""Named globals: the memory that a loaded library exports, as buffers (H19)."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from remora.drivers.cpu.buffer import CpuBuffer
from remora.drivers.cpu.memory import ALIGNMENT, Block
from remora.drivers.cpu.symbols import Memory, exported_memory
from remora.errors import NotFoundError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remora.drivers.cpu.executable import Code
    from remora.hal.specialization import GlobalRule

__all__ = ["CpuGlobal", "GlobalBlock", "find_globals"]


class GlobalBlock(Block):
    """Memory of a library, which stays loaded as long as the block or a view of it is there."""

    __slots__ = ()

    def __init__(self, code: Code, address: int, size: int) -> None:
        array = (ctypes.c_char * size).from_address(address)
        array.code = code  # type: ignore[attr-defined]  # a view holds the array, and so the library
        self.address = address
        self.offset = 0
        self.reserved = self.size = size
        self.view = memoryview(array).cast("B")

    def retire(self) -> None:
        """The buffer was closed; nothing of the device's memory comes back."""

    def __del__(self) -> None:
        """Nothing of the device's memory comes back."""


class CpuGlobal(CpuBuffer):
    """A global as a buffer."""

    __slots__ = ()

    def descriptor(self) -> tuple[int, int]:
        """Raises UnsupportedError: a library's memory lies in no file that another process could map."""
        raise UnsupportedError("a global of an executable cannot be shared with another process: copy it into a buffer")

    def place_at_turn(self) -> None:
        """See `Buffer.place_at_turn`: it is in no file."""
        return


def find_globals(code: Code, artifact: memoryview, rules: Sequence[GlobalRule]) -> dict[str, int]:
    """The address of each declared global.

    Raises NotFoundError for one that the artifact does not export, UsageError for one that is not what its rule says.
    """
    if not rules:
        return {}
    exported = exported_memory(artifact)
    return {rule.name: _find(code, rule, exported.get(rule.export or rule.name), list(exported)) for rule in rules}


def _find(code: Code, rule: GlobalRule, memory: Memory | None, there: list[str]) -> int:
    export = rule.export or rule.name
    if memory is None:
        raise NotFoundError(f"the artifact exports no memory {export!r}; it exports: {', '.join(there) or 'none'}")
    if memory.size != rule.size:
        raise UsageError(
            f"the global {rule.name} has {memory.size} bytes in the artifact, its manifest says {rule.size}: build the bundle again"
        )
    if not memory.writable:
        raise UsageError(f"the global {rule.name} cannot be written in the artifact: declare it without const")
    address = code.address_of(export)
    if address % ALIGNMENT:
        raise UsageError(f"the global {rule.name} does not begin at a multiple of {ALIGNMENT} bytes: declare it so")
    return address
