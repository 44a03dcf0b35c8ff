"""How bulk threads behave beside small commands: in small steps, and with a yield after each (H02).

Two bulk threads and a command's two can want more cores than there are. Each of them then has its fair share, so the scheduler sees
no reason to let a command go first: it waits for the end of a slice, some milliseconds. A yield at the end of each piece gives the
core to whoever waits for it. That costs bandwidth only where somebody waits, so it is done only while commands come and go: a
transfer that is alone, on a machine that is busy with other things, keeps its share.
"""

from __future__ import annotations

import os
from collections.abc import Callable

__all__ = ["PIECE", "Courtesy"]

#: Bytes of one system call beside small commands: 0.1 to 0.3 ms.
PIECE = 256 << 10
#: Pieces after the last sign of a command during which more are expected.
REMEMBERED = 32


class Courtesy:
    """One thread's manners. `activity()` is a count that every small command moves."""

    __slots__ = ("_activity", "_left", "_seen")

    def __init__(self, activity: Callable[[], int]) -> None:
        self._activity = activity
        self._seen = activity()
        self._left = 0

    def begin(self) -> None:
        """A transfer of its own begins: the commands that brought it about are no sign of others."""
        self._seen = self._activity()

    def step(self, size: int) -> int:
        """How many of `size` bytes to move in the next system call."""
        return min(size, PIECE) if self._left else size

    def give_way(self) -> None:
        """After each piece or chunk: let others run first while there are small commands."""
        seen = self._activity()
        if seen != self._seen:
            self._seen, self._left = seen, REMEMBERED
        if self._left:
            self._left -= 1
            os.sched_yield()
