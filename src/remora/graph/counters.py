"""The numbers behind `Statistics`, which only the scheduler's lock holder changes."""

from __future__ import annotations

from dataclasses import dataclass

from remora.graph.statistics import Statistics

__all__ = ["Counters"]


@dataclass(slots=True)
class Counters:
    """See `Statistics` for what each one means."""

    graphs_prepared: int = 0
    allocations: int = 0
    imports: int = 0
    submissions: int = 0
    completions: int = 0
    uploaded: int = 0
    copied: int = 0
    downloaded: int = 0
    staged: int = 0
    live: int = 0
    peak: int = 0

    def copy(self, moved: tuple[int, int, int]) -> None:
        """A graph ended well that moved so many bytes up, on the device, and down."""
        self.uploaded += moved[0]
        self.copied += moved[1]
        self.downloaded += moved[2]

    def allocate(self, size: int) -> None:
        """An allocation is there."""
        self.allocations += 1
        self.live += size
        self.peak = max(self.peak, self.live)

    def snapshot(self, lanes_used: int) -> Statistics:
        """The numbers now."""
        total = self.uploaded + self.copied + self.downloaded
        return Statistics(
            self.graphs_prepared,
            lanes_used,
            self.allocations,
            self.imports,
            self.submissions,
            self.completions,
            total,
            self.uploaded,
            self.copied,
            self.downloaded,
            self.staged,
            self.live,
            self.peak,
        )
