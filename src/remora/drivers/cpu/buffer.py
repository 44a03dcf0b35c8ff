"""A buffer: a block of host memory that kernels and the program see at the same place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from remora.errors import UnsupportedError
from remora.hal.memory_buffer import MappedBuffer
from remora.hal.memory_file import MemoryPlace

if TYPE_CHECKING:
    from remora.drivers.cpu.late import LateBlock
    from remora.drivers.cpu.memory import Block

__all__ = ["AnyBlock", "CpuBuffer"]

AnyBlock: TypeAlias = "Block | LateBlock"


class CpuBuffer(MappedBuffer[AnyBlock]):
    """Memory in a memfd. Submitted operations hold the block, so it outlives `close()` until they are done."""

    __slots__ = ()

    def descriptor(self) -> tuple[int, int]:
        """(file descriptor, offset in it): another process maps the same memory from these. Borrowed; valid while it is open."""
        if self._pages is not None:
            raise UnsupportedError("a reservation is in no single file: share an ordinary buffer instead")
        return self.memory.segment.fd, self.memory.offset

    def host_memory(self) -> memoryview | None:
        """See `Buffer.host_memory`. Raises NotMadeError when it is late."""
        return self.memory.at(0, self.size)

    def memory_at_turn(self) -> Callable[[], memoryview] | None:
        """See `Buffer.memory_at_turn`."""
        block = self.memory
        return lambda: block.at(0, block.size)

    def place_at_turn(self) -> Callable[[], MemoryPlace] | None:
        """See `Buffer.place_at_turn`."""
        if self._pages is not None:
            return None
        block = self.memory
        return lambda: MemoryPlace(block.segment, block.offset)
