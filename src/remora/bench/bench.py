"""One run: the parts that were asked for, the report."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TypeAlias

from remora.bench import carriers, cases, graphs, recordings, sessions, transfers, whole
from remora.bench.context import Bench
from remora.bench.growth import grow
from remora.bench.peers.compare import FULL, QUICK, compare
from remora.bench.peers.environments import default_folder
from remora.bench.peers.metrics import Figures
from remora.bench.peers.table import ELSEWHERE, FLOORS, OURS, Contestant
from remora.bench.processes import Companion
from remora.bench.report import Report, Row, machine
from remora.testing.server import ServerProcess

__all__ = ["CASES", "PARTS", "BenchOptions", "Progress", "run"]

#: Called with the case at work and the share of its part that is done, 0 to 1.
Progress: TypeAlias = Callable[[str, float], None]

#: floors: remora beside plain sockets. compare: everybody on the same work. growth: how cost grows.
PARTS = ("floors", "compare", "growth")


def _silent(_case: str, _share: float) -> None:
    """Nobody watches."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """How to measure, and what. `quick` takes a tenth of the samples."""

    quick: bool = False
    progress: Progress = _silent
    parts: tuple[str, ...] = ("floors", "compare")
    """Some of PARTS."""
    peers: tuple[Contestant, ...] = ()
    """Whom to compare with, beside the floors and remora itself."""
    folder: Path = field(default_factory=default_folder)
    """Where the peers' environments are."""


#: Title, what it runs, and its share of the time.
CASES: tuple[tuple[str, Callable[[Bench], list[Row]], float], ...] = (
    ("carriers alone", carriers.alone, 8),
    ("small commands", cases.commands, 40),
    ("pipelined commands", cases.pipelines, 20),
    ("recorded commands", recordings.replays, 3),
    ("graphs", graphs.graphs, 3),
    ("bulk", cases.bulk, 15),
    ("end to end", whole.end_to_end, 6),
    ("bulk by size", transfers.sizes, 40),
    ("bulk, more sockets", transfers.connections, 10),
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
    """Measure what was asked for. Starts processes of its own on this machine and ends them. Raises what remora raises."""
    load, begin = os.getloadavg()[0], monotonic()
    rows = _against_floors(options) if "floors" in options.parts else []
    comparison: tuple[Figures, ...] = ()
    if "compare" in options.parts:
        effort = QUICK if options.quick else FULL
        comparison = compare((*FLOORS, *OURS, *options.peers), options.folder, effort, options.progress) + ELSEWHERE
    curves = grow(options.quick, options.progress) if "growth" in options.parts else ()
    options.progress("done", 1.0)
    return Report(machine(load), options.quick, monotonic() - begin, tuple(rows), comparison, curves)


def _against_floors(options: BenchOptions) -> list[Row]:
    """Case by case, beside plain sockets."""
    rows: list[Row] = []
    whole, done = sum(weight for _, _, weight in CASES), 0.0
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="remora-bench-"))
        floor = stack.enter_context(Companion("floor", directory))
        addresses = ("tcp://127.0.0.1:0", f"unix://{directory}/unix.sock", f"shm://{directory}/shm.sock")
        server = stack.enter_context(ServerProcess(bind=addresses))
        for title, case, weight in CASES:
            start = done

            def step(share: float, title: str = title, start: float = start, weight: float = weight) -> None:
                options.progress(title, (start + share * weight) / whole)

            step(0)
            rows += case(Bench(options.quick, floor, server, directory, step))
            done += weight
    return rows
