"""How long a reader looks for bytes before it sleeps: a little while, where that has paid lately.

A look that finds its bytes saves two system calls and a wake-up. One that does not has held a core, and this process's interpreter
lock, for nothing, and on a full machine it was the core that the peer needed. So, with nothing set by hand:

    a sleep was short    (`QUICK_NS`, wake-up included) the next wait looks first, for twice as long as that one took
    a sleep was long     nothing changes: a quiet connection looks once and then costs nothing
    a look found         looks go on
    a look did not       short waits do not look: the next 1, then 2, 4, ... up to `MOST_REST`; `FINDS` in a row halve that

A find saves 5 to 10 microseconds and a miss costs up to 50, so looks pay where nine of ten find. Bytes that are there because this
thread was off its core for the whole look are no find.
"""

from __future__ import annotations

import os

__all__ = ["AdaptiveSpin", "FixedSpin", "spin_for"]

#: The longest look, and the longest sleep after which the next wait looks, in nanoseconds.
LOOK_NS = 50_000
QUICK_NS = 150_000
#: Most waits in a row that sleep at once because looks came to nothing.
MOST_REST = 1024
#: Finds in a row after which the next rest is half as long.
FINDS = 16
#: The same after a look whose length was set by hand.
FIXED_REST = 64


class FixedSpin:
    """Looks for a time set by hand, and rests for a fixed number of waits after a look that did not find.

    `looks`: whether the next wait looks. `look_ns`: for how long.
    """

    __slots__ = ("_rest", "look_ns", "looks")

    def __init__(self, look_ns: int) -> None:
        self.look_ns = look_ns
        self.looks = True
        self._rest = 0

    def found(self, waited_ns: int) -> None:
        """A look found bytes, this long after the wait began."""

    def slept(self, waited_ns: int) -> None:
        """A wait ended in a sleep of `waited_ns` in all, whether it looked first or not."""
        if self.looks:
            self._rest = FIXED_REST
        self._rest -= 1
        self.looks = self._rest <= 0


class AdaptiveSpin(FixedSpin):
    """Looks while sleeps are short and looks find."""

    __slots__ = ("_finds", "_next_rest")

    def __init__(self) -> None:
        super().__init__(LOOK_NS)
        self.looks = False
        self._next_rest = 1
        self._finds = 0

    def found(self, waited_ns: int) -> None:
        if waited_ns > 2 * LOOK_NS:
            self.slept(waited_ns)
            return
        self._finds += 1
        if self._finds == FINDS:
            self._finds = 0
            self._next_rest = max(self._next_rest >> 1, 1)

    def slept(self, waited_ns: int) -> None:
        if self.looks:
            self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, MOST_REST)
            self.looks, self._finds = False, 0
        elif waited_ns < QUICK_NS:
            self._rest -= 1
            self.looks = self._rest < 0
            self.look_ns = min(2 * waited_ns, LOOK_NS)


def spin_for(spin_us: int | None) -> FixedSpin | None:
    """The policy for an address's `spin_us`: None adapts, 0 never looks. Where this process has one core, nobody looks."""
    if spin_us == 0 or len(os.sched_getaffinity(0)) < 2:
        return None
    return AdaptiveSpin() if spin_us is None else FixedSpin(spin_us * 1000)
