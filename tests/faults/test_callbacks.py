"""H27: a callback may submit, close or raise, whichever thread it runs on, and when the connection is lost as well."""

import os
import signal
import threading

import pytest

import remora

SOON = 20.0


@pytest.fixture
def server(serve):
    return serve()


def when_done(point, run):
    """Run `run` as a callback; returns the event that it has run."""
    ran = threading.Event()

    def callback():
        try:
            run()
        finally:
            ran.set()

    point.on_done(callback)
    return ran


@pytest.mark.parametrize("size", [16, 1 << 20], ids=["link's thread", "bulk thread"])
def test_h27_a_callback_closes_the_device(server, works, size):
    with remora.open(server.uri) as device:
        buffer, into = device.allocate(1 << 20), bytearray(size)
        device.queue.fill(buffer, b"\x07")
        read = device.queue.read(buffer, into)
        assert when_done(read, device.close).wait(SOON)
        assert into == b"\x07" * size
        with pytest.raises(remora.ClosedError):
            device.allocate(16)
        server.wait_for("session 1 ended")
    works(server.uri)


def test_h27_a_callback_submits_the_next_operation(server):
    count, ended = 0, threading.Event()
    with remora.open(server.uri) as device:
        buffer = device.allocate(4096)

        def again():
            nonlocal count
            count += 1
            if count < 100:
                device.queue.fill(buffer, bytes([count])).on_done(again)
            else:
                ended.set()

        device.queue.barrier().on_done(again)
        assert ended.wait(SOON)
        assert bytes(buffer.read(timeout=SOON)) == bytes([99]) * 4096


@pytest.mark.parametrize("what", ["close", "submit", "wait"])
def test_h27_a_callback_that_hears_of_the_loss_may_do_anything(server, what):
    heard = []
    with remora.open(server.uri) as device:
        held = device.queue.barrier(wait=device.semaphore().at(1))
        calls = {"close": device.close, "submit": device.queue.barrier, "wait": lambda: held.wait(SOON)}

        def run():
            try:
                calls[what]()
            except remora.Error as error:
                heard.append(error)

        ran = when_done(held, run)
        other = when_done(held, lambda: None)
        os.kill(server.session_of(1), signal.SIGKILL)
        assert ran.wait(SOON)
        assert other.wait(SOON)
        with pytest.raises(remora.DeviceLostError, match="SIGKILL"):
            held.wait(SOON)
    assert [type(error) for error in heard] == ([] if what == "close" else [remora.DeviceLostError])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_h27_a_callback_that_raises_breaks_nothing_when_the_connection_is_lost(server, monkeypatch):
    raised = []
    monkeypatch.setattr(threading, "excepthook", lambda args: raised.append(args.exc_value))

    def fail():
        raise ValueError("a callback's own fault")

    with remora.open(server.uri) as device:
        held = device.queue.barrier(wait=device.semaphore().at(1))
        first, second = when_done(held, fail), when_done(held, fail)
        os.kill(server.session_of(1), signal.SIGKILL)
        assert first.wait(SOON)
        assert second.wait(SOON)
        with pytest.raises(remora.DeviceLostError, match="SIGKILL"):
            held.wait(SOON)
        with pytest.raises(remora.DeviceLostError):
            device.allocate(16)
    assert [str(error) for error in raised] == ["a callback's own fault"] * 2
