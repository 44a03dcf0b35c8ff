"""G09: thirteen counters, and a bounded trace that says what it measures."""

import json
from dataclasses import fields

import pytest

from remora.errors import BusyError, DeviceError, UsageError
from remora.graph import HOST_VISIBLE, ExecutionTrace, Runtime, Statistics, TraceEvent

SOON = 20.0
SIZE = 1 << 16


def pipeline(runtime):
    near, far, result = runtime.allocate(SIZE, HOST_VISIBLE), runtime.allocate(SIZE), bytearray(SIZE)
    graph = runtime.graph("pipeline")
    graph.copy(near, far)
    graph.fill(far.view(0, 16), b"\1")
    graph.download(far, result)
    return graph.prepare()


def test_g09_statistics_are_thirteen_and_count(runtime):
    assert len(fields(Statistics)) == 13
    replay = pipeline(runtime)
    before = runtime.statistics()
    for _ in range(3):
        replay.submit().wait(SOON)
    now = runtime.statistics()
    assert (now.submissions - before.submissions, now.completions - before.completions) == (3, 3)
    assert (now.uploaded_bytes, now.device_copied_bytes, now.downloaded_bytes) == (3 * SIZE, 0, 3 * SIZE)
    assert now.copied_bytes == 6 * SIZE
    assert (now.allocations, now.graphs_prepared, now.lanes_used) == (2, 1, 3)
    assert now.live_bytes == now.peak_bytes == 2 * SIZE
    assert (now.imports, now.staged_bytes) == (0, 0)
    replay.close()


def test_g09_what_failed_counts_as_completed_and_moves_nothing(domain, stepped):
    runtime = domain()
    near, far = runtime.allocate(SIZE, HOST_VISIBLE), runtime.allocate(SIZE)
    graph = runtime.graph()
    graph.copy(near, far)
    replay = graph.prepare()
    stepped.run()
    done = replay.submit()
    stepped.lanes[1].fail(DeviceError("gone"))
    assert done.done
    now = runtime.statistics()
    assert (now.completions, now.copied_bytes) == (1, 0)


def test_g09_a_trace_tells_lanes_times_and_bytes(runtime, tmp_path):
    replay = pipeline(runtime)
    runtime.start_trace(100)
    with pytest.raises(BusyError, match="runs already"):
        runtime.start_trace()
    replay.submit().wait(SOON)
    trace = runtime.finish_trace()
    assert runtime.finish_trace() is None
    assert [event.lane for event in trace.events] == ["upload", "compute", "download"]
    assert [event.name for event in trace.events] == ["pipeline region 0", "pipeline region 1", "read"]
    assert trace.events[2].copied_bytes == SIZE
    for earlier, later in zip(trace.events, trace.events[1:], strict=False):
        assert 0 <= earlier.start_us <= earlier.start_us + earlier.duration_us <= later.start_us
    assert trace.overlap_us("upload", "compute") == 0
    trace.save(tmp_path / "trace.json")
    told = json.loads((tmp_path / "trace.json").read_text())
    assert told["dropped_events"] == 0
    assert "monotonic clock" in told["measurement"]
    assert [event["name"] for event in told["traceEvents"] if event["ph"] == "X"] == [event.name for event in trace.events]


def test_g09_a_trace_keeps_the_newest_and_counts_the_rest(runtime):
    replay = pipeline(runtime)
    runtime.start_trace(4)
    for _ in range(5):
        replay.submit().wait(SOON)
    trace = runtime.finish_trace()
    assert (len(trace.events), trace.dropped) == (4, 11)
    with pytest.raises(UsageError, match="at least one event"):
        runtime.start_trace(0)
    runtime.start_trace(1)
    assert runtime.finish_trace().events == ()


def test_g09_overlap_is_the_time_that_two_lanes_share():
    events = tuple(
        TraceEvent("x", lane, start, length, 0, failed=False)
        for lane, start, length in [("upload", 0, 10), ("compute", 5, 10), ("upload", 14, 10), ("download", 100, 1)]
    )
    trace = ExecutionTrace(events, 0)
    assert trace.overlap_us("upload", "compute") == 6
    assert trace.overlap_us("upload", "download") == 0


def test_g09_a_device_that_keeps_no_times_says_so_and_leaves_no_trace():
    with Runtime("cpu", "cpu") as runtime:
        runtime.device(0)
        with runtime.device(1).profile(lambda records: None):
            with pytest.raises(UsageError, match="profiled already"):
                runtime.start_trace()
            assert runtime.finish_trace() is None
        runtime.start_trace()
        assert runtime.finish_trace() is not None
