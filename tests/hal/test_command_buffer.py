"""Command buffers and events over host queues (H18, H21): where a recording runs, what a driver is told, and how waits end."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.errors import ClosedError, DeadlineError, DeviceError, UnsupportedError, UsageError
from remora.hal.executable import BindingRule, KernelInfo
from remora.hal.host_queue import INLINE_NS, HostQueue
from remora.hal.records import EventAction, EventRecord, LabelRecord, Slot, label_path, resolve
from remora.hal.target import Target

LONG = 20.0


def load(device, **functions):
    infos = [KernelInfo(name, (BindingRule("data"),)) for name in functions]
    return device.load_artifact(Target("python", "any"), functions, infos)


def test_h18_a_short_recording_runs_on_the_submitting_thread(device):
    where = []
    kernels = load(device, look=lambda grid, memories, constants: where.append(threading.current_thread()))
    buffer = device.allocate(4)
    with device.command_buffer() as commands:
        for _ in range(3):
            commands.dispatch(kernels["look"], (1, 1, 1), [buffer])
    assert device.queue.execute(commands).done
    assert where == [threading.current_thread()] * 3
    assert device.queue._worker is None


def test_h18_the_costs_of_all_records_count(device):
    where = []
    kernels = load(device, look=lambda grid, memories, constants: where.append(threading.current_thread()))
    device.queue.cost_ns = INLINE_NS / 4
    buffer = device.allocate(4)
    with device.command_buffer() as commands:
        for _ in range(4):
            commands.dispatch(kernels["look"], (1, 1, 1), [buffer])
    device.queue.execute(commands).wait(LONG)
    assert where == [device.queue._worker] * 4


def test_h21_a_recording_that_waits_never_holds_the_submitting_thread(device):
    event = device.event()
    with device.allocate(4) as buffer:
        with device.command_buffer() as commands:
            commands.wait_event(event)
            commands.fill(buffer, b"x")
        done = device.queue.execute(commands)
        assert not done.done
        event.signal()
        done.wait(LONG)
        assert bytes(buffer.memory) == b"xxxx"


def test_h21_closing_the_queue_ends_a_wait_inside_a_recording_and_names_the_record(device):
    started = device.event()
    signal = device.semaphore()
    with device.command_buffer() as commands:
        commands.push_label("step")
        commands.signal_event(started)
        commands.wait_event(device.event())
        commands.pop_label()
    done = device.queue.execute(commands, signal=signal.at(1))
    behind = device.queue.barrier()
    started.wait(LONG)
    device.close()
    for point in (done, signal.at(1), behind):
        with pytest.raises(ClosedError):
            point.wait(LONG)
    with pytest.raises(ClosedError, match=r"record 2 \(step\)"):
        done.wait(LONG)


def test_h05_an_event_that_fails_fails_the_recording_that_waits(device):
    event, started = device.event(), device.event()
    with device.command_buffer() as commands:
        commands.signal_event(started)
        commands.wait_event(event)
    done = device.queue.execute(commands)
    started.wait(LONG)
    event._timeline.fail(DeviceError("the pump is broken"))
    with pytest.raises(DeviceError, match="record 1: the pump is broken"):
        done.wait(LONG)


@pytest.mark.parametrize(
    ("error", "message"),
    [(DeviceError("no paper"), r"record 2 \(print\): no paper"), (KeyError("x"), r"record 2 \(print\): KeyError: 'x'")],
)
def test_h26_what_a_record_raises_fails_the_queue_and_names_the_record(device, error, message):
    def fail(grid, memories, constants):
        raise error

    kernels = load(device, fail=fail)
    with device.allocate(8) as buffer:
        with device.command_buffer() as commands:
            commands.fill(buffer.view(0, 4), b"x")
            commands.push_label("print")
            commands.dispatch(kernels["fail"], (1, 1, 1), [buffer])
            commands.fill(buffer.view(4), b"y")
            commands.pop_label()
        failing = device.queue.execute(commands)
        with pytest.raises(DeviceError, match=message):
            failing.wait(LONG)
        with pytest.raises(DeviceError, match=message):
            device.queue.barrier()
        assert bytes(buffer.memory) == b"xxxx" + bytes(4)


def test_h18_a_driver_without_command_buffers_says_so(device, monkeypatch):
    buffer = device.allocate(4)
    with device.command_buffer() as commands:
        commands.fill(buffer)
    monkeypatch.setattr(type(device.queue), "_step", HostQueue._step)
    with pytest.raises(UnsupportedError, match="one by one"):
        device.queue.execute(commands)


def test_h18_a_driver_that_takes_grids_from_the_host_only_says_so(device):
    kernels = load(device, look=lambda grid, memories, constants: None)
    with device.allocate(12) as grid:
        with device.command_buffer() as commands:
            commands.fill(grid, b"x")
            commands.dispatch_indirect(kernels["look"], grid, [grid])
        with pytest.raises(UnsupportedError, match="from the host only"):
            device.queue.execute(commands)
        assert bytes(grid.memory) == bytes(12)


@pytest.fixture
def told(device, monkeypatch):
    """What the device was told of its command buffers, in order."""
    calls = []
    monkeypatch.setattr(device, "_prepare", lambda commands: calls.append(("prepare", commands)))
    monkeypatch.setattr(device, "_discard", lambda commands: calls.append(("discard", commands)))
    return calls


def test_h18_the_driver_hears_of_seal_and_close_once(device, told):
    commands = device.command_buffer()
    commands.seal()
    commands.seal()
    commands.close()
    commands.close()
    assert told == [("prepare", commands), ("discard", commands)]


def test_h18_the_driver_hears_nothing_of_what_was_never_sealed(device, told):
    device.command_buffer().close()
    with pytest.raises(KeyError), device.command_buffer():
        raise KeyError
    assert told == []


def test_h18_a_refused_seal_leaves_the_recording_open(device, monkeypatch):
    def refuse(commands):
        raise UsageError("too long")

    commands = device.command_buffer()
    with monkeypatch.context() as patched:
        patched.setattr(device, "_prepare", refuse)
        with pytest.raises(UsageError, match="too long"):
            commands.seal()
    with device.allocate(4) as buffer:
        commands.fill(buffer)
        device.queue.execute(commands.seal()).wait(LONG)


def test_h18_one_of_many_threads_gets_the_one_shot(device):
    with device.command_buffer(one_shot=True) as commands:
        pass
    start = threading.Barrier(8)

    def execute(index):
        start.wait(LONG)
        try:
            device.queues[index % 2].execute(commands).wait(LONG)
        except UsageError:
            return 0
        return 1

    with ThreadPoolExecutor(8) as executor:
        assert sum(executor.map(execute, range(8))) == 1


def test_h18_labels_and_events_are_records(device):
    event = device.event()
    with device.command_buffer(label="whole") as commands:
        commands.push_label("a")
        commands.wait_event(event)
        commands.push_label("b")
        commands.signal_event(event)
        commands.pop_label()
        commands.reset_event(event)
        commands.pop_label()
    assert commands.records == [
        LabelRecord("a"),
        EventRecord(event, EventAction.WAIT),
        LabelRecord("b"),
        EventRecord(event, EventAction.SIGNAL),
        LabelRecord(""),
        EventRecord(event, EventAction.RESET),
        LabelRecord(""),
    ]
    assert commands.label == "whole"
    paths = [label_path(commands.records, number) for number in range(8)]
    assert paths == ["", "a", "a", "a/b", "a/b", "a", "a", ""]


def test_h18_a_slot_means_a_part_of_its_entry(device):
    with device.allocate(32) as buffer:
        table = [buffer, buffer.view(8, 16)]
        assert resolve(buffer, table) is buffer
        assert resolve(Slot(0), table) is buffer
        assert resolve(Slot(1, 0, 16), table) is table[1]
        for slot, expected in ((Slot(1, 4), (12, 12)), (Slot(1, 4, 3), (12, 3)), (Slot(0, 32), (32, 0))):
            view = resolve(slot, table)
            assert (view.buffer, view.offset, view.size) == (buffer, *expected)
        for slot in (Slot(1, 17), Slot(1, 8, 9)):
            with pytest.raises(UsageError, match="not inside 16 bytes"):
                resolve(slot, table)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["signal", "reset", "query", "point"]), max_size=30))
def test_h21_an_event_is_a_flag_and_a_signal_releases_all_who_wait(make_device, steps):
    with make_device() as device:
        event, state, points = device.event(), False, []
        for step in steps:
            if step == "signal":
                event.signal()
                state = True
                assert all(point.done for point in points)
            elif step == "reset":
                event.reset()
                state = False
            elif step == "point":
                points.append(event._set_point())
                assert points[-1].done is state
            assert event.query() is state


def test_h21_many_threads_may_signal_and_reset_at_once(device):
    event = device.event()

    def turn(index):
        for _ in range(200):
            event.signal() if index % 2 else event.reset()
        return event._timeline.value

    with ThreadPoolExecutor(4) as executor:
        assert max(executor.map(turn, range(4))) <= 800
    event.reset()
    with pytest.raises(DeadlineError):
        event.wait(0.001)
    event.signal()
    event.wait(LONG)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.integers(0, 6)), min_size=1, max_size=6),
    st.integers(0, 40),
    st.integers(0, 40),
)
def test_h18_copies_of_slots_are_refused_when_they_overlap_and_only_then(make_device, copies, first, second):
    with make_device() as device, device.allocate(64) as buffer, device.command_buffer(slots=2) as commands:
        for source, target, size in copies:
            commands.copy(Slot(0, source), Slot(1, target), size)
        commands.seal()
        overlap = any(
            set(range(first + source, first + source + size)) & set(range(second + target, second + target + size))
            for source, target, size in copies
        )
        table = [buffer.view(first), buffer.view(second)]
        if overlap:
            with pytest.raises(UsageError, match="overlap"):
                device.queue.execute(commands, table)
        else:
            device.queue.execute(commands, table).wait(LONG)
