"""Invariants 1 to 7 and 13 of a remote HAL: epochs, waiters, failures, releases, parking, and data that races its command."""

import os
import signal
import threading
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.invariants.steps import blocked, bytes_of, contents, deliver, fill, frames_of, upload
from tests.remote.processes import go_on, stop
from tests.remote.raw import raw_client
from tests.session.pair import AXIS, Pair

import remora
from remora import samples
from remora.drivers.remote.semaphore import RemoteSemaphore
from remora.errors import DeviceError, DeviceLostError, NotFoundError, OutOfMemoryError, PeerError
from remora.session.events import Failed
from remora.session.state import Lane
from remora.testing.cts.hal_factory import LONG, SHORT, background
from remora.wire import commands
from remora.wire.bulk import CREDIT, decode_bulk
from remora.wire.queue import encode_release

VECTOR, FAULTS = samples.load("vector"), samples.load("faults")
EMPTY = [info.name for info in VECTOR.kernels].index("empty")


@pytest.mark.parametrize("scarce", ["window", "outbox"])
def test_invariant_01_an_epoch_is_taken_only_after_admission(serve, monkeypatch, scarce):
    """H12: a submission that the window or the outbox refuses has no epoch yet, so backpressure leaves no hole in the timeline."""
    server = serve(**({"window": 4} if scarce == "window" else {}))
    with remora.open(f"{server.uri}?deadline=30") as device:
        queue, host = device.queue, device.host
        target = device.allocate(1 << 16)
        submit = queue.barrier if scarce == "window" else partial(queue.update, target, bytes(1 << 16))
        points = [submit()]
        points[0].wait(LONG)
        refused, wait_for_room = threading.Event(), host.wait_for_room
        monkeypatch.setattr(host, "wait_for_room", lambda: (refused.set(), wait_for_room()))
        (pid,) = server.session_pids()
        stop(pid)
        try:
            submission = host.link.session.submission
            while submission.in_flight < submission.limit and not host.crowded():
                points.append(submit())
            late = background(submit)
            assert refused.wait(LONG)
            assert submission.submitted(queue.axis) == len(points)
            assert not late.done()
        finally:
            go_on(pid)
        points.append(late.result(LONG))
        for point in points:
            point.wait(LONG)
        assert [point.value for point in points] == list(range(1, len(points) + 1))
        assert queue.timeline.value == submission.submitted(queue.axis) == len(points)


@pytest.mark.parametrize("what", ["waiter", "mapping"])
def test_invariant_02_waiter_and_mapping_are_there_before_the_command_can_go(device, monkeypatch, what):
    """H12: while they are being registered nobody, on any thread, can send the command that they belong to."""
    link, checked = device.host.link, []
    place, name = (device.host, "expect_result") if what == "waiter" else (RemoteSemaphore, "expect")
    register = getattr(place, name)

    def registering(*args):
        before = link.carriers[Lane.QUEUE].statistics().bytes_sent
        assert link.session.pending(Lane.QUEUE) > 0  # the command is written
        flushing = background(lambda: link.flush(Lane.QUEUE))
        with suppress(TimeoutError):  # it waits for the lock, or leaves the bytes to the link's thread, which waits for it
            flushing.result(SHORT)
        assert link.session.pending(Lane.QUEUE) > 0
        assert link.carriers[Lane.QUEUE].statistics().bytes_sent == before
        checked.append(flushing)
        return register(*args)

    buffer, into, semaphore = device.upload(b"data"), bytearray(4), device.semaphore()
    monkeypatch.setattr(place, name, registering)
    device.queue.read(buffer, into, signal=semaphore.at(3)).wait(LONG)
    monkeypatch.undo()
    semaphore.wait(3, LONG)
    assert into == b"data"
    assert checked
    for flushing in checked:
        flushing.result(LONG)


@pytest.mark.parametrize("fault", ["gate", "command", "session"])
def test_invariant_03_every_signal_fails_exactly_once(serve, fault):
    """H13: whatever ends an operation half way, all that it would have signalled fails with the cause, once each."""
    server = serve(flags=("--session-memory", "1MiB"))
    heard, told = [], threading.Semaphore(0)
    with remora.open(server.uri) as device:
        gate, signals = device.semaphore(), [device.semaphore() for _ in range(3)]
        target = device.allocate(64 if fault != "command" else 2 << 20)

        def hear(number):
            heard.append(number)
            told.release()

        device.queue.fill(target, wait=gate.at(1), signal=[semaphore.at(5) for semaphore in signals])
        for number, semaphore in enumerate(signals):
            semaphore.on(5, partial(hear, number))
        if fault == "gate":
            gate.fail(DeviceError("the gate is gone"))
        elif fault == "command":
            gate.signal(1)
        else:
            os.kill(server.session_pids()[0], signal.SIGKILL)
        kind, message = {
            "gate": (DeviceError, "the gate is gone"),
            "command": (OutOfMemoryError, "quota of memory"),
            "session": (DeviceLostError, "SIGKILL"),
        }[fault]
        for semaphore in signals:
            with pytest.raises(kind, match=message):
                semaphore.wait(5, LONG)
            assert semaphore.value == 0
            assert told.acquire(timeout=LONG)
        assert len({str(semaphore.failure) for semaphore in signals}) == 1
    assert sorted(heard) == [0, 1, 2]


EPOCHS = range(1, 9)


@settings(deadline=None, max_examples=150)
@given(order=st.permutations(EPOCHS), bad=st.sets(st.sampled_from(EPOCHS), max_size=3), reported=st.sets(st.sampled_from(EPOCHS)))
def test_invariant_04_advance_is_contiguous_and_fails_once(order, bad, reported):
    """H12: completions in any order; the client sees growing prefixes, then exactly one failure, of the first that failed."""
    pair = Pair.up()
    pair.submit(len(EPOCHS))
    seen, done = [], set()
    for epoch in order:
        pair.server.completion[AXIS].complete(epoch, DeviceError(f"epoch {epoch}") if epoch in bad else None)
        done.add(epoch)
        if epoch in reported or epoch == order[-1]:
            pair.server.advance(AXIS)
            fresh = pair.move_queue(pair.server)
            assert all(set(range(1, event.epoch + 1)) <= done for event in fresh)
            seen += fresh
    first_bad = min(bad, default=len(EPOCHS) + 1)
    good = [event.epoch for event in seen if event.failure is None]
    assert good == sorted(set(good))
    assert good[-1:] == ([first_bad - 1] if first_bad > 1 else [])
    assert [(event.epoch, event.failure.message) for event in seen if event.failure is not None] == [
        (epoch, f"epoch {epoch}") for epoch in EPOCHS if epoch == first_bad
    ]
    assert not bad or seen[-1].failure is not None
    assert pair.client.submission.in_flight == 0


def test_invariant_04_a_kernel_that_fails_ends_its_axis_once_after_what_succeeded(device):
    """The same with a real kernel on a real server: everything before it is done, everything behind it fails with its cause."""
    fail = device.load(FAULTS)["fail"]
    before = [device.queue.barrier() for _ in range(5)]
    failed = device.queue.dispatch(fail, (1, 1, 1), [], (7,))
    behind = device.queue.barrier()
    causes = []
    for point in (failed, behind):
        with pytest.raises(DeviceError) as caught:
            point.wait(LONG)
        causes.append(str(caught.value))
    assert causes[0] == causes[1]
    assert all(point.done for point in before)
    assert device.queue.timeline.value == before[-1].value
    device.queues[1].barrier().wait(LONG)


def test_invariant_05_a_release_follows_submission_and_neither_completion_nor_arrival(raw):
    """H15: an id is gone once the commands before its release are submitted; what runs keeps the memory it names."""
    held = blocked(raw, 0, 1)
    buffer = raw.session.allocate(0, 64)
    filled = fill(raw, 0, buffer, 64, b"x")  # cannot run before the upload is there
    raw.session.release([buffer])
    late = fill(raw, 1, buffer, 64, b"y")
    raw.send()
    assert isinstance(raw.advanced(1, late).failure, NotFoundError)
    assert not [epoch for epoch, _ in raw.progress(0) if epoch >= held]
    deliver(raw, 1, b"x")
    assert raw.advanced(0, filled).failure is None
    raw.carriers[Lane.QUEUE].send_all(encode_release(99, [buffer]), timeout=LONG)
    error = raw.failed()
    assert isinstance(error, PeerError)
    assert "a RELEASE after 99 commands" in str(error)


def test_invariant_05_a_release_waits_for_commands_that_are_parked(raw):
    executable, artifact = raw.begin_load(VECTOR)
    buffer = raw.session.allocate(0, 64)
    parked = raw.command(0, commands.DISPATCH, commands.encode_dispatch(executable, EMPTY, (1, 1, 1), [], b""))
    filled = fill(raw, 0, buffer, 64, b"x")
    raw.session.release([buffer, executable])
    other = raw.command(1, commands.BARRIER)
    raw.send()
    raw.advanced(1, other)
    assert not [epoch for epoch, _ in raw.progress(0) if epoch >= parked]
    raw.send_artifact(artifact)
    assert raw.advanced(0, filled).failure is None


def test_invariant_06_what_is_done_is_satisfied_though_nobody_remembers_it(raw):
    """H12: the server keeps nothing of an epoch that was reported; waiting for it is no wait."""
    for _ in range(100):
        last = raw.command(0, commands.BARRIER)
    raw.send()
    raw.advanced(0, last)
    for epoch in (1, last // 2, last):
        waiting = raw.command(1, commands.BARRIER, waits=((raw.axes[0], epoch),))
        raw.send()
        assert raw.advanced(1, waiting).failure is None


@pytest.mark.parametrize("unknown", ["epoch", "axis"])
def test_invariant_06_what_was_never_submitted_is_an_error_and_no_wait(raw, unknown):
    last = raw.command(0, commands.BARRIER)
    raw.send()
    entry = (raw.axes[0], last + 1) if unknown == "epoch" else (raw.axes[-1] + (1 << 24), 1)
    raw.command(1, commands.BARRIER, waits=(entry,))
    raw.send()
    error = raw.failed()
    assert isinstance(error, PeerError)
    assert "which was not submitted before it" in str(error)


def test_invariant_07_a_parked_command_owns_its_bytes(raw):
    """H14: its receive buffer is used again and again while it waits, and what it carries stays."""
    executable, artifact = raw.begin_load(VECTOR)
    size, sizes = commands.MAX_INLINE, (16, 1000, 5000, 20_000)
    targets, other = [raw.session.allocate(0, size) for size in sizes], raw.session.allocate(0, size)
    data = [os.urandom(size) for size in sizes]
    raw.command(0, commands.DISPATCH, commands.encode_dispatch(executable, EMPTY, (1, 1, 1), [], b""))
    for target, part in zip(targets, data, strict=True):
        parked = raw.command(0, commands.UPDATE, commands.encode_update(target, 0, memoryview(part)))
    raw.send()
    for turn in range(64):  # more than all receive buffers of the lane
        flood = raw.command(1, commands.UPDATE, commands.encode_update(other, 0, memoryview(bytes([turn]) * size)))
        raw.send()
    raw.advanced(1, flood)
    assert raw.progress(0) == []
    raw.send_artifact(artifact)
    assert raw.advanced(0, parked).failure is None
    assert [contents(raw, 0, target, size) for target, size in zip(targets, sizes, strict=True)] == data


def test_invariant_07_a_command_that_is_refused_is_not_parked(serve):
    """What could refuse a command is looked at before it is parked: the session ends, and leaves neither process nor slot."""
    server = serve(max_sessions=1)
    with remora.open(server.uri) as device:
        device.queue.barrier().wait(LONG)
    server.wait_for("session 1 ended")
    with raw_client(server.uri) as raw:
        executable, _ = raw.begin_load(VECTOR)
        raw.command(0, commands.DISPATCH, commands.encode_dispatch(executable, EMPTY, (1, 1, 1), [], b""))
        raw.command(0, commands.BARRIER, waits=((raw.axes[0], 77),))  # behind the parked one, and wrong
        raw.send()
        assert "which was not submitted before it" in str(raw.failed())
    server.wait_for("session 2 ended")
    with remora.open(server.uri, retry=LONG) as device:
        device.queue.barrier().wait(LONG)


SIZE = 100_000


@pytest.mark.parametrize("first", ["command", "bytes"])
def test_invariant_13_command_and_bytes_come_in_either_order(raw, first):
    """H25: two lanes race; neither order loses or doubles anything."""
    buffer, data = raw.session.allocate(0, SIZE), os.urandom(SIZE)
    start, chunk, end = frames_of(1, data)
    bulk = raw.carriers[Lane.BULK]
    if first == "bytes":
        bulk.send_all(start, chunk, timeout=LONG)
    epoch = upload(raw, 0, buffer, SIZE, 1)
    raw.send()
    header = bytearray(24)
    raw.read_bulk(header)  # the command is there: its transfer may come whole
    assert decode_bulk(header)[:3] == (CREDIT, 1, SIZE)
    bulk.send_all(*((start, chunk, end) if first == "command" else (end,)), timeout=LONG)
    assert raw.advanced(0, epoch).failure is None
    assert bytes_of(raw, 0, buffer, SIZE) == data


def test_invariant_13_bytes_that_are_there_wait_for_what_their_command_waits_for(raw):
    """The upload's frontier holds back the write, though every byte of it has arrived."""
    buffer, other = raw.session.allocate(0, SIZE), raw.session.allocate(0, SIZE)
    filled = fill(raw, 0, buffer, SIZE, b"o")
    gate = blocked(raw, 1, 1)
    late = upload(raw, 0, buffer, SIZE, 3, waits=((raw.axes[1], gate),))
    raw.send()
    raw.advanced(0, filled)
    deliver(raw, 3, b"n" * SIZE)
    behind = upload(raw, 2, other, SIZE, 5)
    raw.send()
    deliver(raw, 5, b"x" * SIZE)  # the lane keeps its order: when this has arrived, so has the one before
    assert raw.advanced(2, behind).failure is None
    assert contents(raw, 3, buffer, 64) == b"o" * 64
    assert not [epoch for epoch, _ in raw.progress(0) if epoch >= late]
    deliver(raw, 1, b"x")
    assert raw.advanced(0, late).failure is None
    assert bytes_of(raw, 3, buffer, SIZE) == b"n" * SIZE
    assert not [event for event in raw.events if isinstance(event, Failed)]
