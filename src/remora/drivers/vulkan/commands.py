"""What can be written into a command buffer: kernel launches, and moves of bytes between device memory.

Memory is looked at when a command is recorded, which is at its operation's turn: a late buffer has its memory then.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref
from typing import TYPE_CHECKING, NamedTuple, Protocol

from remora.drivers.vulkan import _ffi as ffi

if TYPE_CHECKING:
    from remora.drivers.vulkan.memory import Memory, Segment
    from remora.drivers.vulkan.pipeline import Program
    from remora.hal.executable import Grid

__all__ = ["Command", "Copy", "Fill", "Launch", "Region", "Update"]

#: The most that vkCmdUpdateBuffer takes.
MOST_UPDATE = 64 << 10


class Command(Protocol):
    """One command, ready to be recorded."""

    def record(self, vk: ffi.DeviceCommands, commands: int) -> None:
        """Write it into a command buffer. Raises NotMadeError, and why a late buffer has no memory."""


class Launch(NamedTuple):
    """A dispatch. `places` are the bindings: memory and offset."""

    program: Program
    grid: Grid
    places: Sequence[tuple[Memory, int]]
    constants: bytes

    def record(self, vk: ffi.DeviceCommands, commands: int) -> None:
        """See `Command`."""
        addresses = [memory.block.address + offset for memory, offset in self.places]
        self.program.record(commands, self.grid, addresses, self.constants)


class Fill(NamedTuple):
    """A word of four bytes over whole words."""

    memory: Memory
    offset: int
    size: int
    word: bytes

    def record(self, vk: ffi.DeviceCommands, commands: int) -> None:
        """See `Command`."""
        block = self.memory.block
        if self.size:
            word = int.from_bytes(self.word, "little")
            vk.vkCmdFillBuffer(commands, block.segment.buffer, block.offset + self.offset, self.size, word)


class Update(NamedTuple):
    """Bytes that the command buffer carries, whole words."""

    memory: Memory
    offset: int
    data: bytes

    def record(self, vk: ffi.DeviceCommands, commands: int) -> None:
        """See `Command`."""
        block = self.memory.block
        for start in range(0, len(self.data), MOST_UPDATE):
            piece = self.data[start : start + MOST_UPDATE]
            vk.vkCmdUpdateBuffer(commands, block.segment.buffer, block.offset + self.offset + start, len(piece), piece)


class Region(NamedTuple):
    """A copy between segments."""

    source: Segment
    source_offset: int
    target: Segment
    target_offset: int
    size: int

    def record(self, vk: ffi.DeviceCommands, commands: int) -> None:
        """See `Command`."""
        if self.size:
            region = ffi.VkBufferCopy(srcOffset=self.source_offset, dstOffset=self.target_offset, size=self.size)
            vk.vkCmdCopyBuffer(commands, self.source.buffer, self.target.buffer, 1, byref(region))


class Copy(NamedTuple):
    """A copy between two ranges that do not overlap."""

    source: Memory
    source_offset: int
    target: Memory
    target_offset: int
    size: int

    def record(self, vk: ffi.DeviceCommands, commands: int) -> None:
        """See `Command`."""
        origin, there = self.source.block, self.target.block
        start, end = origin.offset + self.source_offset, there.offset + self.target_offset
        Region(origin.segment, start, there.segment, end, self.size).record(vk, commands)
