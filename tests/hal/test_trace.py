"""Traces (H24): a file that is valid at every moment, spans that nest, arrows that arrive, and nothing left on when it ends."""

import json
import os
import threading

import pytest
from tests.hal.trace_checks import check_events, spans

import remora
from remora.errors import Error, UsageError
from remora.hal import access, trace_file
from remora.hal import trace as tracing
from remora.hal.operation import OperationKind as K
from remora.hal.semaphore import Semaphore
from remora.hal.trace_file import TraceFile

LONG = 20.0


@pytest.fixture(autouse=True)
def leaves_no_hook():
    yield
    assert Semaphore.watch is None
    assert access.WATCHERS == []
    assert tracing._ACTIVE == []


@pytest.fixture(params=["cpu", "null"])
def device(request):
    with remora.open(request.param) as device:
        yield device


def test_h24_a_trace_has_the_program_and_the_device_with_arrows_between_them(device, tmp_path):
    path = tmp_path / "out.json"
    with remora.trace(path, device) as trace, device.allocate(4096) as buffer:
        gate = device.semaphore()
        device.queue.fill(buffer, b"a", wait=gate.at(1))
        point = device.queue.barrier()
        opener = threading.Timer(0.01, gate.signal, (1,))
        opener.start()
        point.wait(LONG)
        opener.join()
        trace.devices[0].profile.flush(LONG)
    events = json.loads(path.read_text())["traceEvents"]
    check_events(events)
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names[2, 1] == "queue 0"
    (fill,) = spans(events, "fill", pid=2)
    (submit,) = spans(events, "submit fill", pid=1)
    (wait,) = spans(events, "wait queue 0", pid=1)
    assert fill["args"]["bytes"] == 4096
    assert fill["args"]["queued_us"] > 0
    assert submit["ts"] <= fill["ts"]
    assert wait["ts"] <= fill["ts"] + fill["dur"] <= wait["ts"] + wait["dur"]
    flows = [(event["ph"], event["id"]) for event in events if event["name"] == "submit" and event["cat"] == "submit"]
    assert {("s", "1.0.1"), ("f", "1.0.1"), ("s", "1.0.2"), ("f", "1.0.2")} == set(flows)


def test_h24_without_devices_all_that_are_opened_are_traced(tmp_path):
    path = tmp_path / "out.json"
    with remora.open("null") as before, remora.trace(path) as trace:
        with remora.open("null") as first:
            first.queue.barrier().wait(LONG)
        with remora.connect("null") as host:
            host.devices[0].queue.barrier().wait(LONG)
        before.queue.barrier().wait(LONG)
    assert [device.profile.taken for device in trace.devices] == [1, 1]
    assert [(time.title, time.kind, time.runs) for time in trace.summary()] == [("barrier", K.BARRIER, 2)]
    told = json.loads(path.read_text())
    check_events(told["traceEvents"])
    assert [(device["device"], device["records"], device["ended"]) for device in told["otherData"]["devices"]] == [
        ("null://", 1, "")
    ] * 2


def test_h24_a_trace_can_follow_some_uris_only(tmp_path):
    with tracing.Trace(tmp_path / "out.json") as trace:
        trace.follow(["cpu"])
        for uri in ("null", "cpu"):
            with remora.open(uri):
                pass
    assert [device.uri for device in trace.devices] == ["cpu://"]


def test_h24_the_file_is_valid_before_the_trace_ends(tmp_path):
    path = tmp_path / "out.json"
    with remora.open("null") as device, remora.trace(path, device) as trace:
        assert json.loads(path.read_text())["traceEvents"]
        for count in (1, 2, 3):
            device.queue.barrier().wait(LONG)
            trace.devices[0].profile.flush(LONG)
            told = json.loads(path.read_text())
            assert len(spans(told["traceEvents"], "barrier", pid=2)) == count
            assert told["otherData"]["devices"][0]["clock_error_ns"] == 0


def test_h24_the_program_shows_in_the_file_though_no_device_has_anything_to_say(tmp_path, monkeypatch):
    monkeypatch.setattr(tracing, "WRITE_EVERY", 0.001)
    written = threading.Event()
    write = TraceFile.write
    monkeypatch.setattr(TraceFile, "write", lambda file, events, facts: (write(file, events, facts), events and written.set()))
    path = tmp_path / "out.json"
    with remora.open("null") as device, remora.trace(path, device):
        written.clear()
        with pytest.raises(remora.DeadlineError):
            device.semaphore().at(1).wait(0.001)
        assert written.wait(LONG)
        assert spans(json.loads(path.read_text())["traceEvents"], "wait semaphore", pid=1)


def test_h24_a_device_that_cannot_be_traced_is_told_and_can_be_used(tmp_path):
    path = tmp_path / "out.json"
    with remora.open("null") as device, device.profile(lambda _: None):
        with pytest.raises(UsageError, match="is profiled already"):
            remora.trace(path, device)
        assert json.loads(path.read_text())["otherData"]["devices"][0]["ended"].endswith("end() that profile first")


def test_h24_a_program_that_profiles_itself_meanwhile_is_told(tmp_path):
    with remora.trace(tmp_path / "out.json"), remora.open("null") as device, pytest.raises(UsageError, match="profiled already"):
        device.profile(lambda _: None)


@pytest.mark.parametrize("place", ["nowhere/out.json", "."])
def test_h24_a_path_that_cannot_be_written_is_refused(tmp_path, place):
    with pytest.raises(UsageError, match="cannot write a trace to"):
        remora.trace(tmp_path / place)


def test_h24_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(UsageError, match="name a regular file"):
            remora.trace(tmp_path / "pipe")
    finally:
        os.close(reader)


def test_h24_a_full_disk_ends_the_profile_and_not_the_work(tmp_path, monkeypatch):
    trace = remora.trace(tmp_path / "out.json")
    with remora.open("null") as device:

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(trace_file.os, "pwrite", full)
        device.queue.barrier().wait(LONG)
        with pytest.raises(Error, match="No space left on device"):
            trace.devices[0].profile.flush(LONG)
        device.queue.barrier().wait(LONG)
        with pytest.raises(Error, match="cannot write the trace"):
            trace.close()
    trace.close()
    assert "No space left" in trace.devices[0].ended


def test_h24_a_forked_child_writes_nothing(tmp_path):
    file = TraceFile(tmp_path / "out.json")
    file.write([{"ph": "i", "name": "parent"}], {})
    pid = os.fork()
    if pid == 0:
        file.write([{"ph": "i", "name": "child"}], {})
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    file.close()
    file.close()
    file.write([{"ph": "i", "name": "late"}], {})
    told = json.loads((tmp_path / "out.json").read_text())
    assert told == {"displayTimeUnit": "ns", "traceEvents": [{"ph": "i", "name": "parent"}], "otherData": {}}


def test_h24_facts_that_get_shorter_leave_nothing_behind(tmp_path):
    file = TraceFile(tmp_path / "out.json")
    file.write([], {"long": "x" * 1000})
    file.write([{"ph": "i"}], {})
    file.close()
    assert json.loads((tmp_path / "out.json").read_text())["traceEvents"] == [{"ph": "i"}]
    assert (tmp_path / "out.json").stat().st_size == file.size


def test_h24_spans_and_titles_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(tracing, "MAX_SPANS", 10)
    monkeypatch.setattr(tracing, "MAX_TITLES", 2)
    monkeypatch.setattr(tracing, "WRITE_EVERY", LONG)
    go = threading.Event()
    with remora.open("null") as device, remora.trace(tmp_path / "out.json", device) as trace:
        with monkeypatch.context() as stuck:
            stuck.setattr(trace, "_write", lambda events: go.wait(LONG))
            for _ in range(30):
                device.queue.barrier()
            assert trace.dropped == 20
        go.set()
        for number in range(5):
            with device.command_buffer(label=f"step {number}") as commands:
                pass
            device.queue.execute(commands).wait(LONG)
    assert {(time.title, time.runs) for time in trace.summary()} == {("barrier", 30), ("step 0", 1), ("others", 4)}
