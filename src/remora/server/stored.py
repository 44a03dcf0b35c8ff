"""What a stored recording counts in its session's quotas (H07, H18).

It counts from its upload until it is released and no execution of it is in flight: so long it takes memory here.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from remora.server.quotas import Quotas

if TYPE_CHECKING:
    from remora.hal.semaphore import Timepoint

__all__ = ["Stored"]


class Stored:
    """One recording of `size` bytes. Made by its upload, which holds it; any thread may call."""

    def __init__(self, quotas: Quotas, size: int) -> None:
        """Count it. Raises BusyError that names the quota; then nothing is counted."""
        quotas.recordings.take()
        try:
            quotas.recording_bytes.take(size)
        except BaseException:
            quotas.recordings.give_back()
            raise
        self._quotas = quotas
        self._size = size
        self._lock = threading.Lock()
        self._holds = 1

    def executed(self, point: Timepoint) -> None:
        """It counts until `point` is settled, whatever is released before. The caller knows that it still counts."""
        if point.semaphore._value < point.value:
            with self._lock:
                self._holds += 1
            point.on_done(self.let_go)

    def let_go(self) -> None:
        """One hold less; the last gives back what it counted."""
        with self._lock:
            self._holds -= 1
            last = self._holds == 0
        if last:
            self._quotas.recordings.give_back()
            self._quotas.recording_bytes.give_back(self._size)
