"""A buffer: a block of host memory that kernels and the program see at the same place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remora.errors import ClosedError
from remora.hal.buffer import Access, Buffer, Mapping

if TYPE_CHECKING:
    from remora.drivers.cpu.device import CpuDevice
    from remora.drivers.cpu.memory import Block

__all__ = ["CpuBuffer"]


class CpuBuffer(Buffer):
    """Memory in a memfd. Submitted operations hold the block, so it outlives `close()` until they are done."""

    __slots__ = ("_block",)

    def __init__(self, device: CpuDevice, block: Block) -> None:
        super().__init__(device, block.size)
        self._block: Block | None = block

    @property
    def block(self) -> Block:
        """The memory. Raises ClosedError after `close()`."""
        block = self._block
        if block is None:
            raise ClosedError(f"{self!r} was closed; allocate a new one")
        return block

    def descriptor(self) -> tuple[int, int]:
        """(file descriptor, offset in it): another process maps the same memory from these. Borrowed; valid while it is open."""
        return self.block.segment.fd, self.block.offset

    def host_memory(self) -> memoryview | None:
        """See `Buffer.host_memory`."""
        return self.block.view[: self.size]

    def _map(self, access: Access, offset: int, size: int, timeout: float | None) -> memoryview:
        self.device.queue.wait_idle(timeout)
        return self.block.view[offset : offset + size]

    def _unmap(self, mapping: Mapping) -> None:
        """Nothing to publish: the mapping was the memory."""

    def _release(self) -> None:
        block, self._block = self._block, None
        if block is not None:
            block.retire()
