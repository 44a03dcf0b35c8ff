"""Events: flags that recordings and the host set, clear and wait for (requirement H21).

An event is a timeline semaphore that counts changes: its value is odd while the event is set. A wait is for the next odd value, so
a signal lets everyone go who waits at that moment, even when a reset follows at once.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from remora.errors import DeadlineError

if TYPE_CHECKING:
    from remora.hal.device import Device
    from remora.hal.semaphore import Semaphore, Timepoint

__all__ = ["Event"]


class Event:
    """A flag, clear at first. Made by `device.event()`; command buffers record `signal_event`, `reset_event` and `wait_event`.

    Example: `event = device.event(); commands.wait_event(event); queue.execute(commands.seal()); event.signal()`.
    Any thread may call any method. When the device ends, so do all waits, with its error.
    """

    __slots__ = ("_change", "_timeline", "device")

    def __init__(self, device: Device, timeline: Semaphore) -> None:
        self.device = device
        self._timeline = timeline
        self._change = threading.Lock()

    def __repr__(self) -> str:
        return f"<Event {'set' if self._timeline.value & 1 else 'clear'}>"

    def query(self) -> bool:
        """Whether it is set. Raises the failure when the device has ended."""
        return bool(self._timeline.query() & 1)

    def signal(self) -> None:
        """Set it, and let everyone go who waits; nothing happens when it is set already."""
        self._turn(1)

    def reset(self) -> None:
        """Clear it; nothing happens when it is clear already."""
        self._turn(0)

    def wait(self, timeout: float | None = None) -> None:
        """Block until it is set. `timeout` is in seconds. Raises DeadlineError, or the failure when the device has ended."""
        point = self._set_point()
        try:
            point.wait(timeout)
        except DeadlineError:
            raise DeadlineError(f"the event was not set within {timeout} s; see that what signals it was submitted") from None

    def _set_point(self) -> Timepoint:
        """The moment when it is set: now, or at the next signal."""
        return self._timeline.at(self._timeline.query() | 1)

    def _turn(self, state: int) -> None:
        """Driver: set (1) or clear (0)."""
        with self._change:
            value = self._timeline.query()
            if value & 1 != state:
                self._timeline.signal(value + 1)
