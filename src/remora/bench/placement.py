"""Which cores the two ends of a measurement have.

Two processes that take turns can share a core or have one each, and the kernel's choice decides the result: a wake-up on another
core costs more than all of the Python of a small command. So both placements are measured, and each is set by hand.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

__all__ = ["PLACEMENTS", "apart", "placed", "together"]


@contextmanager
def placed(here: set[int], there: set[int], *pids: int) -> Iterator[None]:
    """All threads of this process on the cores `here`, those of the others on `there`; as it was before at the end."""
    mine, all_cores = os.getpid(), os.sched_getaffinity(0)
    try:
        _place(mine, here)
        for pid in pids:
            _place(pid, there)
        yield
    finally:
        for pid in (mine, *pids):
            _place(pid, all_cores)


def apart(*pids: int) -> AbstractContextManager[None]:
    """A core for this process, another one for the others. Where there is one core, they share it."""
    cores = sorted(os.sched_getaffinity(0))
    return placed({cores[0]}, {cores[-1]}, *pids)


def together(*pids: int) -> AbstractContextManager[None]:
    """One core for all."""
    core = {min(os.sched_getaffinity(0))}
    return placed(core, core, *pids)


PLACEMENTS = {"a core each": apart, "one core": together}


def _place(pid: int, cores: set[int]) -> None:
    """A thread or a process that ends meanwhile needs no place."""
    with suppress(ProcessLookupError, FileNotFoundError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores)
