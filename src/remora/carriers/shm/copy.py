"""Copies that the kernel makes between a process's memory and a memfd, so that other threads run meanwhile."""

from __future__ import annotations

import errno
import os
from typing import Final

__all__ = ["LARGE", "read_at", "write_at"]

#: From this size on the kernel copies.
LARGE: Final = 64 << 10


def write_at(fd: int, view: memoryview, offset: int) -> None:
    """All of `view` to `offset`."""
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done:], offset + done)


def read_at(fd: int, view: memoryview, offset: int) -> None:
    """Fill `view` from `offset`."""
    done = 0
    while done < len(view):
        count = os.preadv(fd, [view[done:]], offset + done)
        if not count:
            raise OSError(errno.EBADMSG, "the peer cut the shared memory")
        done += count
