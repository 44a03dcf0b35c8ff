"""Bulk transfers: bandwidth by size, by connections and over a long link, what small commands suffer, what memory it costs."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack, closing
from statistics import median
from time import perf_counter_ns

from remora.bench.context import CARRIERS, MIB, Bench
from remora.bench.floors import RawMemory, RawStream
from remora.bench.measure import Run, Subject, alternate, each, paired_ratio, percentile, whole
from remora.bench.processes import Companion, children, peak_bytes, shared_bytes
from remora.bench.report import Row, Target
from remora.bench.subjects import Dispatches, Transfers

__all__ = ["beside_upload", "connections", "far", "sizes", "upload_memory"]

STREAM_RATIO = Target(0.85, of="ratio", at_most=False)
FAR_RATIO = Target(0.7, of="ratio", at_most=False)
P99_RATIO = Target(6, of="ratio")
MEMORY_ABOVE = Target(32)
#: Seconds there and back over the emulated link.
FAR = 0.05


def sizes(bench: Bench) -> list[Row]:
    """Upload and download against a raw stream, with CPU of both ends a GB."""
    kinds = [(1, 16)] if bench.quick else [(1, 16), (64, 1), (512, 1)]
    rows: list[Row] = []
    step = bench.steps(len(kinds) * len(CARRIERS))
    for size, count in kinds:
        for carrier in CARRIERS:
            target = STREAM_RATIO if carrier == "tcp" and size >= 64 else None
            rows += _against_stream(bench, carrier, size, count, bench.pick(3, 9 if size < 512 else 5), target)
            step()
    return rows


def connections(bench: Bench) -> list[Row]:
    """The same with more connections for one session's transfers, against one raw stream."""
    size, rows = bench.pick(16, 512), []
    counts = bench.pick(1, 2)
    step = bench.steps(counts)
    for count in (4, 2)[:counts]:
        rows += _against_stream(bench, "tcp", size, 1, bench.pick(2, 5), None, f"?bulk={count}")
        step()
    return rows


def _against_stream(
    bench: Bench, carrier: str, size: int, count: int, rounds: int, target: Target | None, query: str = ""
) -> list[Row]:
    with ExitStack() as stack:
        ours = stack.enter_context(closing(Transfers(bench.uri(carrier) + query, size * MIB)))
        session = children(bench.server.pid)[-1]
        raw = stack.enter_context(closing(bench.raw_stream(carrier, size * MIB)))
        pairs = _alternate(ours, raw, (bench.floor.pid, session), rounds, count)
    rows: list[Row] = []
    for what, (floor, mine) in pairs.items():
        rows += _bandwidth(f"{carrier}{query}: {what} {size} MiB", size * MIB, mine, floor, target)
    return rows


def _alternate(
    ours: Transfers, raw: RawStream | RawMemory, pids: tuple[int, int], rounds: int, count: int
) -> dict[str, tuple[Run, Run]]:
    """(floor, ours) of uploads and downloads, all in turn."""
    calls = ((raw.upload, pids[0]), (ours.upload, pids[1]), (raw.download, pids[0]), (ours.download, pids[1]))
    subjects = [Subject("", whole(_repeat(call)), pid) for call, pid in calls]
    runs = alternate(subjects, rounds, count, lambda: None, warm=1)
    return {"upload": (runs[0], runs[1]), "download": (runs[2], runs[3])}


def _repeat(call: Callable[[], None]) -> Callable[[int], object]:
    return lambda count: [call() for _ in range(count)]  # type: ignore[func-returns-value]


def _bandwidth(name: str, total: int, ours: Run, floor: Run, target: Target | None) -> list[Row]:
    mine, theirs = ours.detail(), floor.detail()
    detail = {"ours": mine, "floor": theirs}
    cpu, cpu_floor = ((run["cpu_here_us"] + run["cpu_there_us"]) * 1e3 / total for run in (mine, theirs))
    rate, rate_floor = (total / median(run.samples) for run in (ours, floor))
    return [
        Row(name, "GB/s", rate, rate_floor, 1 / paired_ratio(ours, floor), target, detail),
        Row(f"{name}, CPU of both", "s/GB", cpu, cpu_floor, cpu / cpu_floor),
    ]


def far(bench: Bench) -> list[Row]:
    """The same over a proxy that is 50 ms away, there and back; the floor is a raw stream over another one of its kind."""
    rows: list[Row] = []
    kinds = bench.pick(1, 2)
    step = bench.steps(kinds)
    for size in (64, 512)[:kinds]:
        with ExitStack() as stack:
            there, floor = (
                stack.enter_context(Companion("proxy", target, str(FAR / 2)))
                for target in (bench.uri("tcp").removeprefix("remote-"), bench.floor_address("tcp"))
            )
            ours = stack.enter_context(closing(Transfers(f"remote-{there.ready}", size * MIB)))
            raw = stack.enter_context(closing(RawStream(floor.ready, size * MIB)))
            pairs = _alternate(ours, raw, (0, 0), bench.pick(2, 5), 1)
        for what, (raw_run, run) in pairs.items():
            rows.append(_bandwidth(f"tcp, 50 ms away: {what} {size} MiB", size * MIB, run, raw_run, FAR_RATIO)[0])
        step()
    return rows


def beside_upload(bench: Bench) -> list[Row]:
    """Small commands on one queue while another one uploads 512 MiB, against the same ones before and after."""
    rows: list[Row] = []
    rounds, count, total = bench.pick(1, 6), bench.pick(200, 1500), bench.pick(64, 512) * MIB
    step = bench.steps(len(CARRIERS) * rounds)
    for carrier in CARRIERS:
        with closing(Dispatches(bench.uri(carrier))) as small:
            data = bytearray(total)
            buffer = small.device.upload(data)
            small.use(small.device.queues[-1])
            idle: list[int] = []
            beside: list[int] = []
            rates: list[float] = []
            one = each(small.add)
            one(100)
            for _ in range(rounds):
                idle += one(count)
                point, begin = small.device.queue.update(buffer, data), perf_counter_ns()
                while point.semaphore._value < point.value and point.semaphore.failure is None:
                    beside += one(1)
                point.wait()
                rates.append(total / (perf_counter_ns() - begin))
                step()
        rows += _beside(carrier, sorted(idle), sorted(beside), median(rates))
    return rows


def _beside(carrier: str, idle: list[int], beside: list[int], rate: float) -> list[Row]:
    detail = {"samples": len(beside), "upload_gb_s": rate}
    rows = []
    for share, target in ((50, None), (99, P99_RATIO)):
        mine, alone = percentile(beside, share) / 1e3, percentile(idle, share) / 1e3
        rows.append(Row(f"{carrier}: small commands beside an upload, p{share}", "us", mine, alone, mine / alone, target, detail))
    return rows


def upload_memory(bench: Bench) -> list[Row]:
    """Peak memory of either side through a transfer up and down, above the buffers and what the process had before.

    What the client maps is the session's buffer, which is counted there.
    """
    total, rows = bench.pick(64, 512) * MIB, []
    for carrier in CARRIERS:
        with Companion("client", bench.uri(carrier), str(total)) as client:
            session = children(bench.server.pid)[-1]
            before = json.loads(client.ready)["peak_bytes"], peak_bytes(session)
            client.ask("transfer")
            after = peak_bytes(client.pid) - shared_bytes(client.pid), peak_bytes(session)
        for who, first, last in zip(("client", "session"), before, after, strict=True):
            above = max(0.0, (last - first - total) / MIB)
            rows.append(Row(f"{carrier}: {who} memory above {total // MIB} MiB there and back", "MiB", above, target=MEMORY_ABOVE))
    return rows
