"""What is measured of everybody in the comparison: names, units, and which way is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["METRICS", "MIB", "Figures", "Metric"]

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Metric:
    """One column. `key` names it in JSON; `heading` is its head in the table, `unit` stands beneath it."""

    key: str
    title: str
    heading: str
    unit: str
    less_is_better: bool = True
    size_bytes: int = 0
    """Bytes of a transfer, 0 for everything else."""


def _transfers() -> tuple[Metric, ...]:
    return tuple(
        Metric(
            f"{what}_{size}_mib", f"{what} of {size} MiB", f"{short} {size}", "GB/s", less_is_better=False, size_bytes=size * MIB
        )
        for what, short in (("upload", "up"), ("download", "down"))
        for size in (1, 64, 512)
    )


METRICS: tuple[Metric, ...] = (
    Metric("rtt_p50", "smallest operation and its answer, median", "p50", "us"),
    Metric("rtt_p99", "smallest operation and its answer, 99th percentile", "p99", "us"),
    Metric("pipelined", "small operations submitted without waiting", "piped", "k/s", less_is_better=False),
    *_transfers(),
    Metric("end_to_end", "whole job: upload 2 x 64 MiB, add, download", "whole", "ms"),
    Metric("ready", "a server and its first answer", "ready", "s"),
    Metric("import", "import of the library", "import", "ms"),
    Metric("memory", "resident after the import", "memory", "MiB"),
    Metric("noticed", "kill -9 of the server, until the client knows", "noticed", "ms"),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """One row: what was found of one subject. A metric is in `values`, or `missing` says why it is not."""

    name: str
    title: str
    kind: str
    """floor, remora, peer, or elsewhere for figures that were not measured in this run."""
    values: dict[str, float]
    missing: dict[str, str]
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain values; units are those of METRICS."""
        return {
            "name": self.name,
            "title": self.title,
            "kind": self.kind,
            "values": self.values,
            "missing": self.missing,
            "note": self.note,
        }
