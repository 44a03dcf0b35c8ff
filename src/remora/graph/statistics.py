"""Thirteen counters of a runtime (requirement G09). A snapshot, not a barrier."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Statistics"]


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a runtime has done so far; `live_bytes` alone also falls. Made by `runtime.statistics()`.

    Example: `before = runtime.statistics(); graph.submit().wait(); print(runtime.statistics().copied_bytes - before.copied_bytes)`.
    """

    graphs_prepared: int = 0
    lanes_used: int = 0
    """Lanes that ran something."""
    allocations: int = 0
    imports: int = 0
    """Allocations that two engines share."""
    submissions: int = 0
    """That were accepted."""
    completions: int = 0
    """That ended, by success, failure or cancellation."""
    copied_bytes: int = 0
    """Moved by copies, uploads and downloads of graphs that ended well; the sum of the next three."""
    uploaded_bytes: int = 0
    device_copied_bytes: int = 0
    downloaded_bytes: int = 0
    staged_bytes: int = 0
    """Moved between the engines of shared allocations, whole extents each time."""
    live_bytes: int = 0
    peak_bytes: int = 0
