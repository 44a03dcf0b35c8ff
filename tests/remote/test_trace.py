"""Traces of remote devices (H24): the server's spans lie where the program saw them, and a trace survives the server."""

import json
import threading

import pytest
from tests.hal.trace_checks import check_events, spans

import remora
from remora import samples
from remora.errors import BrokenError, DeviceLostError

LONG = 20.0


def test_h24_each_kernel_lies_between_its_submission_and_the_end_of_its_wait(device, tmp_path):
    kernel = device.load(samples.load("vector"))["fill_index"]
    path = tmp_path / "out.json"
    with device.allocate(4096) as buffer, remora.trace(path, device):
        for number in range(50):
            device.queue.dispatch(kernel, (1, 1, 1), [buffer], (4, number)).wait(LONG)
    told = json.loads(path.read_text())
    events = told["traceEvents"]
    check_events(events)
    (about,) = told["otherData"]["devices"]
    assert (about["records"], about["dropped"], about["ended"]) == (50, 0, "")
    error = about["clock_error_ns"] / 1000 + 0.002
    submits = {span["args"]["value"]: span for span in spans(events, "submit fill_index", pid=1)}
    waits = {span["args"]["value"]: span for span in events if span["ph"] == "X" and span["cat"] == "wait"}
    runs = spans(events, "fill_index", pid=2)
    assert [run["args"]["value"] for run in runs] == sorted(submits)
    assert len(runs) == 50
    for run in runs:
        value = run["args"]["value"]
        end = waits[value]["ts"] + waits[value]["dur"] if value in waits else float("inf")
        assert submits[value]["ts"] - error <= run["ts"] <= run["ts"] + run["dur"] <= end + error
    flows = [event["id"] for event in events if event["ph"] in "sf"]
    assert sorted(flows) == sorted([f"1.0.{run['args']['value']}" for run in runs] * 2)


@pytest.mark.parametrize("exact", [True, False])
def test_h24_large_transfers_and_several_queues_nest(device, tmp_path, monkeypatch, exact):
    if not exact:
        monkeypatch.setattr("remora.drivers.remote.profile.clock_name", lambda: 1)
        monkeypatch.setattr("remora.drivers.remote.profile.EXCHANGE_EVERY_NS", 0)  # the estimate changes all the time
    path, data = tmp_path / "out.json", bytes(1 << 20)
    with device.allocate(1 << 20) as buffer, remora.trace(path, device) as trace:
        for queue in device.queues:
            with device.command_buffer(label="step") as commands:
                commands.fill(buffer, b"a")
            for _ in range(5):
                queue.update(buffer, data)
                queue.execute(commands)
            queue.wait_idle(LONG)
            trace.devices[0].profile.flush(LONG)
        clock = trace.devices[0].profile.clock
    assert (clock.error_ns == 0) is exact
    events = json.loads(path.read_text())["traceEvents"]
    check_events(events)
    assert len(spans(events, "update", pid=2)) == len(spans(events, "step", pid=2)) == 5 * len(device.queues)


def test_h24_a_killed_server_leaves_a_valid_trace_with_what_came(serve, tmp_path):
    server, path = serve(), tmp_path / "out.json"
    with remora.open(server.uri) as device:
        with remora.trace(path, device) as trace:
            device.queue.barrier().wait(LONG)
            trace.devices[0].profile.flush(LONG)
            waiting = device.queue.barrier(wait=device.semaphore().at(1))
            server.kill()
            with pytest.raises((BrokenError, DeviceLostError)):
                waiting.wait(LONG)
        told = json.loads(path.read_text())
    check_events(told["traceEvents"])
    assert len(spans(told["traceEvents"], "barrier", pid=2)) == 1
    assert told["otherData"]["devices"][0]["ended"]
    assert not any(thread.name.startswith(("remora trace", "remora profile")) for thread in threading.enumerate())
