"""H24: the relay of a profile: a window, a slow client that costs nothing, a server that dies, and frames that no driver sends."""

import os
import signal
import threading
from time import monotonic_ns

import pytest
from tests.remote.raw import LONG

import remora
from remora.errors import BrokenError, DeadlineError, DeviceLostError, Error, NotFoundError, PeerError, UsageError
from remora.hal.operation import OperationKind as K
from remora.session.events import Profiled, Responded
from remora.session.state import Lane
from remora.wire import commands
from remora.wire.control import encode_control
from remora.wire.method import Done
from remora.wire.profile import MAX_RECORDS, WINDOW, ProfileRecord, Records, Taken
from remora.wire.profile_calls import ClockIs, ClockRead, ProfileBegin, ProfileEnd, ProfileFlush

#: More records than a profile, the window and the sink's hands hold together.
MANY = (1 << 16) + 1000 + (WINDOW + 8) * MAX_RECORDS


def test_h24_times_are_on_this_sides_clock_and_inside_what_the_program_saw(device):
    records, seen = [], []
    with device.allocate(64) as buffer, device.profile(records.extend) as profile:
        for _ in range(50):
            before = monotonic_ns()
            device.queue.fill(buffer, b"a").wait(LONG)
            seen.append((before, monotonic_ns()))
        profile.flush(LONG)
        error = profile.clock.error_ns
    assert len(records) == 50
    for (before, after), record in zip(seen, records, strict=True):
        assert before <= record.submit_ns <= after
        assert before - error <= record.start_ns <= record.end_ns <= after + error


def test_h24_the_clock_is_estimated_where_the_two_sides_have_different_ones(device, monkeypatch):
    monkeypatch.setattr("remora.drivers.remote.profile.clock_name", lambda: 1)
    records = []
    with device.profile(records.extend) as profile:
        first = profile.clock
        before = monotonic_ns()
        device.queue.barrier().wait(LONG)
        after = monotonic_ns()
        profile.flush(LONG)
        offset, error = profile.clock
    assert 0 < error < 1_000_000_000
    assert abs(offset) <= error  # it is the same clock after all
    (record,) = records
    error = max(first.error_ns, error) + 1_000_000  # drift in between
    assert before - error <= record.start_ns <= record.end_ns <= after + error


@pytest.mark.interpreted
@pytest.mark.usefixtures("only_who_waits_reads")
def test_h16_h24_records_cost_the_program_no_round_trips(device):
    with device.allocate(64) as buffer, device.profile(lambda _: None):
        device.queue.wait_idle(LONG)
        before = device.link_statistics().round_trips
        device.queue.fill(buffer, b"a")
        assert bytes(buffer.read(timeout=LONG)) == b"a" * 64
        assert device.link_statistics().round_trips - before == 1


def test_h24_a_slow_sink_makes_the_server_drop_and_delays_no_work(serve):
    """Labels are records too, where records run one by one: so a few operations make many."""
    began, go, records = threading.Event(), threading.Event(), []

    def take(batch):
        began.set()
        assert go.wait(LONG)
        records.extend(batch)

    with remora.open(serve(device="null").uri) as device:
        with device.command_buffer() as commands:
            for number in range(999):
                commands.push_label(f"{number}")
                commands.pop_label()
        with device.profile(take) as profile:
            points = [device.queue.execute(commands) for _ in range(MANY // 1000)]
            device.queue.wait_idle(LONG)
            assert began.wait(LONG)
            assert records == []
            go.set()
            profile.flush(LONG)
            dropped = profile.dropped
    assert dropped > 0
    assert len(records) + dropped == 1000 * len(points) + 1
    order = [(record.value, int(record.name or 999)) for record in records]
    assert order == sorted(set(order))
    assert order[0] == (points[0].value, 0)


def test_h24_a_host_call_has_the_times_of_the_call(device):
    records, times = [], []

    def call():
        times.append(monotonic_ns())
        threading.Event().wait(0.005)
        times.append(monotonic_ns())

    with device.profile(records.extend) as profile:
        point = device.queue.host_call(call)
        point.wait(LONG)
        profile.flush(LONG)
    (record,) = records
    assert (record.kind, record.value) == (K.HOST_CALL, point.value)
    assert record.submit_ns <= record.start_ns <= times[0] <= times[1] <= record.end_ns


@pytest.mark.parametrize("whom", ["session", "server"])
def test_h24_a_killed_server_ends_the_profile_and_the_sink_has_what_came(serve, whom):
    server, records, came = serve(), [], threading.Event()

    def take(batch):
        records.extend(batch)
        came.set()

    with remora.open(server.uri) as device:
        profile = device.profile(take)
        done = device.queue.barrier()
        done.wait(LONG)
        assert came.wait(LONG)  # by itself, nobody asked
        waiting = device.queue.barrier(wait=device.semaphore().at(1))
        if whom == "server":
            server.kill()
        else:
            os.kill(server.session_pids()[0], signal.SIGKILL)
        with pytest.raises((BrokenError, DeviceLostError)) as caught:
            waiting.wait(LONG)
        for call in (profile.flush, profile.end):
            with pytest.raises(type(caught.value)):
                call(LONG)
        assert type(profile.failure) is type(caught.value)
        assert [record.value for record in records] == [done.value]
        with pytest.raises((BrokenError, DeviceLostError)):
            device.profile(take)
        assert device._profile is None


def test_h24_closing_the_connection_ends_the_profile_of_each_device(serve):
    server, records = serve(device=("null", "cpu")), []
    with remora.connect(server.uri) as host:
        profiles = [device.profile(records.extend) for device in host.devices]
        for device in host.devices:
            device.queue.barrier().wait(LONG)
    assert [record.kind for record in records] == [K.BARRIER] * 2
    for profile in profiles:
        profile.end(LONG)
        assert not profile._thread.is_alive()


def test_h24_a_server_that_ends_the_session_ends_the_profile(serve):
    server = serve()
    with remora.open(server.uri) as device:
        profile = device.profile(lambda _: None)
        server.stop()
        with pytest.raises(BrokenError, match="ended the session"):
            while True:
                profile.flush(LONG)
        assert isinstance(profile.failure, BrokenError)


def test_h25_a_server_that_does_not_keep_to_the_window_is_given_up(serve):
    go = threading.Event()
    with remora.open(serve().uri) as device:
        profile = device.profile(lambda _: go.wait(LONG))
        ran = ProfileRecord(1, False, 0, "", "", (0, 0, 0), 0, 1, 1, 2, 3, 0)
        for sequence in range(1, WINDOW + 2):
            device.host.profiles.arrived(Records(profile._number, sequence, 0, (ran,)))
        go.set()
        with pytest.raises(PeerError, match=f"{WINDOW} others wait for the sink"):
            profile.flush(LONG)


def test_h24_records_of_a_profile_that_has_ended_are_thrown_away(device):
    got = []
    with device.profile(got.extend) as profile:
        device.queue.barrier().wait(LONG)
    seen = list(got)
    ran = ProfileRecord(1, False, 0, "", "", (0, 0, 0), 0, 1, 1, 2, 3, 0)
    device.host.profiles.arrived(Records(profile._number, 9, 0, (ran,)))
    device.queue.barrier().wait(LONG)
    assert got == seen
    assert profile.failure is None


# -- frames that no driver sends ----------------------------------------------------------------------------------------------


def ask(raw, body):
    """The answer to a request."""
    number = raw.session.request(body)
    raw.send()
    return raw.until(Lane.CONTROL, lambda event: isinstance(event, Responded) and event.id == number).body


def taken(raw, number, sequence):
    raw.session.profile(encode_control(Taken(number, sequence)))
    raw.send()


def came(raw, number):
    return [event.body for event in raw.events if isinstance(event, Profiled) and event.body.profile == number]


def test_h24_the_server_stops_at_the_window_and_goes_on_when_the_client_took_some(raw):
    assert ask(raw, ProfileBegin(1, 0)) == Done()
    count = (WINDOW + 4) * MAX_RECORDS
    for _ in range(count // 64):
        for _ in range(64):
            epoch = raw.command(0, commands.BARRIER)
        raw.send()
        raw.advanced(0, epoch)
    flush = raw.session.request(ProfileFlush(1))
    raw.send()
    raw.until(Lane.CONTROL, lambda event: isinstance(event, Profiled) and event.body.sequence == WINDOW)
    for _ in range(5):
        answer = ask(raw, ClockRead())
        assert isinstance(answer, ClockIs)
        assert abs(answer.now_ns - monotonic_ns()) < 20_000_000_000
    assert len(came(raw, 1)) == WINDOW
    assert not any(isinstance(event, Responded) and event.id == flush for event in raw.events)
    taken(raw, 1, WINDOW)
    done = raw.until(Lane.CONTROL, lambda event: isinstance(event, Responded) and event.id == flush)
    assert done.body == Done()
    frames = came(raw, 1)
    assert [frame.sequence for frame in frames] == list(range(1, len(frames) + 1))
    assert [record.value for frame in frames for record in frame.records] == list(range(1, count + 1))
    last = max(number for number, event in enumerate(raw.events) if isinstance(event, Profiled))
    assert last < raw.events.index(done)  # behind all that it asks for


def test_h25_more_taken_than_was_sent_ends_the_session(raw):
    assert ask(raw, ProfileBegin(1, 0)) == Done()
    taken(raw, 1, 1)
    failed = raw.failed()
    assert isinstance(failed, PeerError)
    assert "TAKEN 1 of the profile 1; 0 were sent" in str(failed)


def test_h25_a_number_is_used_once_at_a_time(raw):
    assert ask(raw, ProfileBegin(1, 0)) == Done()
    assert isinstance(ask(raw, ProfileBegin(2, 0)), UsageError)
    raw.session.request(ProfileBegin(1, 1))
    raw.send()
    assert "the profile 1 is on already" in str(raw.failed())


def test_h24_what_is_not_there_cannot_be_profiled_or_flushed_and_may_be_ended(raw):
    answer = ask(raw, ProfileBegin(1, 9))
    assert isinstance(answer, UsageError)
    assert "there is no device 9" in str(answer)
    assert isinstance(ask(raw, ProfileFlush(1)), NotFoundError)
    assert ask(raw, ProfileEnd(1)) == Done()
    taken(raw, 1, 7)
    assert ask(raw, ProfileBegin(1, 0)) == Done()
    assert ask(raw, ProfileEnd(1)) == Done()
    assert ask(raw, ProfileBegin(1, 0)) == Done()


def test_h24_an_end_answers_flushes_that_wait_for_the_window(raw):
    assert ask(raw, ProfileBegin(1, 0)) == Done()
    for _ in range((WINDOW + 4) * MAX_RECORDS):
        epoch = raw.command(0, commands.BARRIER)
        if epoch % 64 == 0:
            raw.send()
            raw.advanced(0, epoch)
    raw.send()
    raw.advanced(0, epoch)
    flush = raw.session.request(ProfileFlush(1))
    raw.send()
    raw.until(Lane.CONTROL, lambda event: isinstance(event, Profiled) and event.body.sequence == WINDOW)
    assert ask(raw, ProfileEnd(1)) == Done()
    answer = raw.until(Lane.CONTROL, lambda event: isinstance(event, Responded) and event.id == flush).body
    assert isinstance(answer, Error)
    assert len(came(raw, 1)) == WINDOW


def test_h24_values_are_epochs_whatever_a_transfer_takes_on_the_server(device):
    records, large = [], bytes(1 << 20)
    with device.allocate(1 << 20) as buffer, device.profile(records.extend) as profile:
        points = [device.queue.update(buffer, large), device.queue.barrier(), device.queue.read(buffer, bytearray(1 << 20))]
        points[-1].wait(LONG)
        with pytest.raises(DeadlineError):
            profile.flush(0.0)
        profile.flush(LONG)
    assert [record.value for record in records] == [point.value for point in points]
