"""What a session may have, and what it has: memory, transfers, executables (H07).

Taking more than is left raises an error that names the quota, what was asked, what is used and what is allowed; nothing was taken
then. Memory is counted by buffer, from ALLOCATE to RELEASE: what a released buffer still holds for operations in flight is not.
Any thread may call.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

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
        self._lock = threading.Lock()

    def take(self, amount: int = 1) -> None:
        """Count `amount` more. Raises the quota's error when that is more than is left."""
        with self._lock:
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


class Quotas:
    """The quotas of one session, and which of its objects is charged to which."""

    def __init__(self, limits: SessionLimits) -> None:
        self.memory = Quota("the session's quota of memory", "--session-memory", limits.memory, size_text, OutOfMemoryError)
        self.transfers = Quota("the session's quota of transfers", "--session-transfers", limits.transfers, str, BusyError)
        self.executables = Quota("the session's quota of executables", "--session-executables", limits.executables, str, BusyError)
        self._bills: dict[int, tuple[Quota, int]] = {}  # by the object's identity: whoever charges it keeps it until it is settled

    def charge(self, thing: Any, quota: Quota, amount: int = 1) -> None:
        """What was taken belongs to this object from now on."""
        self._bills[id(thing)] = (quota, amount)

    def settle(self, thing: Any) -> None:
        """The object is gone: give back what it was charged, if anything."""
        bill = self._bills.pop(id(thing), None)
        if bill is not None:
            quota, amount = bill
            quota.give_back(amount)


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
