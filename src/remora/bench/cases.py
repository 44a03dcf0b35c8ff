"""Small commands and bulk, each beside a plain socket that moves the same bytes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from statistics import median
from typing import Any

from remora.bench.context import CARRIERS, ECHO_RATIO, MIB, REPLY_BYTES, Bench
from remora.bench.floors import RawEcho, copy_batch
from remora.bench.measure import Run, Subject, alternate, each, paired_ratio, whole
from remora.bench.placement import PLACEMENTS
from remora.bench.processes import children
from remora.bench.report import Row, Target
from remora.bench.subjects import Dispatches, Transfers
from remora.server.options import ServeOptions
from remora.server.serve import Server

__all__ = ["bulk", "command_bytes", "commands", "pipelines"]

#: Messages of one send in the batched floor.
BATCH = 16


@contextmanager
def _loopback() -> Iterator[str]:
    """A server on a thread of this process."""
    with Server(ServeOptions(devices=("cpu",), bind=("loopback://bench",), shared=True)) as server:
        server.start()
        thread = threading.Thread(target=server.serve, daemon=True)
        thread.start()
        yield "remote-loopback://bench"
        server.stop()
        thread.join()


# -- small commands ---------------------------------------------------------------------------------------------------------------


def command_bytes(ours: Dispatches, call: Callable[[], None], count: int = 50) -> int:
    """Bytes that one operation sends."""
    statistics: Any = ours.device
    before = statistics.link_statistics().bytes_sent
    for _ in range(count):
        call()
    return int(statistics.link_statistics().bytes_sent - before) // count


def commands(bench: Bench) -> list[Row]:
    """Dispatch and wait against a raw echo of the same bytes, with a core each and on one; then a local device and loopback."""
    step = bench.steps(len(PLACEMENTS))
    rows: list[Row] = []
    for placement in PLACEMENTS:
        rows += _commands(bench, placement)
        step()
    return rows + _here(bench)


def _commands(bench: Bench, placement: str) -> list[Row]:
    rounds, count = bench.pick(4, 12), bench.pick(100, 300)
    with ExitStack() as stack:
        subjects: list[Subject] = []
        sizes: dict[str, int] = {}
        for carrier in CARRIERS:
            ours = stack.enter_context(closing(Dispatches(bench.uri(carrier))))
            session = children(bench.server.pid)[-1]
            for what, call in (("3 bindings", ours.add), ("empty", ours.empty)):
                name = f"{carrier}, {placement}: dispatch + wait, {what}"
                sizes[name] = command_bytes(ours, call)
                raw = stack.enter_context(closing(RawEcho(bench.floor_address(carrier), sizes[name], REPLY_BYTES)))
                raw.round_trip()  # the thread that answers is there
                subjects += (Subject(name, each(raw.round_trip), bench.floor.pid), Subject(name, each(call), session))
        stack.enter_context(PLACEMENTS[placement](*{subject.peer for subject in subjects}))
        runs = alternate(subjects, rounds, count, lambda: None)
    rows: list[Row] = []
    for raw_run, run, subject in zip(runs[::2], runs[1::2], subjects[1::2], strict=True):
        rows += _latency(subject.name, run, raw_run, sizes[subject.name])
    return rows


def _here(bench: Bench) -> list[Row]:
    with ExitStack() as stack:
        local = stack.enter_context(closing(Dispatches("cpu")))
        looped = stack.enter_context(closing(Dispatches(stack.enter_context(_loopback()))))
        subjects = [Subject("here, no link", each(local.add)), Subject("loopback", each(looped.add))]
        runs = alternate(subjects, bench.pick(4, 12), bench.pick(100, 300), lambda: None)
    return [_alone(f"{subject.name}: dispatch + wait", run) for subject, run in zip(subjects, runs, strict=True)]


def _latency(name: str, ours: Run, floor: Run, size: int) -> list[Row]:
    detail = {"ours": ours.detail(), "floor": floor.detail(), "bytes_out": size, "bytes_back": REPLY_BYTES}
    mine, theirs = ours.detail(), floor.detail()
    return [
        Row(f"{name}, p50", "us", mine["p50_us"], theirs["p50_us"], paired_ratio(ours, floor), ECHO_RATIO, detail),
        Row(f"{name}, p99", "us", mine["p99_us"], theirs["p99_us"], mine["p99_us"] / theirs["p99_us"]),
        _cpu(f"{name}, CPU of both", ours, floor),
    ]


def _cpu(name: str, ours: Run, floor: Run) -> Row:
    mine, theirs = (run.detail()["cpu_here_us"] + run.detail()["cpu_there_us"] for run in (ours, floor))
    return Row(name, "us", mine, theirs, mine / theirs)


def _alone(name: str, run: Run) -> Row:
    return Row(f"{name}, p50", "us", run.detail()["p50_us"], detail={"ours": run.detail()})


def pipelines(bench: Bench) -> list[Row]:
    """Many dispatches and one wait, against as many echoes with one send each."""
    rounds, count = bench.pick(2, 7), bench.pick(4000, 20_000)
    rows = []
    for number, carrier in enumerate(CARRIERS):
        with ExitStack() as stack:
            ours = stack.enter_context(closing(Dispatches(bench.uri(carrier))))
            size = command_bytes(ours, ours.add)
            raw = stack.enter_context(closing(RawEcho(bench.floor_address(carrier), size, REPLY_BYTES)))
            session = children(bench.server.pid)[-1]
            subjects = (
                Subject("raw", whole(raw.pipeline), bench.floor.pid),
                Subject("ours", whole(ours.pipeline), session),
                Subject("batched", whole(lambda count, raw=raw: raw.pipeline(count, BATCH)), bench.floor.pid),  # type: ignore[misc]
            )
            single, mine, batched = alternate(subjects, rounds, count, lambda number=number: bench.step(number / len(CARRIERS)))  # type: ignore[misc]
        rows.append(_rate(f"{carrier}: {count:,} dispatches, one wait", mine, single, Target(0.4, of="ratio", at_most=False)))
        rows.append(_cpu(f"{carrier}: one of them, CPU of both", mine, single))
        rows.append(_rate(f"{carrier}: the same against echoes {BATCH} a send", mine, batched, None))
    return rows


def _rate(name: str, ours: Run, floor: Run, target: Target | None) -> Row:
    mine, theirs = (1e6 / median(run.samples) for run in (ours, floor))
    detail = {"ours": ours.detail(), "floor": floor.detail()}
    return Row(name, "k/s", mine, theirs, 1 / paired_ratio(ours, floor), target, detail)


# -- bulk -------------------------------------------------------------------------------------------------------------------------


def bulk(bench: Bench) -> list[Row]:
    """Upload and download against a raw stream in sends of 1 MiB; memcpy beside them."""
    rounds, total = bench.pick(3, 9), bench.pick(16, 64) * MIB
    rows = [_bandwidth(f"memcpy, {total // MIB} MiB", total, Run([copy_batch(total, rounds)]), None)]
    for number, carrier in enumerate(CARRIERS):
        with ExitStack() as stack:
            ours = stack.enter_context(closing(Transfers(bench.uri(carrier), total)))
            session = children(bench.server.pid)[-1]
            raw = stack.enter_context(closing(bench.raw_stream(carrier, total)))
            subjects = [
                Subject(name, whole(lambda count, call=call: [call() for _ in range(count)]), pid)  # type: ignore[misc]
                for name, call, pid in (
                    ("raw up", raw.upload, bench.floor.pid),
                    ("up", ours.upload, session),
                    ("raw down", raw.download, bench.floor.pid),
                    ("down", ours.download, session),
                )
            ]
            runs = alternate(subjects, rounds, 1, lambda number=number: bench.step(number / len(CARRIERS)), warm=1)  # type: ignore[misc]
        rows.append(_bandwidth(f"{carrier}: upload {total // MIB} MiB", total, runs[1], runs[0]))
        rows.append(_bandwidth(f"{carrier}: download {total // MIB} MiB", total, runs[3], runs[2]))
    return rows


def _bandwidth(name: str, total: int, ours: Run, floor: Run | None) -> Row:
    mine = total / median(ours.samples)
    if floor is None:
        return Row(name, "GB/s", mine)
    detail = {"ours": ours.detail(), "floor": floor.detail()}
    return Row(name, "GB/s", mine, total / median(floor.samples), 1 / paired_ratio(ours, floor), None, detail)
