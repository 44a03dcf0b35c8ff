"""Places of a graph that each submission fills (requirement G12)."""

from __future__ import annotations

from remora.errors import UsageError
from remora.hal.buffer import check_range

__all__ = ["GraphSlot", "SlotKey"]


class SlotKey:
    """Stands for the allocation that a submission will bind. Compared by identity."""

    __slots__ = ("index", "size")

    def __init__(self, index: int, size: int) -> None:
        self.index = index
        self.size = size


class GraphSlot:
    """`size` bytes of the first engine's memory that `submit(bindings={slot: view})` names. Made by `graph.slot(size)`.

    It is used wherever a view is. Different slots, and slots and buffers, may turn out to be the same bytes: order follows what is
    bound. A kernel that would write bytes that another of its bindings names is refused at `submit`.
    """

    __slots__ = ("key", "offset", "size")

    def __init__(self, key: SlotKey, offset: int, size: int) -> None:
        if size < 1:
            raise UsageError(f"a slot has at least one byte, not {size}")
        self.key = key
        self.offset = offset
        self.size = size

    def __repr__(self) -> str:
        return f"<GraphSlot {self.key.index}: {self.size} bytes at {self.offset}>"

    def view(self, offset: int = 0, size: int | None = None) -> GraphSlot:
        """A part of it; bounds are checked against it. Raises UsageError (OUT_OF_RANGE)."""
        offset, size = check_range(offset, size, self.size)
        return GraphSlot(self.key, self.offset + offset, size)
