"""Frozen values that long-lived objects return from `statistics()`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DeviceStatistics", "LinkStatistics"]


@dataclass(frozen=True, slots=True)
class DeviceStatistics:
    """What a device has done and holds.

    Example: `print(device.statistics().bytes_allocated)`.
    """

    buffers: int
    """Live buffers."""
    bytes_allocated: int
    """Bytes in live buffers."""
    bytes_peak: int
    """The most bytes that were live at once."""
    dispatches: int
    """Kernels dispatched so far."""


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """What went over one session's lanes.

    Example: `before = device.link_statistics().round_trips`, on a remote device.
    """

    round_trips: int
    """Times that a caller sent something and then had to wait for the peer (requirement H16)."""
    bytes_sent: int
    bytes_received: int
    commands: int
    """Queue commands submitted."""
    sends: int
    """System calls that sent control or queue bytes."""
