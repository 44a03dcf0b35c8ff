"""How bytes come and go: at once where the program sees the device's memory, else through memory that both see."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from remora.drivers.vulkan.commands import Copy, Fill, Region
from remora.drivers.vulkan.line import Line
from remora.drivers.vulkan.memory import Memory, Segment
from remora.hal.host_queue import INLINE_NS

if TYPE_CHECKING:
    from remora.drivers.vulkan.logical import Logical
    from remora.drivers.vulkan.physical import MemoryKind

__all__ = ["Mapped", "Mover", "Staged"]

#: Bytes that are copied with the interpreter's lock held before others get a turn.
PIECE = 1 << 20
#: Half of the memory through which bytes go: the device moves one half while the host fills or empties the other.
HALF = 2 << 20


class Mover(ABC):
    """Moves bytes for one queue, one operation at a time."""

    @abstractmethod
    def cost_ns(self, size: int) -> float:
        """How long moving so many bytes is expected to take, in nanoseconds."""

    @abstractmethod
    def fill(self, memory: Memory, offset: int, size: int, pattern: bytes) -> None:
        """Repeat a pattern over a range, which holds it a whole number of times."""

    @abstractmethod
    def write(self, memory: Memory, offset: int, data: memoryview) -> None:
        """Copy host bytes into a range."""

    @abstractmethod
    def read(self, memory: Memory, offset: int, into: memoryview) -> None:
        """Copy a range into host memory."""

    @abstractmethod
    def copy(self, source: Memory, source_offset: int, target: Memory, target_offset: int, size: int) -> None:
        """Copy between two ranges that do not overlap."""


class Mapped(Mover):
    """The program sees the memory."""

    def cost_ns(self, size: int) -> float:
        """See `Mover`."""
        return 0.2 * size

    def fill(self, memory: Memory, offset: int, size: int, pattern: bytes) -> None:
        """See `Mover`."""
        block = memory.block
        if pattern.count(pattern[0]) == len(pattern):
            ctypes.memset(block.segment.host + block.offset + offset, pattern[0], size)
            return
        for start in range(0, size, PIECE):
            piece = block.view[offset + start : offset + min(start + PIECE, size)]
            piece[:] = pattern * (piece.nbytes // len(pattern))

    def write(self, memory: Memory, offset: int, data: memoryview) -> None:
        """See `Mover`."""
        view = memory.block.view
        for start in range(0, data.nbytes, PIECE):
            piece = data[start : start + PIECE]
            view[offset + start : offset + start + piece.nbytes] = piece

    def read(self, memory: Memory, offset: int, into: memoryview) -> None:
        """See `Mover`."""
        view = memory.block.view
        for start in range(0, into.nbytes, PIECE):
            piece = into[start : start + PIECE]
            piece[:] = view[offset + start : offset + start + piece.nbytes]

    def copy(self, source: Memory, source_offset: int, target: Memory, target_offset: int, size: int) -> None:
        """See `Mover`."""
        origin, there = source.block, target.block
        ctypes.memmove(there.segment.host + there.offset + target_offset, origin.segment.host + origin.offset + source_offset, size)


class Staged(Mover):
    """The program does not see the memory: a piece at a time goes through a segment that it does see."""

    def __init__(self, logical: Logical, line: Line, kind: MemoryKind) -> None:
        self._logical = logical
        self._line = line
        self._kind = kind
        self._segment: Segment | None = None

    def cost_ns(self, size: int) -> float:
        """Each move is a submission, which is waited for: never on the thread that submits."""
        return INLINE_NS

    def fill(self, memory: Memory, offset: int, size: int, pattern: bytes) -> None:
        """The device fills whole words; the rest at both ends is written."""
        head = min(-offset % 4, size)
        middle = (size - head) // 4 * 4
        word = pattern * (4 // len(pattern))
        if middle:
            self._line.run(Fill(memory, offset + head, middle, word))
        for start, count in ((0, head), (head + middle, size - head - middle)):
            if count:
                self.write(memory, offset + start, memoryview(word[:count]))

    def write(self, memory: Memory, offset: int, data: memoryview) -> None:
        """See `Mover`."""
        block, stage = memory.block, self._stage()
        values = [0, 0]
        for number, start in enumerate(range(0, data.nbytes, HALF)):
            half, piece = number % 2, data[start : start + HALF]
            self._line.wait(values[half])
            stage.view(half * HALF, piece.nbytes)[:] = piece
            region = Region(stage, half * HALF, block.segment, block.offset + offset + start, piece.nbytes)
            values[half] = self._start(half, region)
        self._line.wait(max(values))

    def read(self, memory: Memory, offset: int, into: memoryview) -> None:
        """See `Mover`."""
        block, stage = memory.block, self._stage()
        coming: tuple[int, int, memoryview] | None = None
        for number, start in enumerate(range(0, into.nbytes, HALF)):
            half, piece = number % 2, into[start : start + HALF]
            region = Region(block.segment, block.offset + offset + start, stage, half * HALF, piece.nbytes)
            value = self._start(half, region)
            self._take(coming)
            coming = value, half, piece
        self._take(coming)

    def _start(self, half: int, region: Region) -> int:
        self._line.record(half, (region,))
        return self._line.submit(1, half)

    def _take(self, coming: tuple[int, int, memoryview] | None) -> None:
        if coming is not None:
            value, half, piece = coming
            self._line.wait(value)
            piece[:] = self._stage().view(half * HALF, piece.nbytes)

    def copy(self, source: Memory, source_offset: int, target: Memory, target_offset: int, size: int) -> None:
        """See `Mover`."""
        self._line.run(Copy(source, source_offset, target, target_offset, size))

    def close(self) -> None:
        """Give the memory back that bytes go through."""
        self._segment = None

    def _stage(self) -> Segment:
        if self._segment is None:
            self._segment = Segment(self._logical, 2 * HALF, self._kind)
        return self._segment
