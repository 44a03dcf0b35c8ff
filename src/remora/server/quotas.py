"""What a session may have, and what it has: memory, transfers, executables, recordings (H07).

Taking more than is left raises an error that names the quota, what was asked, what is used and what is allowed; nothing was taken
then. Memory is counted as long as it is really held: a released buffer still counts while operations in flight use it.
Any thread may call.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

from remora.errors import BusyError, Error, OutOfMemoryError, UsageError
from remora.server.options import SessionLimits

__all__ = ["Quota", "Quotas", "parse_size", "size_text"]

UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


class Quota:
    """One thing that is counted. `refusal` makes the error from its message."""

    def __init__(self, what: str, flag: str, limit: int | None, text: Callable[[int], str], refusal: type[Error]) -> None:
        self.limit = limit
        self.used = 0
        self._what = what
        self._flag = flag
        self._text = text
        self._refusal = refusal
        self._lock = threading.RLock()  # the garbage collector may give back while this thread takes
        self._dropped: deque[int] = deque()

    def take(self, amount: int = 1) -> None:
        """Count `amount` more. Raises the quota's error when that is more than is left."""
        with self._lock:
            while self._dropped:
                self.used -= self._dropped.popleft()
            if self.limit is None or self.used + amount <= self.limit:
                self.used += amount
                return
            used, limit = self.used, self.limit
        text = self._text
        raise self._refusal(
            f"{self._what}: asked for {text(amount)}, {text(used)} of {text(limit)} are in use; "
            f"release some, or serve with more {self._flag}"
        )

    def give_back(self, amount: int = 1) -> None:
        """Count `amount` less."""
        with self._lock:
            self.used -= amount

    def drop(self, amount: int) -> None:
        """Count `amount` less, by the next `take`. Takes no lock: a destructor may call it anywhere."""
        self._dropped.append(amount)


class Charge:
    """Memory that counts until it is settled, or its holder is no more."""

    def __init__(self, quota: Quota, holder: object, size: int, settled: Callable[[Charge], None]) -> None:
        self._quota = quota
        self._sizes = [size]
        self._settled = settled
        self.key = id(holder)
        self.holder = ref(holder, lambda _: self.settle())

    def settle(self) -> None:
        """Count it no more. Safe to repeat, from any thread and from a destructor."""
        try:
            size = self._sizes.pop()
        except IndexError:
            return
        self._quota.drop(size)
        self._settled(self)


class Quotas:
    """The quotas of one session, and which of its objects is charged to which."""

    def __init__(self, limits: SessionLimits) -> None:
        self.memory = Quota("the session's quota of memory", "--session-memory", limits.memory, size_text, OutOfMemoryError)
        self.transfers = Quota("the session's quota of transfers", "--session-transfers", limits.transfers, str, BusyError)
        self.executables = Quota("the session's quota of executables", "--session-executables", limits.executables, str, BusyError)
        recordings = "the session's quota of recordings", "--session-recordings", limits.recordings
        self.recordings = Quota(*recordings, str, BusyError)
        recording_bytes = "the session's quota of bytes of recordings", "--session-recording-bytes", limits.recording_bytes
        self.recording_bytes = Quota(*recording_bytes, size_text, BusyError)
        self._charges: set[Charge] = set()
        self._charge_of: dict[int, Charge] = {}  # the last one by the identity of its holder
        self._bills: dict[
            int, Callable[[], None]
        ] = {}  # what settles it, by the object's identity: whoever charges it keeps it until it is settled

    def charge_memory(self, holder: object, size: int) -> Charge:
        """Memory that was taken counts until `holder` is no more (`Buffer.holder`), or the charge is settled."""
        charge = Charge(self.memory, holder, size, self._forget)
        self._charges.add(charge)
        self._charge_of[charge.key] = charge
        return charge

    def charge_of(self, holder: object) -> Charge | None:
        """What is charged for the memory of a holder, if anything."""
        charge = self._charge_of.get(id(holder))
        return charge if charge is not None and charge.holder() is holder else None

    def _forget(self, charge: Charge) -> None:
        self._charges.discard(charge)
        if self._charge_of.get(charge.key) is charge:
            self._charge_of.pop(charge.key, None)

    def charge(self, thing: Any, quota: Quota, amount: int = 1) -> None:
        """What was taken belongs to this object from now on."""
        self.bill(thing, partial(quota.give_back, amount))

    def bill(self, thing: Any, settled: Callable[[], None]) -> None:
        """Call `settled` when the object is gone."""
        self._bills[id(thing)] = settled

    def settle(self, thing: Any) -> None:
        """The object is gone: give back what it was charged, if anything."""
        settled = self._bills.pop(id(thing), None)
        if settled is not None:
            settled()


def parse_size(text: str) -> int:
    """Bytes of a size such as `2GiB`, `512 MiB`, `1.5GiB` or `4096`. Raises UsageError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]iB|B|)", text.strip())
    if match is None:
        raise UsageError(f"{text!r} is no size: give bytes, or a number with KiB, MiB, GiB or TiB, such as 2GiB")
    return int(float(match[1]) * UNITS[match[2]]) if "." in match[1] else int(match[1]) * UNITS[match[2]]


def size_text(size: int) -> str:
    """A size for people: exact bytes below 1 KiB and where the unit does not divide it to two digits, else in the largest unit."""
    unit = max((name for name in UNITS if UNITS[name] <= size), key=UNITS.__getitem__, default="B")
    if UNITS[unit] == 1:
        return f"{size} B"
    number = size / UNITS[unit]
    return f"{number:g} {unit}" if number == round(number, 2) else f"{size:,} B"
