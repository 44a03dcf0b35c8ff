"""Sessions: how fast one begins, what it costs when idle, what it takes from its neighbour, and how its end is noticed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing
from statistics import median

import remora
from remora import samples
from remora.bench.cases import command_bytes
from remora.bench.context import CARRIERS, MIB, REPLY_BYTES, Bench
from remora.bench.floors import RawEcho
from remora.bench.measure import Run, Subject, alternate, each
from remora.bench.processes import Companion, children, cpu_ns
from remora.bench.report import Row, Target
from remora.bench.subjects import ONE, Dispatches
from remora.errors import Error

__all__ = ["connecting", "idle", "importing", "killed", "memory", "two_sessions"]


def connecting(bench: Bench) -> list[Row]:
    """From nothing to the result of the first dispatch, on a running server."""
    rows, count = [], bench.pick(3, 9)
    bundle = samples.load("vector")
    for number, carrier in enumerate(CARRIERS):
        parts: list[tuple[float, float, float]] = []
        for _ in range(count):
            begin = time.perf_counter()
            with remora.open(bench.uri(carrier)) as device:
                opened = time.perf_counter()
                kernels = device.load(bundle)
                loaded = time.perf_counter()
                device.queue.dispatch(kernels["empty"], ONE, []).wait()
                parts.append((opened - begin, loaded - opened, time.perf_counter() - loaded))
            bench.step(number / len(CARRIERS))
        milliseconds = [median(part) * 1e3 for part in zip(*parts, strict=True)]
        detail = dict(zip(("connect_ms", "load_ms", "dispatch_ms"), milliseconds, strict=True))
        value = median(sum(part) for part in parts) * 1e3
        split = "connect {:.1f}, load {:.1f}, dispatch {:.1f}".format(*milliseconds)
        rows.append(Row(f"{carrier}: first result ({split})", "ms", value, target=Target(60), detail=detail))
    return rows


def two_sessions(bench: Bench) -> list[Row]:
    """Small commands of one session while another session's kernel keeps a core busy; beside them what the raw echo suffers.

    No ratio of the two: an echo whose ends are pushed onto one core gets faster, since a wake-up across cores costs most of it.
    """
    rounds, count = bench.pick(2, 6), bench.pick(100, 500)
    step = bench.steps(2 * rounds + 1)
    with ExitStack() as stack:
        other = stack.enter_context(Companion("client", bench.uri("tcp"), "0"))
        ours = stack.enter_context(closing(Dispatches(bench.uri("tcp"))))
        session = children(bench.server.pid)[-1]
        raw = stack.enter_context(closing(RawEcho(bench.floor_address("tcp"), command_bytes(ours, ours.add), REPLY_BYTES)))
        subjects = (Subject("raw", each(raw.round_trip), bench.floor.pid), Subject("ours", each(ours.add), session))
        quiet, busy = [Run(), Run()], [Run(), Run()]
        for _ in range(rounds):
            _add(quiet, alternate(subjects, 1, count, lambda: None, warm=20))
            step()
            other.ask("go")
            _add(busy, alternate(subjects, 1, count, lambda: None, warm=20))
            other.ask("stop")
            step()
    floor, mine = (busy_run.detail()["p50_us"] / run.detail()["p50_us"] for busy_run, run in zip(busy, quiet, strict=True))
    detail = {
        "alone": quiet[1].detail(),
        "busy": busy[1].detail(),
        "floor_alone": quiet[0].detail(),
        "floor_busy": busy[0].detail(),
    }
    return [
        Row("two sessions: small commands alone, p50", "us", quiet[1].detail()["p50_us"], quiet[0].detail()["p50_us"]),
        Row("two sessions: beside a busy kernel, p50", "us", busy[1].detail()["p50_us"], busy[0].detail()["p50_us"]),
        Row("two sessions: slower by", "x", mine, floor, target=Target(1.5), detail=detail),
    ]


def _add(total: list[Run], more: list[Run]) -> None:
    for run, new in zip(total, more, strict=True):
        run.rounds += new.rounds
        run.operations += new.operations
        run.here_ns += new.here_ns
        run.there_ns += new.there_ns


def idle(bench: Bench) -> list[Row]:
    """CPU time of a session with nothing to do, in percent of a core."""
    seconds, rows = bench.pick(1, 6), []
    with Companion("client", bench.uri("tcp"), "0") as client:
        session = children(bench.server.pid)[-1]
        time.sleep(0.2)
        pids = (client.pid, session, bench.server.pid)
        before, begin = [cpu_ns(pid) for pid in pids], time.perf_counter()
        time.sleep(seconds)
        took = time.perf_counter() - begin
        here, there, parent = ((cpu_ns(pid) - start) / took / 1e7 for pid, start in zip(pids, before, strict=True))
    rows.append(Row("idle session: client", "% core", here, target=Target(1.0)))
    rows.append(Row("idle session: server", "% core", there + parent, target=Target(1.0)))
    return rows


def memory(bench: Bench) -> list[Row]:
    """Peak resident memory of a client process: after its first result, and after a transfer there and back."""
    total = bench.pick(16, 64) * MIB
    with Companion("client", bench.uri("tcp"), str(total)) as client:
        first = json.loads(client.ready)["peak_bytes"]
        peak = client.ask("transfer")["peak_bytes"]
    return [
        Row("client peak memory: connected, first result", "MiB", first / MIB),
        Row(f"client peak memory: {total // MIB} MiB up and down", "MiB", peak / MIB, 2 * total / MIB, peak / 2 / total),
    ]


def importing(bench: Bench) -> list[Row]:
    """`import remora` in a fresh process, and the modules that it takes from elsewhere than Python."""
    code = (
        "import sys, time; before = set(sys.modules); b = time.perf_counter(); import remora; t = time.perf_counter() - b; "
        "print(t, *{m.partition('.')[0] for m in set(sys.modules) - before} - sys.stdlib_module_names - {'remora'})"
    )
    answers = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        for _ in range(bench.pick(3, 9))
    ]
    value = median(float(answer[0]) for answer in answers) * 1e3
    others = sorted(answers[0][1:])
    return [
        Row("import remora", "ms", value, target=Target(80)),
        Row("import remora: third-party modules", "", len(others), target=Target(0), detail={"modules": others}),
    ]


# -- the end ----------------------------------------------------------------------------------------------------------------------


def killed(bench: Bench) -> list[Row]:
    """How long after a `kill -9` of its session's process a waiting client raises."""
    rows = []
    for carrier in CARRIERS:
        took = [_kill_once(bench, carrier) * 1e3 for _ in range(bench.pick(2, 7))]
        rows.append(
            Row(f"{carrier}: kill -9 of the session noticed after", "ms", median(took), target=Target(50), detail={"all_ms": took})
        )
    return rows


def _kill_once(bench: Bench, carrier: str) -> float:
    with remora.open(bench.uri(carrier)) as device:
        victim = children(bench.server.pid)[-1]
        kernels = device.load(samples.load("faults"))
        point = device.queue.dispatch(kernels["spin"], ONE, [])
        when: list[float] = []

        def kill() -> None:
            when.append(time.perf_counter())
            os.kill(victim, signal.SIGKILL)

        timer = threading.Timer(0.1, kill)
        timer.start()
        try:
            point.wait(10)
        except Error:
            return time.perf_counter() - when[0]
        finally:
            timer.join()
    return float("inf")
