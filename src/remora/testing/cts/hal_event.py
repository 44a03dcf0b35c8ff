"""HAL conformance: events (H21). Recordings and the host set, clear and wait for them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from remora.errors import ClosedError, DeadlineError
from remora.hal.records import Slot
from remora.testing.cts.hal_factory import LONG, SHORT, background, second_queue

if TYPE_CHECKING:
    from remora.hal.command_buffer import CommandBuffer
    from remora.hal.device import Device
    from remora.hal.event import Event

__all__ = ["TestEvents", "TestRecordedEvents"]


def one(device: Device, action: str, event: Event) -> CommandBuffer:
    """A recording with one event record."""
    commands = device.command_buffer()
    getattr(commands, action)(event)
    return commands.seal()


class TestEvents:
    """H21: an event on the host."""

    def test_h21_it_is_clear_at_first(self, device: Device) -> None:
        event = device.event()
        assert event.query() is False
        assert "clear" in repr(event)

    def test_h21_the_host_sets_and_clears_it(self, device: Device) -> None:
        event = device.event()
        for _ in range(3):
            event.signal()
            event.signal()
            assert event.query() is True
            assert "set" in repr(event)
            event.wait(LONG)
            event.reset()
            event.reset()
            assert event.query() is False

    def test_h21_a_wait_ends_in_time(self, device: Device) -> None:
        with pytest.raises(DeadlineError, match="not set within"):
            device.event().wait(SHORT)

    def test_h21_a_signal_wakes_all_who_wait(self, device: Device) -> None:
        event = device.event()
        waiting = [background(partial(event.wait, LONG)) for _ in range(4)]
        event.signal()
        assert [future.result(LONG) for future in waiting] == [None] * 4
        assert event.query() is True

    def test_h27_the_device_ends_its_waits(self, device: Device) -> None:
        event = device.event()
        waiting = background(partial(event.wait, LONG))
        device.close()
        with pytest.raises(ClosedError):
            waiting.result(LONG)
        for call in (event.query, event.signal, event.reset, event.wait):
            with pytest.raises(ClosedError):
                call()


class TestRecordedEvents:
    """H21: events inside recordings, across command buffers and queues."""

    def test_h21_a_recording_sets_it_when_it_gets_there(self, device: Device) -> None:
        before, after, gate = device.event(), device.event(), device.event()
        with device.command_buffer() as commands:
            commands.signal_event(before)
            commands.wait_event(gate)
            commands.signal_event(after)
        done = device.queue.execute(commands)
        before.wait(LONG)
        assert after.query() is False
        assert done.done is False
        gate.signal()
        after.wait(LONG)
        done.wait(LONG)

    def test_h21_a_recording_clears_it(self, device: Device) -> None:
        event = device.event()
        event.signal()
        device.queue.execute(one(device, "reset_event", event)).wait(LONG)
        assert event.query() is False
        device.queue.execute(one(device, "signal_event", event)).wait(LONG)
        assert event.query() is True

    def test_h21_a_wait_holds_up_what_follows_and_no_other_queue(self, device: Device) -> None:
        other = second_queue(device)
        event = device.event()
        with device.upload(bytes(8)) as buffer:
            with device.command_buffer(slots=1) as commands:
                commands.fill(Slot(0, 0, 4), b"x")
                commands.wait_event(event)
                commands.fill(Slot(0, 4, 4), b"y")
            done = device.queue.execute(commands, [buffer])
            behind = device.queue.barrier()
            with pytest.raises(DeadlineError):
                behind.wait(SHORT)
            other.barrier().wait(LONG)
            other.execute(one(device, "signal_event", event)).wait(LONG)
            done.wait(LONG)
            behind.wait(LONG)
            assert bytes(buffer.read(timeout=LONG)) == b"xxxxyyyy"

    def test_h21_a_set_event_holds_nothing_up(self, device: Device) -> None:
        event = device.event()
        event.signal()
        device.queue.execute(one(device, "wait_event", event)).wait(LONG)
        assert event.query() is True

    def test_h21_a_wait_behind_a_reset_is_for_the_next_signal(self, device: Device) -> None:
        event, cleared = device.event(), device.event()
        event.signal()
        with device.command_buffer() as commands:
            commands.reset_event(event)
            commands.signal_event(cleared)
            commands.wait_event(event)
        done = device.queue.execute(commands)
        cleared.wait(LONG)
        assert done.done is False
        event.signal()
        done.wait(LONG)

    def test_h21_two_queues_hand_over_to_each_other(self, device: Device) -> None:
        """Ping and pong: each side writes where the other has written, in turns that only events keep."""
        other = second_queue(device)
        ping, pong = device.event(), device.event()
        rounds = 20
        with device.upload(bytes(rounds * 2 + 1)) as buffer:
            with device.command_buffer() as first, device.command_buffer() as second:
                for turn in range(rounds):
                    first.update(buffer.view(2 * turn), bytes([2 * turn + 1, 0]))
                    first.signal_event(ping)
                    first.wait_event(pong)
                    first.reset_event(pong)
                    second.wait_event(ping)
                    second.reset_event(ping)
                    second.update(buffer.view(2 * turn + 1), bytes([2 * turn + 2, 0]))
                    second.signal_event(pong)
            done = [device.queue.execute(first), other.execute(second)]
            for point in done:
                point.wait(LONG)
            assert bytes(buffer.read(timeout=LONG)) == bytes([*range(1, 2 * rounds + 1), 0])

    def test_h27_closing_the_device_ends_a_wait_inside_a_recording(self, device: Device) -> None:
        started = device.event()
        with device.command_buffer() as commands:
            commands.signal_event(started)
            commands.wait_event(device.event())
        done = device.queue.execute(commands)
        started.wait(LONG)
        device.close()
        with pytest.raises(ClosedError):
            done.wait(LONG)
