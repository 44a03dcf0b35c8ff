"""A device whose queues are `HostQueue`s: how it is profiled, and how it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from remora.hal.device import Device
from remora.hal.host_profile import HostProfile
from remora.hal.host_queue import HostQueue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remora.hal.profile import Profile, Sink

__all__ = ["HostDevice"]

Q = TypeVar("Q", bound=HostQueue)


class HostDevice(Device, Generic[Q]):
    """A driver sets `_queues`, and goes on where `close()` ends if there is more to give back.

    One whose memory the host cannot address sets `staging` too: a server moves large transfers through it.
    """

    _queues: tuple[Q, ...]

    @property
    def queues(self) -> Sequence[Q]:
        """They run beside each other and share the device."""
        return self._queues

    def close(self) -> None:
        """End the queues, then everything they used. A kernel that runs is waited for. Safe to repeat."""
        self._end_profile()
        self._closed = True
        self._end_queues()

    def _end_queues(self) -> None:
        """The device is closed: nothing begins any more, and what runs ends."""
        for queue in self._queues:
            queue._close()
        if self.staging is not None:
            self.staging.close()
        self._fail_semaphores(self._closed_error())

    def _new_profile(self, sink: Sink) -> Profile:
        return HostProfile(self, sink)
