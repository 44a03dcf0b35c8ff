"""What a graph costs beside the same work by hand, what preparing takes, and how much of a pipeline overlaps (G05, G06)."""

from __future__ import annotations

from array import array
from statistics import median
from time import perf_counter

from remora import samples
from remora.bench.context import Bench
from remora.bench.measure import Subject, alternate, each, paired_ratio
from remora.bench.report import Row, Target
from remora.graph import Completion, ExecutableGraph, GraphBuffer, Runtime
from remora.hal.executable import Kernel

__all__ = ["graphs"]

#: Numbers that a kernel of the replayed work adds: one MiB.
REPLAYED = 1 << 18
#: Numbers of a stage of the pipeline.
STAGE = 1 << 20
NODES = 10_000
RUNS = 8


def graphs(bench: Bench) -> list[Row]:
    """All of it on a local cpu device."""
    return [_replay(bench), _preparing(bench), _overlap(bench)]


def _replay(bench: Bench) -> Row:
    """A fill and two kernels: a prepared graph, and a recording that is executed by hand."""
    with Runtime("cpu") as runtime:
        device = runtime.device()
        add = device.load(samples.load("vector"))["add_i32"]
        replay = _sums(runtime, add, [runtime.allocate(4 * REPLAYED) for _ in range(3)])
        a, b, c = (device.allocate(4 * REPLAYED) for _ in range(3))
        grid = add.grid_for(REPLAYED)
        with device.command_buffer() as commands:
            commands.fill(a, b"\1")
            commands.dispatch(add, grid, [a, b, c], (REPLAYED,))
            commands.dispatch(add, grid, [c, b, a], (REPLAYED,))
        queue = device.queues[1]
        subjects = [
            Subject("graph", each(lambda: replay.submit().wait())),
            Subject("by hand", each(lambda: queue.execute(commands).wait())),
        ]
        rounds, count = bench.pick(3, 12), bench.pick(20, 100)
        ours, hand = alternate(subjects, rounds, count, bench.steps(2 * (rounds + 1)), warm=20)
    detail = {"ours": ours.detail(), "floor": hand.detail()}
    value, floor = median(ours.samples) / 1e3, median(hand.samples) / 1e3
    target = Target(1.15, of="ratio")
    return Row("graph: replay of a fill and two kernels, 1 MiB", "us", value, floor, paired_ratio(ours, hand), target, detail)


def _sums(runtime: Runtime, add: Kernel, buffers: list[GraphBuffer]) -> ExecutableGraph:
    a, b, c = buffers
    graph = runtime.graph()
    graph.fill(a, b"\1")
    graph.kernel(add, [a, b, c], (REPLAYED,))
    graph.kernel(add, [c, b, a], (REPLAYED,))
    return graph.prepare()


def _preparing(bench: Bench) -> Row:
    """Inferring the order of many nodes, and recording them."""
    times = []
    with Runtime("cpu") as runtime:
        buffer = runtime.allocate(4 * 1000)
        for _ in range(bench.pick(1, 5)):
            graph = runtime.graph()
            for number in range(NODES):
                graph.fill(buffer.view(4 * (number % 1000), 4))
            begin = perf_counter()
            graph.prepare().close()
            times.append((perf_counter() - begin) * 1e3)
    return Row(f"graph: prepare {NODES:,} nodes", "ms", median(times), target=Target(1000))


def _overlap(bench: Bench) -> Row:
    """Runs of upload, compute and download: the time of all of them at once to that of one after another, as the trace tells."""
    with Runtime("cpu://?threads=1") as runtime:
        mix = runtime.device().load(samples.load("vector"))["mix_u32"]
        lines = [_pipeline(runtime, mix) for _ in range(3)]
        ratios = [_span(runtime, lines, ahead=len(lines)) / _span(runtime, lines, ahead=1) for _ in range(bench.pick(2, 8))]
    return Row("graph: pipeline at once to one by one", "x", median(ratios), target=Target(0.7), detail={"ratios": ratios})


def _pipeline(runtime: Runtime, mix: Kernel) -> ExecutableGraph:
    source, out = runtime.allocate(4 * STAGE), runtime.allocate(4 * STAGE)
    graph = runtime.graph()
    graph.upload(source, array("I", bytes(4 * STAGE)))
    graph.kernel(mix, [source, out], (STAGE, 1))
    graph.download(out, array("I", bytes(4 * STAGE)))
    return graph.prepare()


def _span(runtime: Runtime, lines: list[ExecutableGraph], ahead: int) -> float:
    """Microseconds from the first begin to the last end of so many runs, `ahead` of them in flight at once."""
    runtime.start_trace()
    flying: list[Completion] = []
    for run in range(RUNS):
        if len(flying) == ahead:
            flying.pop(0).wait()
        flying.append(lines[run % len(lines)].submit())
    for done in flying:
        done.wait()
    trace = runtime.finish_trace()
    assert trace is not None  # it was started here
    begin = min(event.start_us for event in trace.events)
    return max(event.start_us + event.duration_us for event in trace.events) - begin
