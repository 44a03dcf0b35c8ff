"""Memory that comes when a queue's turn has come: the block of a late buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remora.hal.memory import LateMemory

if TYPE_CHECKING:
    from remora.drivers.cpu.memory import Block, Memory
    from remora.hal.memory_segment import Segment

__all__ = ["LateBlock"]


class LateBlock(LateMemory):
    """Stands for a block from the submission of its allocation on; it has an address from the turn of that operation on.

    Looking before raises NotMadeError, and after a failed allocation its cause.
    """

    __slots__ = ("_block", "_memory")

    def __init__(self, memory: Memory, size: int) -> None:
        super().__init__(size)
        self._memory = memory
        self._block: Block | None = None

    def _allocate(self) -> None:
        self._block = self._memory.allocate(self.size)
        self._counted = True

    def _count_out(self) -> None:
        self.made.retire()

    @property
    def made(self) -> Block:
        """The block itself."""
        block = self._block
        if block is None:
            raise self._missing()
        return block

    @property
    def address(self) -> int:
        """See `Block`."""
        return self.made.address

    @property
    def view(self) -> memoryview:
        """See `Block`."""
        return self.made.view

    def at(self, offset: int, size: int) -> memoryview:
        """See `Block`."""
        return self.made.at(offset, size)

    @property
    def segment(self) -> Segment:
        """See `Block`."""
        return self.made.segment

    @property
    def offset(self) -> int:
        """See `Block`."""
        return self.made.offset
