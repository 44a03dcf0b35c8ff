"""Profiles of local devices (H24): labels, bounded memory, nothing when it is off, and any mixture of calls against an oracle."""

import gc
import sys
import threading
import tracemalloc
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import remora
from remora.errors import DeadlineError, Error, UnsupportedError
from remora.hal import host_profile, operation, profile, profiled_queue
from remora.hal.operation import OperationKind as K

LONG = 20.0
MODULES = [module.__file__ for module in (profile, profiled_queue, host_profile, operation)]


@pytest.fixture(params=["cpu", "null"])
def device(request):
    with remora.open(request.param) as device:
        yield device


def test_h24_labels_are_nested_spans_where_records_run_one_by_one():
    records = []
    with remora.open("null") as device, device.allocate(8) as buffer, device.profile(records.extend) as on:
        with device.command_buffer(label="step") as commands:
            commands.push_label("forward")
            commands.fill(buffer, b"a")
            commands.barrier()
            commands.push_label("layer")
            commands.fill(buffer, b"b")
            commands.pop_label()
            commands.pop_label()
            commands.fill(buffer, b"c")
        device.queue.execute(commands).wait(LONG)
        assert bytes(buffer.read(timeout=LONG)) == b"c" * 8
        on.flush(LONG)
    layer, forward, whole, _ = records
    assert [(record.kind, record.name, record.label, record.value) for record in records[:3]] == [
        (K.LABEL, "layer", "forward/layer", 1),
        (K.LABEL, "forward", "forward", 1),
        (K.EXECUTE, "", "step", 1),
    ]
    assert whole.start_ns <= forward.start_ns <= layer.start_ns <= layer.end_ns <= forward.end_ns <= whole.end_ns
    assert {record.submit_ns for record in (layer, forward, whole)} == {whole.submit_ns}


def test_h24_labels_that_a_failure_leaves_open_have_failed():
    records = []
    with remora.open("null") as device, device.profile(records.extend) as on:
        event = device.event()
        with device.command_buffer() as commands:
            commands.push_label("never ends")
            commands.wait_event(event)
            commands.pop_label()
        done = device.queue.execute(commands)
        event._timeline.fail(Error("the event broke"))
        with pytest.raises(Error, match="the event broke"):
            done.wait(LONG)
        on.flush(LONG)
    assert [(record.kind, record.failed) for record in records] == [(K.LABEL, True), (K.EXECUTE, True)]


def test_h24_a_recording_that_cpu_runs_in_one_call_is_one_record():
    records = []
    with remora.open("cpu") as device, device.allocate(8) as buffer, device.profile(records.extend) as on:
        with device.command_buffer() as commands:
            commands.push_label("here")
            commands.fill(buffer, b"a")
            commands.pop_label()
        device.queue.execute(commands).wait(LONG)
        on.flush(LONG)
    assert [record.kind for record in records] == [K.EXECUTE]


def test_h24_what_a_slow_sink_leaves_no_room_for_is_dropped_and_counted(device, monkeypatch):
    monkeypatch.setattr(type(device), "_new_profile", lambda device, sink: host_profile.HostProfile(device, sink, 64))
    began, go, records = threading.Event(), threading.Event(), []

    def take(batch):
        began.set()
        assert go.wait(LONG)
        records.extend(batch)

    with device.profile(take) as on:
        first = device.queue.barrier()
        first.wait(LONG)
        assert began.wait(LONG)
        for _ in range(200):
            device.queue.barrier()
        device.queue.wait_idle(LONG)
        assert on.dropped == 201 - 64
        assert "137 dropped" in repr(on)
        go.set()
        on.flush(LONG)
        device.queue.barrier().wait(LONG)
    values = [record.value - first.value for record in records]
    assert values == [*range(65), 202]


def test_h24_an_end_that_runs_out_of_time_has_ended_and_says_so(device):
    go = threading.Event()
    on = device.profile(lambda _: go.wait(LONG))
    device.queue.barrier().wait(LONG)
    with pytest.raises(DeadlineError, match=r"did not take all records within 0.02 s"):
        on.end(0.02)
    assert device._profile is None
    go.set()
    on._thread.join(LONG)
    assert on.failure is None
    with device.profile(lambda _: None):
        pass


def test_h24_a_flush_that_an_end_cuts_short_says_so(device):
    """The other thread's `end` ran out of time and threw away what was left; the flush must not claim that the sink took it."""
    began, go, failures = threading.Event(), threading.Event(), []

    def take(records):
        began.set()
        assert go.wait(LONG)

    on = device.profile(take)
    device.queue.barrier().wait(LONG)
    assert began.wait(LONG)
    device.queue.barrier().wait(LONG)
    on._ask(failures.append)
    with pytest.raises(DeadlineError):
        on.end(0.02)
    assert on.dropped == 1
    go.set()
    on._thread.join(LONG)
    (failure,) = failures
    assert "ended before its sink took all records" in str(failure)


def test_h24_h27_a_sink_may_close_the_device():
    with remora.open("null") as device:
        on = device.profile(lambda _: device.close())
        device.queue.barrier().wait(LONG)
        on._thread.join(LONG)
        assert not on._thread.is_alive()
        assert device.closed
        on.end(LONG)


def test_h24_a_driver_without_times_says_so(monkeypatch):
    monkeypatch.setattr("remora.drivers.null.device.NullDevice._new_profile", remora.Device._new_profile)
    with remora.open("null") as device, pytest.raises(UnsupportedError, match="keeps no times"):
        device.profile(lambda _: None)


def test_h24_what_was_submitted_before_it_began_and_ends_after_it_is_no_trouble(device):
    records, gate = [], device.semaphore()
    with device.allocate(8) as buffer:
        device.queue.barrier(wait=gate.at(1))
        device.queue.fill(buffer, b"a")
        with device.profile(records.extend):
            device.queue.fill(buffer, b"b")
        gate.signal(1)
        assert bytes(buffer.read(timeout=LONG)) == b"b" * 8
    assert records == []


def test_h24_a_profile_that_is_off_allocates_nothing_and_leaves_the_queues_own_methods(device):
    kind = type(device.queue)
    with device.profile(lambda _: None):
        assert type(device.queue) is not kind
        assert isinstance(device.queue, kind)
    assert {type(queue) for queue in device.queues} == {kind}
    with device.allocate(64) as buffer:
        tracemalloc.start()
        try:
            for _ in range(100):
                device.queue.fill(buffer, b"a")
            device.queue.wait_idle(LONG)
            traces = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, file) for file in MODULES])
        finally:
            tracemalloc.stop()
    assert traces.traces is not None
    assert sum(trace.size for trace in traces.statistics("filename")) == 0


def test_h24_a_profile_that_is_off_runs_no_line_of_its_own(device):
    ran = set()
    with device.allocate(64) as buffer:
        sys.setprofile(lambda frame, *_: ran.add(frame.f_code.co_filename))
        try:
            device.queue.fill(buffer, b"a").wait(LONG)
        finally:
            sys.setprofile(None)
    assert ran.isdisjoint(MODULES)
    assert any(file.endswith("host_queue.py") for file in ran)


def test_h24_an_ended_profile_is_forgotten(device):
    class Sink:
        def take(self, records):
            pass

    sink = Sink()
    gone = weakref.ref(sink)
    with device.profile(sink):
        device.queue.barrier().wait(LONG)
    del sink
    gc.collect()
    assert gone() is None


@settings(deadline=None, max_examples=40)
@given(steps=st.lists(st.sampled_from(["begin", "end", "flush", "fill", "barrier", "other", "fail"]), max_size=30))
def test_h24_any_mixture_against_an_oracle(steps):
    """What is submitted while a profile is on is told once, in order; a flush has told all; nothing else is told."""
    told, expected, on, broken = [], [], None, False

    def take(records):
        if broken:
            raise ValueError("broken")
        told.extend((record.queue, record.kind) for record in records)

    with remora.open("null") as device, device.allocate(8) as buffer:
        for step in steps:
            if step == "begin" and on is None:
                on = device.profile(take)
            elif step in ("end", "flush") and on is not None:
                getattr(on, step)(LONG)
                assert told == expected
                on = None if step == "end" else on
            elif step == "fail" and on is not None:
                broken = True
                device.queue.barrier()
                with pytest.raises(Error, match="ValueError: broken"):
                    on.end(LONG)
                on, broken = None, False
                expected = list(told)
            elif step in ("fill", "barrier", "other"):
                queue = device.queues[step == "other"]
                point = queue.fill(buffer, b"a") if step == "fill" else queue.barrier()
                point.wait(LONG)
                if on is not None:
                    expected.append((queue.ordinal, K.FILL if step == "fill" else K.BARRIER))
    assert told == expected
