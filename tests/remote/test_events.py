"""H21: events over a link: the host's changes keep their place between its commands, and waits cost what they must."""

import pytest
from tests.remote.raw import LONG

import remora
from remora.base.ids import ResourceType
from remora.errors import BrokenError, DeadlineError, NotFoundError, UsageError
from remora.session.events import EventTold
from remora.session.state import Lane
from remora.wire import commands
from remora.wire.command_buffer import WAIT_EVENT, RecordedEvent, encode_stream
from remora.wire.execute import encode_execute
from remora.wire.queue import EVENT_CREATE, EVENT_QUERY, EVENT_RESET, EVENT_SIGNAL, EVENT_WAIT


def trips(device):
    return device.link_statistics().round_trips


def test_h16_only_a_look_at_an_event_costs_a_round_trip(device):
    device.queue.wait_idle(LONG)
    before = trips(device)
    event = device.event()
    event.signal()
    event.reset()
    event.signal()
    with device.command_buffer() as commands:
        commands.reset_event(event)
    commands.close()
    assert trips(device) == before
    assert event.query() is True


def test_h21_a_reset_on_the_host_comes_before_what_is_submitted_after_it(device):
    """A wait in a recording must not see the signal that was taken back before it was submitted."""
    event = device.event()
    with device.command_buffer() as commands:
        commands.wait_event(event)
    for _ in range(20):
        event.signal()
        event.reset()
        done = device.queue.execute(commands)
        assert event.query() is False
        assert not done.done
        event.signal()
        done.wait(LONG)
        event.reset()


def test_h21_a_wait_behind_a_reset_is_for_the_next_signal(device):
    """Though the answer to an earlier wait, which was given up, is on its way."""
    event = device.event()
    for _ in range(20):
        with pytest.raises(DeadlineError, match="was not set"):
            event.wait(0.001)
        event.signal()
        event.reset()
        with pytest.raises(DeadlineError):
            event.wait(0.001)
    event.signal()
    event.wait(LONG)


@pytest.mark.interpreted
def test_h15_a_dropped_event_is_released_and_a_recording_keeps_it(device, monkeypatch):
    released = []
    session = device.host.link.session
    release = session.release
    monkeypatch.setattr(session, "release", lambda ids: (released.extend(ids), release(ids)))
    event, gone = device.event(), device.event()
    names = event.resource, gone.resource
    with device.command_buffer() as commands:
        commands.signal_event(event)
    del event, gone
    device.host.flush_garbage()
    assert released == [names[1]]
    device.queue.execute(commands).wait(LONG)
    commands.close()
    device.host.flush_garbage()
    assert names[0] in released


def test_h05_a_lost_server_ends_waits_for_events_and_recordings(serve):
    server = serve()
    with remora.open(server.uri) as device:
        event = device.event()
        with device.command_buffer() as commands:
            commands.wait_event(event)
        done = device.queue.execute(commands)
        server.kill()
        calls = [
            lambda: event.wait(LONG),
            event.query,
            event.signal,
            lambda: done.wait(LONG),
            lambda: device.queue.execute(commands),
            lambda: device.command_buffer().seal(),
        ]
        for call in calls:
            with pytest.raises(BrokenError):
                call()


# -- frames that no driver sends ----------------------------------------------------------------------------------------------


class Asking:
    """A raw client's event, and its questions."""

    def __init__(self, raw, device=0):
        self.raw = raw
        self.number = 0
        self.event = raw.session.provisional(ResourceType.EVENT)
        raw.session.event(EVENT_CREATE, self.event, device=device)

    def do(self, action):
        self.raw.session.event(action, self.event)

    def ask(self, action):
        self.number += 1
        self.raw.session.event(action, self.event, number=self.number)
        return self.number

    def answer(self, number):
        self.raw.send()
        return self.raw.until(Lane.QUEUE, lambda event: isinstance(event, EventTold) and event.number == number).state


def test_h21_the_host_changes_and_asks_in_order(raw):
    asking = Asking(raw)
    first = asking.ask(EVENT_QUERY)
    asking.do(EVENT_SIGNAL)
    asking.do(EVENT_SIGNAL)
    second = asking.ask(EVENT_QUERY)
    asking.do(EVENT_RESET)
    third = asking.ask(EVENT_QUERY)
    assert [asking.answer(number) for number in (third, second, first)] == [False, True, False]


def test_h21_waits_for_the_same_moment_share_the_last_ones_answer(raw):
    """A peer that gives up and asks again does not pile anything up."""
    asking = Asking(raw)
    for _ in range(1000):
        last = asking.ask(EVENT_WAIT)
    asking.do(EVENT_SIGNAL)
    assert asking.answer(last) is True
    assert [event.number for event in raw.events if isinstance(event, EventTold)] == [last]
    assert asking.answer(asking.ask(EVENT_WAIT)) is True


def test_h21_an_event_on_no_device_says_so_to_who_asks(raw):
    asking = Asking(raw, device=9)
    asking.do(EVENT_SIGNAL)
    for action in (EVENT_QUERY, EVENT_WAIT):
        failure = asking.answer(asking.ask(action))
        assert isinstance(failure, UsageError)
        assert "there is no device 9" in str(failure)


def test_h15_a_released_event_is_gone(raw):
    asking = Asking(raw)
    raw.session.release([asking.event])
    assert isinstance(asking.answer(asking.ask(EVENT_QUERY)), NotFoundError)


def test_h21_a_host_signal_ends_a_recorded_wait(raw):
    """The signal is not parked behind the command that waits for it."""
    asking = Asking(raw)
    stream = encode_stream([RecordedEvent(WAIT_EVENT, asking.event)])
    epoch = raw.command(0, commands.EXECUTE, encode_execute(0, (), (), stream))
    other = raw.command(1, commands.BARRIER)
    raw.send()
    raw.advanced(1, other)
    assert raw.progress(0) == []
    asking.do(EVENT_SIGNAL)
    raw.send()
    assert raw.advanced(0, epoch).failure is None
