"""H06: a server that is told to stop lets its sessions finish what they have in flight, refuses new ones, and says why it ends."""

import signal
import threading

import pytest
from tests.remote.raw import raw_client

import remora
from remora.errors import BrokenError, BusyError

LONG = 20.0
LONGER = "--drain-timeout=50"
"""More than any test waits: a session that ends has finished."""


class Held:
    """Work that is in flight on the server until `let_go`."""

    def __init__(self, device):
        self.event = device.event()
        recording = device.command_buffer()
        recording.wait_event(self.event)
        self.point = device.queue.execute(recording.seal())
        device.queues[1].barrier().wait(LONG)  # lanes keep their order: the server has both

    def let_go(self):
        self.event.signal()


def tell_to_stop(server):
    server.signal(signal.SIGTERM)
    server.wait_for("stopping: ")


def end_of(device):
    """Wait until the session has ended; returns why."""
    with pytest.raises(BrokenError) as caught:
        device.semaphore().wait(1, LONG)
    return str(caught.value)


def test_h06_work_in_flight_is_finished_and_later_work_hears_the_reason(serve, mode):
    server = serve(LONGER, **mode)
    with remora.open(server.uri) as device:
        held = Held(device)
        tell_to_stop(server)
        held.let_go()
        held.point.wait(LONG)
        assert end_of(device).endswith("ended the session: the server is stopping")
        with pytest.raises(BrokenError, match="the server is stopping"):
            device.queue.barrier()
        with pytest.raises(BrokenError, match="the server is stopping"):
            device.upload(b"abc")
    assert server.wait(LONG) == 0


def test_h06_a_server_that_stops_refuses_new_sessions_with_the_reason(serve, mode):
    server = serve(LONGER, **mode)
    with remora.open(server.uri) as device:
        held = Held(device)
        tell_to_stop(server)
        with pytest.raises(BusyError, match="the server is stopping; try again when it is back"):
            remora.open(server.uri)
        held.let_go()
        held.point.wait(LONG)
    assert server.wait(LONG) == 0


def test_h06_work_that_takes_too_long_ends_with_the_session(serve, mode):
    server = serve("--drain-timeout", "0.3", **mode)
    with remora.open(server.uri) as device:
        held = Held(device)
        tell_to_stop(server)
        with pytest.raises(BrokenError, match=r"the server is stopping; 1 commands or requests were not done within 0\.3 s"):
            held.point.wait(LONG)
    assert server.wait(LONG) == 0


def test_h06_a_second_signal_ends_it_at_once(serve, mode):
    server = serve(LONGER, **mode)
    with remora.open(server.uri) as device:
        held = Held(device)
        tell_to_stop(server)
        server.signal(signal.SIGTERM)
        with pytest.raises(BrokenError, match=r"the server is stopping$"):
            held.point.wait(LONG)
    assert server.wait(LONG) == 0


def test_h06_a_client_that_goes_on_submitting_does_not_hold_the_server_up(serve, mode):
    server = serve(LONGER, **mode)
    with remora.open(server.uri) as device:
        busy, ends = threading.Event(), []

        def submit():
            try:
                while True:
                    device.queue.barrier()
                    busy.set()
            except BrokenError as error:
                ends.append(str(error))

        thread = threading.Thread(target=submit)
        thread.start()
        assert busy.wait(LONG)
        tell_to_stop(server)
        assert server.wait(LONG) == 0
        thread.join(LONG)
        assert ends[0].endswith("the server is stopping")


def test_h06_many_transfers_in_flight_are_finished(serve, mode):
    server = serve(LONGER, **mode)
    with remora.open(server.uri) as device:
        held = Held(device)
        buffers = [device.allocate(1 << 20) for _ in range(4)]
        into = [bytearray(1 << 20) for _ in buffers]
        for number, buffer in enumerate(buffers):
            device.queue.update(buffer, bytes([number]) * (1 << 20))
        last = [device.queue.read(buffer, data) for buffer, data in zip(buffers, into, strict=True)]
        device.queues[1].barrier().wait(LONG)
        tell_to_stop(server)
        held.let_go()
        for number, (point, data) in enumerate(zip(last, into, strict=True)):
            point.wait(LONG)
            assert data == bytes([number]) * (1 << 20)
    assert server.wait(LONG) == 0


def test_h06_a_client_that_answers_nothing_does_not_hold_the_server_up(serve, mode):
    server = serve(LONGER, **mode)
    with raw_client(server.uri) as raw:
        tell_to_stop(server)
        assert "the server is stopping" in str(raw.failed())
        assert server.wait(LONG) == 0


def test_h06_a_server_without_sessions_stops_at_once(serve, mode):
    server = serve(LONGER, **mode)
    assert server.stop(LONG) == 0
