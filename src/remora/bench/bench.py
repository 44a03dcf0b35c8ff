"""One run: the processes, the cases in order, the report."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from time import monotonic
from typing import TypeAlias

from remora.bench import cases, sessions, transfers
from remora.bench.context import Bench
from remora.bench.processes import Peer
from remora.bench.report import Report, Row, machine

__all__ = ["BenchOptions", "Progress", "run"]

#: Called with the case at work and the share of the run that is done, 0 to 1.
Progress: TypeAlias = Callable[[str, float], None]


def _silent(_case: str, _share: float) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """How to measure. `quick` takes a tenth of the samples, in less than 20 seconds."""

    quick: bool = False
    progress: Progress = _silent


#: Title, what it runs, and its share of the time.
CASES: tuple[tuple[str, Callable[[Bench], list[Row]], float], ...] = (
    ("small commands", cases.commands, 40),
    ("pipelined commands", cases.pipelines, 20),
    ("bulk", cases.bulk, 15),
    ("bulk by size", transfers.sizes, 40),
    ("bulk over a long link", transfers.far, 20),
    ("beside an upload", transfers.beside_upload, 20),
    ("memory of transfers", transfers.upload_memory, 8),
    ("connecting", sessions.connecting, 5),
    ("two sessions", sessions.two_sessions, 15),
    ("idle", sessions.idle, 8),
    ("memory", sessions.memory, 4),
    ("import", sessions.importing, 3),
    ("kill -9", sessions.killed, 5),
)


def run(options: BenchOptions = BenchOptions()) -> Report:
    """Measure everything. Starts processes of its own on loopback addresses and ends them. Raises what remora raises."""
    load, begin = os.getloadavg()[0], monotonic()
    rows: list[Row] = []
    whole, done = sum(weight for _, _, weight in CASES), 0.0
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="remora-bench-"))
        floor = stack.enter_context(Peer("floor", directory))
        server = stack.enter_context(Peer("serve", directory))
        for title, case, weight in CASES:
            start = done

            def step(share: float, title: str = title, start: float = start, weight: float = weight) -> None:
                options.progress(title, (start + share * weight) / whole)

            step(0)
            rows += case(Bench(options.quick, floor, server, step))
            done += weight
    options.progress("done", 1.0)
    return Report(machine(load), options.quick, monotonic() - begin, tuple(rows))
