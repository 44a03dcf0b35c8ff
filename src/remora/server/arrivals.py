"""Bytes that a request or a command announces and that the session has to hold before it can act on them: bounded (H07)."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from typing import TypeAlias

from remora.errors import BusyError, Error
from remora.link.link import Link

__all__ = ["MAX_ARRIVING", "Arrivals", "Arrived"]

#: Bytes of executables, recordings and payloads that a session may have on their way at once.
MAX_ARRIVING = 1 << 30

#: Called once, with the bytes or why they never will be here. From a bulk thread, or at once when they came along.
Arrived: TypeAlias = Callable[[memoryview, Error | None], None]
_NOTHING = memoryview(b"")


class Arrivals:
    """Collects what comes over bulk. Any thread may call."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._bytes = 0

    def receive(self, size: int, here: bytes, transfer_id: int, arrived: Arrived) -> None:
        """Wait for `size` bytes: `here`, or with a transfer id what this transfer brings."""
        with self._lock:
            crowded = self._bytes + size > MAX_ARRIVING
            self._bytes += 0 if crowded else size
        if crowded:
            error = BusyError(f"{MAX_ARRIVING:,} bytes are on their way into this session; wait for some of them")
            if transfer_id:
                self._link.bulk.abort(transfer_id, error)
            arrived(_NOTHING, error)
        elif transfer_id:
            room = memoryview(mmap.mmap(-1, size))  # touched only as the bytes arrive
            self._link.bulk.expect(transfer_id, room, lambda error: self._finish(size, room, error, arrived))
        else:
            self._finish(size, memoryview(here), None, arrived)

    def _finish(self, size: int, data: memoryview, error: Error | None, arrived: Arrived) -> None:
        with self._lock:
            self._bytes -= size
        arrived(data, error)
