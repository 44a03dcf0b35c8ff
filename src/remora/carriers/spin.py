"""How long a reader looks for bytes before it sleeps: a little while, where that has paid lately.

A look that finds its bytes saves a wake-up of this thread and its core, which takes longer than all of the Python of a small
command. One that does not has held a core, and this process's interpreter lock, for nothing, and on a full machine it was the core
that the peer needed. So, with nothing set by hand:

    a sleep was short    (`QUICK_NS`, wake-up included) the next wait looks first, for twice as long as that one took
    a sleep was long     nothing changes: a quiet connection looks once and then costs nothing
    a look found         looks go on
    a look did not       short waits do not look: the next 1, then 2, 4, ... up to `MOST_REST`; `FINDS` in a row halve that

A find saves 5 to 30 microseconds and a miss costs up to 50, so looks pay where nine of ten find. Bytes that are there because this
thread was off its core for the whole look are no find.
"""

from __future__ import annotations

import os
import select
from time import perf_counter_ns
from typing import TYPE_CHECKING

from remora.errors import UsageError

if TYPE_CHECKING:
    from remora.base.uri import Uri

__all__ = ["AdaptiveSpin", "FixedSpin", "Lookout", "spin_for", "spin_of"]

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


class Lookout:
    """Looks whether a descriptor is readable. It takes no bytes, so an interruption of it loses none. One thread at a time."""

    __slots__ = ("_began", "_poll", "_spin")

    def __init__(self, fd: int, spin: FixedSpin) -> None:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        self._poll = poll.poll
        self._spin = spin
        self._began = 0

    def look(self) -> None:
        """Before a receive: returns when there are bytes, or when it is time to sleep."""
        self._began = began = perf_counter_ns()
        spin = self._spin
        if not spin.looks:
            return
        end = began + spin.look_ns
        while not self._poll(0):
            if perf_counter_ns() >= end:
                return
        self._began = 0
        spin.found(perf_counter_ns() - began)

    def woke(self) -> None:
        """After the receive."""
        if self._began:
            self._spin.slept(perf_counter_ns() - self._began)
            self._began = 0


def spin_of(uri: Uri) -> int | None:
    """The `spin_us` of a carrier URI, None when not given. Raises UsageError for any other key."""
    unknown = set(uri.query) - {"spin_us"}
    text = uri.query.get("spin_us", "0")
    if unknown or not text.isascii() or not text.isdigit():
        raise UsageError(f"{uri}: the only key of this address is spin_us=<microseconds>")
    return int(text) if uri.query else None


def spin_for(spin_us: int | None) -> FixedSpin | None:
    """The policy for an address's `spin_us`: None adapts, 0 never looks. Where this process has one core, nobody looks."""
    if spin_us == 0 or len(os.sched_getaffinity(0)) < 2:
        return None
    return AdaptiveSpin() if spin_us is None else FixedSpin(spin_us * 1000)
