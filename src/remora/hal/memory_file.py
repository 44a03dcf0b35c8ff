"""Memory that lies in a file, so that another process can map it (H20)."""

from __future__ import annotations

from typing import NamedTuple, Protocol

__all__ = ["MemoryFile", "MemoryPlace"]


class MemoryFile(Protocol):
    """A file of memory. Takes weak references; it is gone when nothing is in it any more. Nobody can change its size.

    Everything in it belongs to the device that made it: who maps it sees all of that device's buffers in it, and nothing else.
    """

    @property
    def fd(self) -> int:
        """Its descriptor, borrowed: valid as long as the object."""

    @property
    def size(self) -> int:
        """In bytes."""


class MemoryPlace(NamedTuple):
    """Where a buffer's memory begins."""

    file: MemoryFile
    offset: int
