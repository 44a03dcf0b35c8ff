"""What a run produces: rows of value, floor, ratio and target, and the machine they were taken on."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from remora.base.compiled import is_compiled
from remora.bench.peers.metrics import METRICS, Figures

__all__ = ["Curve", "Machine", "Report", "Row", "Target", "machine"]

#: Of `as_json`.
FORMAT = 2
#: Running tasks a core, above which numbers are not to be trusted.
QUIET_LOAD = 0.5


@dataclass(frozen=True, slots=True)
class Target:
    """A promise: the ratio to the floor, or the value, is at most (or at least) `limit`."""

    limit: float
    of: str = "value"
    """"value" or "ratio"."""
    at_most: bool = True

    def met(self, value: float, ratio: float | None) -> bool:
        """Whether a row keeps it."""
        got = value if self.of == "value" else ratio
        return got is not None and (got <= self.limit if self.at_most else got >= self.limit)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `unit` holds for value and floor; `ratio` is value to floor."""

    name: str
    unit: str
    value: float
    floor: float | None = None
    ratio: float | None = None
    target: Target | None = None
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool | None:
        """Whether the target is met; None without one."""
        return None if self.target is None else self.target.met(self.value, self.ratio)


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the numbers come from. `load` is the one-minute load average before and after the run."""

    processor: str
    cores: int
    kernel: str
    python: str
    load: tuple[float, float]
    compiled: bool = False
    """Whether remora's hot modules are extension modules here."""

    @property
    def quiet(self) -> bool:
        """Whether nobody else was at work when the run began, as far as the load average tells."""
        return self.load[0] <= QUIET_LOAD * self.cores


@dataclass(frozen=True, slots=True)
class Curve:
    """One line: the median cost at each count."""

    panel: str
    """Which of the pictures it belongs to: buffers, sessions, commands or bytes."""
    line: str
    """What distinguishes it there, such as the carrier."""
    points: tuple[tuple[float, float], ...]
    """(count, microseconds), ascending."""

    @property
    def growth(self) -> float:
        """The last cost to the first."""
        return self.points[-1][1] / self.points[0][1]

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"panel": self.panel, "line": self.line, "points": [list(point) for point in self.points], "growth": self.growth}


@dataclass(frozen=True, slots=True)
class Report:
    """Everything one run found."""

    machine: Machine
    quick: bool
    seconds: float
    rows: tuple[Row, ...]
    """remora beside its floors."""
    comparison: tuple[Figures, ...] = ()
    """Floors, remora and peers on the same work."""
    growth: tuple[Curve, ...] = ()
    """How cost grows."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader has to know before believing the numbers."""
        notes = []
        if not self.machine.quiet:
            notes.append(
                f"The machine was busy (load {self.machine.load[0]:.1f} on {self.machine.cores} cores): "
                "do not trust single numbers. Ratios and CPU time suffer less."
            )
        if self.quick:
            notes.append("A quick run takes few samples: it shows that everything works, not how fast it is.")
        return tuple(notes)

    def as_json(self) -> dict[str, Any]:
        """All numbers as plain values. A later `format` may mean other things by the same names."""
        rows = [asdict(row) | {"ok": row.ok} for row in self.rows]
        return {
            "format": FORMAT,
            "machine": asdict(self.machine) | {"quiet": self.machine.quiet},
            "quick": self.quick,
            "seconds": self.seconds,
            "rows": rows,
            "metrics": [asdict(metric) for metric in METRICS],
            "comparison": [figures.as_json() for figures in self.comparison],
            "growth": [curve.as_json() for curve in self.growth],
            "notes": list(self.notes),
        }


def machine(load_before: float) -> Machine:
    """This machine, at the end of a run that began at this load average."""
    return Machine(
        _processor(),
        len(os.sched_getaffinity(0)),
        f"{platform.system()} {platform.release()}",
        f"{platform.python_implementation()} {platform.python_version()}",
        (load_before, os.getloadavg()[0]),
        is_compiled(),
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model", "cpu model"):
            return value.strip()
    return platform.machine()
