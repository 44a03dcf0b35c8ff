"""A pipeline as a graph: upload, compute and download of several runs at once. Runs on any URI, cpu if none is given.

What depends on what follows from the bytes that the nodes touch. Two graphs take turns, so that the upload of one run goes on while
another one computes.
"""

import sys
from array import array

from remora import samples
from remora.graph import Runtime

N = 1 << 20
RUNS = 8


def main(uri: str) -> None:
    with Runtime(uri) as runtime:
        add = runtime.device().load(samples.load("vector"))["add_i32"]
        inputs = [array("i", bytes(4 * N)) for _ in range(2)]
        results = [array("i", bytes(4 * N)) for _ in range(2)]
        graphs = []
        for data, result in zip(inputs, results, strict=True):
            source, doubled, out = (runtime.allocate(4 * N) for _ in range(3))
            graph = runtime.graph("double, and double again")
            graph.upload(source, data)
            graph.kernel(add, [source, source, doubled], (N,))
            graph.kernel(add, [doubled, doubled, out], (N,))
            graph.download(out, result)
            graphs.append(graph.prepare())
        graphs[0].show("pipeline.svg")

        runtime.start_trace()
        running = []
        for run in range(RUNS):
            if len(running) == len(graphs):
                check(running.pop(0), results)
            inputs[run % 2][:] = array("i", [run]) * N
            running.append((run, graphs[run % 2].submit()))  # returns at once
        for each in running:
            check(each, results)
        trace = runtime.finish_trace()
        trace.save("pipeline.json")
        busy = sum(event.duration_us for event in trace.events)
        whole = max(event.start_us + event.duration_us for event in trace.events) - min(event.start_us for event in trace.events)
        print(f"{RUNS} runs, exactly; lanes were busy for {busy / 1e3:.1f} ms in {whole / 1e3:.1f} ms")
        print("see pipeline.svg and pipeline.json (Perfetto)")


def check(running, results) -> None:
    run, done = running
    done.wait(timeout=30)
    assert results[run % 2] == array("i", [4 * run]) * N


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
