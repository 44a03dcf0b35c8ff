"""Everybody on the same work, one after another: a contestant in, a row of figures out. What fails costs its cell and no more."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Any

from remora.bench.measure import percentile
from remora.bench.peers.conversation import Conversation
from remora.bench.peers.environments import command, installed
from remora.bench.peers.metrics import METRICS, MIB, Figures, Metric
from remora.bench.peers.table import Contestant
from remora.bench.processes import available
from remora.errors import BrokenError, DeadlineError, Error

__all__ = ["FULL", "QUICK", "Effort", "compare", "measure"]

#: Seconds: until the first answer, for one request beyond what it measures, and until a death counts as not noticed.
READY_TIMEOUT = 180.0
ANSWER_TIMEOUT = 120.0
NOTICE_TIMEOUT = 15.0
#: Seconds that a client works before its server is killed.
BEFORE_KILL = 0.3
#: A program that ended or hung is started again for what is left, this often.
MOST_STARTS = 3
#: Bytes of memory for each byte of a transfer, on both ends together, with what slow peers copy.
MEMORY_FACTOR = 8
WHOLE_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to measure: samples at most, and seconds at most for each number."""

    samples: int
    seconds: float
    transfers: Mapping[int, tuple[int, float]]
    """Bytes -> samples and seconds."""
    whole: tuple[int, float]


FULL = Effort(4000, 2.0, {MIB: (40, 1.5), 64 * MIB: (11, 3.0), 512 * MIB: (5, 6.0)}, (9, 6.0))
QUICK = Effort(300, 0.3, {MIB: (5, 0.2), 64 * MIB: (2, 0.2)}, (2, 0.2))


def compare(
    contestants: Sequence[Contestant], folder: Path, effort: Effort, progress: Callable[[str, float], None]
) -> tuple[Figures, ...]:
    """Measure in turn. `progress` gets a title and the share that is done, 0 to 1. A peer that is not installed says so."""
    rows = []
    for number, contestant in enumerate(contestants):
        progress(contestant.title, number / len(contestants))
        rows.append(measure(contestant, folder, effort))
    return tuple(rows)


def measure(contestant: Contestant, folder: Path, effort: Effort) -> Figures:
    """One row. Raises nothing but KeyboardInterrupt: what went wrong stands in `missing`."""
    if not installed(folder, contestant):
        why = f"not installed: run `remora bench --install-peers {contestant.name}`"
        return Figures(contestant.name, contestant.title, contestant.kind, {}, {metric.key: why for metric in METRICS})
    trial = _Trial(contestant, folder, effort)
    try:
        trial.run()
    finally:
        trial.end()
    return Figures(contestant.name, contestant.title, contestant.kind, trial.values, trial.missing)


@dataclass(slots=True)
class _Trial:
    """One contestant being measured."""

    contestant: Contestant
    folder: Path
    effort: Effort
    values: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    _talk: Conversation | None = None
    _server_pids: list[int] = field(default_factory=list)
    _starts: int = 0
    _prepared: int = 0

    def run(self) -> None:
        self._attempt(("ready", "import", "memory"), self._begin)
        self._attempt(("rtt_p50", "rtt_p99"), self._round_trips)
        self._attempt(("pipelined",), self._pipeline)
        for metric in METRICS:
            if metric.size_bytes:
                self._attempt((metric.key,), lambda metric=metric: self._transfer(metric))  # type: ignore[misc]
        self._attempt(("end_to_end",), self._whole)
        self._attempt(("noticed",), self._notice)

    def _attempt(self, keys: Sequence[str], call: Callable[[], None]) -> None:
        """Fill the cells, or say why they stay empty."""
        try:
            if why := self.contestant.left_out.get(keys[0]):
                self.missing[keys[0]] = why
                return
            self._start()
            call()
        except (Error, OSError) as error:
            why = error.message if isinstance(error, Error) else str(error)
            self.missing |= {key: why for key in keys if key not in self.values}
            if isinstance(error, BrokenError | DeadlineError | OSError):
                self.end(at_once=True)

    def _start(self) -> None:
        """Have a running program. Raises BrokenError when it was started too often already."""
        if self._talk is not None:
            return
        if self._starts == MOST_STARTS or (self._starts and "ready" not in self.values):
            raise BrokenError("its program does not run" if "ready" in self.values else self.missing["ready"])
        self._starts += 1
        self._prepared = 0
        began = {"REMORA_BENCH_BEGAN": repr(monotonic())} if self.contestant.launcher else {}
        self._talk = Conversation(command(self.folder, self.contestant), {**self.contestant.environment, **began})
        first = self._talk.line(READY_TIMEOUT)
        self._server_pids = [int(pid) for pid in first["server_pids"]]
        found = {"ready": first["ready_s"], "import": first["import_s"] * 1e3, "memory": first["memory_bytes"] / MIB}
        left_out = self.contestant.left_out
        self.values |= {key: value for key, value in found.items() if key not in self.values and key not in left_out}
        self.missing |= {key: left_out[key] for key in found if key in left_out}

    def _begin(self) -> None:
        """`_start` has it all."""

    def end(self, *, at_once: bool = False) -> None:
        """Leave nothing running. `at_once`: do not wait for what hangs."""
        if self._talk is not None:
            talk, self._talk = self._talk, None
            if at_once:
                talk.abort()
            talk.close()

    def _ask(self, what: str, count: int, seconds: float, **more: Any) -> dict[str, Any]:
        assert self._talk is not None  # _attempt has started it
        request = {"measure": what, "count": count, "seconds": seconds, **more}
        return self._talk.ask(request, ANSWER_TIMEOUT + 2 * seconds)

    # -- metrics ----------------------------------------------------------------------------------------------------------------

    def _round_trips(self) -> None:
        samples = sorted(self._ask("rtt", self.effort.samples, self.effort.seconds)["ns"])
        self.values["rtt_p50"] = percentile(samples, 50) / 1e3
        self.values["rtt_p99"] = percentile(samples, 99) / 1e3

    def _pipeline(self) -> None:
        answer = self._ask("pipelined", 0, self.effort.seconds)
        self.values["pipelined"] = answer["count"] / answer["ns"][0] * 1e6

    def _transfer(self, metric: Metric) -> None:
        size = metric.size_bytes
        if size not in self.effort.transfers:
            self.missing[metric.key] = "left out of a quick run"
            return
        if available() < size * MEMORY_FACTOR:
            self.missing[metric.key] = f"needs {size * MEMORY_FACTOR >> 30} GiB of free memory"
            return
        count, seconds = self.effort.transfers[size]
        if self._prepared != size:
            self._ask("prepare", 0, 0, bytes=size)
            self._prepared = size
        if metric.key.startswith("down"):
            self._ask("upload", 1, 0)
        samples = self._ask(metric.key.partition("_")[0], count, seconds)["ns"]
        self.values[metric.key] = size / median(samples)

    def _whole(self) -> None:
        self.values["end_to_end"] = median(self._ask("whole", *self.effort.whole)["ns"]) / 1e6

    def _notice(self) -> None:
        assert self._talk is not None
        self._ask("notice", 0, 0)
        sleep(BEFORE_KILL)
        killed = monotonic()
        for pid in self._server_pids:
            os.kill(pid, signal.SIGKILL)
        try:
            noticed = self._talk.line(NOTICE_TIMEOUT)["noticed"]
        except DeadlineError:
            raise DeadlineError(f"not within {NOTICE_TIMEOUT:g} s") from None
        except BrokenError:
            noticed = monotonic()  # the client ends with its server
        self.values["noticed"] = max(0.0, noticed - killed) * 1e3
