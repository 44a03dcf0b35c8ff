"""Taking numbers: alternating repetitions, percentiles, and CPU time of both ends an operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter_ns, process_time_ns

from remora.bench.processes import cpu_ns

__all__ = ["Run", "Subject", "alternate", "paired_ratio", "percentile"]


@dataclass(frozen=True, slots=True)
class Subject:
    """Something to time. `batch(count)` does the operation that often and returns the nanoseconds of each sample."""

    name: str
    batch: Callable[[int], list[int]]
    peer: int = 0
    """Process id of the other end, 0 for none."""


@dataclass(slots=True)
class Run:
    """What was measured of one subject: one list of nanoseconds a repetition."""

    rounds: list[list[int]] = field(default_factory=list)
    operations: int = 0
    here_ns: int = 0
    there_ns: int = 0

    @property
    def samples(self) -> list[int]:
        """All samples, ascending, in nanoseconds."""
        return sorted(sample for samples in self.rounds for sample in samples)

    def detail(self) -> dict[str, float]:
        """p50, p90 and p99 in microseconds, and CPU microseconds an operation on both sides."""
        samples, count = self.samples, max(1, self.operations)
        return {
            **{f"p{share}_us": percentile(samples, share) / 1e3 for share in (50, 90, 99)},
            "samples": len(samples),
            "cpu_here_us": self.here_ns / count / 1e3,
            "cpu_there_us": self.there_ns / count / 1e3,
        }


def alternate(subjects: Sequence[Subject], rounds: int, count: int, step: Callable[[], None], warm: int = 200) -> list[Run]:
    """Measure the subjects in turn, `rounds` times with `count` operations each, after a warm-up. `step` is called between."""
    for subject in subjects:
        subject.batch(min(warm, count))
        step()
    runs = [Run() for _ in subjects]
    for _ in range(rounds):
        for subject, run in zip(subjects, runs, strict=True):
            there, here = cpu_ns(subject.peer), process_time_ns()
            samples = subject.batch(count)
            run.here_ns += process_time_ns() - here
            run.there_ns += cpu_ns(subject.peer) - there
            run.operations += count
            run.rounds.append(samples)
            step()
    return runs


def each(call: Callable[[], object]) -> Callable[[int], list[int]]:
    """A `batch` that times every call by itself."""

    def batch(count: int) -> list[int]:
        clock = perf_counter_ns
        samples = []
        for _ in range(count):
            start = clock()
            call()
            samples.append(clock() - start)
        return samples

    return batch


def whole(run: Callable[[int], object]) -> Callable[[int], list[int]]:
    """A `batch` that times all operations together: one sample, the nanoseconds of an average one."""

    def batch(count: int) -> list[int]:
        start = perf_counter_ns()
        run(count)
        return [(perf_counter_ns() - start) // count]

    return batch


def percentile(samples: Sequence[int], share: float) -> float:
    """The value below which `share` percent of the ascending samples lie."""
    return float(samples[min(len(samples) - 1, int(len(samples) * share / 100))])


def paired_ratio(ours: Run, floor: Run) -> float:
    """The median over repetitions of our median to the floor's beside it."""
    return median(median(our) / median(their) for our, their in zip(ours.rounds, floor.rounds, strict=True))
