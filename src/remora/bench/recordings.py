"""Replays of a reusable command buffer: what a dispatch costs once it is recorded (H18)."""

from __future__ import annotations

from contextlib import ExitStack, closing
from statistics import median

import remora
from remora import samples
from remora.bench.context import CARRIERS, Bench
from remora.bench.measure import Run, Subject, alternate, each
from remora.bench.processes import children
from remora.bench.report import Row, Target

__all__ = ["DISPATCHES", "Replays", "replays"]

#: Empty dispatches of the recording.
DISPATCHES = 1000
#: Thousands of dispatches a second.
PROMISED = Target(500, at_most=False)


class Replays:
    """A recording of empty dispatches on a device behind any URI."""

    def __init__(self, uri: str) -> None:
        self.device = remora.open(uri)
        empty = self.device.load(samples.load("vector"))["empty"]
        with self.device.command_buffer(label="empty dispatches") as self._commands:
            for _ in range(DISPATCHES):
                self._commands.dispatch(empty, (1, 1, 1), ())
        self.replay()

    def replay(self) -> None:
        """Execute all of it and wait."""
        self.device.queue.execute(self._commands).wait()

    def close(self) -> None:
        """Close the device."""
        self.device.close()


def replays(bench: Bench) -> list[Row]:
    """Execute and wait: on a local cpu device, and on one behind each carrier."""
    rounds, count = bench.pick(3, 12), bench.pick(10, 50)
    with ExitStack() as stack:
        local = stack.enter_context(closing(Replays("cpu")))
        subjects = [Subject("cpu, here", each(local.replay))]
        for carrier in CARRIERS:
            ours = stack.enter_context(closing(Replays(bench.uri(carrier))))
            subjects.append(Subject(carrier, each(ours.replay), children(bench.server.pid)[-1]))
        runs = alternate(subjects, rounds, count, bench.steps(len(subjects) * (rounds + 1)), warm=10)
    return [_row(subject.name, run) for subject, run in zip(subjects, runs, strict=True)]


def _row(name: str, run: Run) -> Row:
    rate = DISPATCHES * 1e6 / median(run.samples)
    return Row(f"{name}: {DISPATCHES:,} recorded dispatches", "k/s", rate, target=PROMISED, detail={"ours": run.detail()})
