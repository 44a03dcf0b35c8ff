"""H05, H27: a session ends once, with the first cause, for everything that waits and everything that comes later."""

import asyncio
import os
import signal
import threading
from functools import partial
from time import monotonic

import pytest
from tests.remote.processes import go_on, stop

import remora
from remora import samples
from remora.errors import BrokenError, ClosedError, DeviceLostError, PeerError
from remora.session.state import Lane
from remora.testing.cts.hal_factory import background
from remora.testing.server import SharedServer

LONG = 20.0
MIB = 1 << 20


class Everything:
    """One of each thing that can be pending on a device whose server does not answer."""

    def __init__(self, device):
        self.device = device
        gate = device.semaphore()
        self.semaphore = gate
        big = device.allocate(32 * MIB)
        self.points = {
            "barrier": device.queues[0].barrier(),
            "held": device.queues[1].barrier(wait=gate.at(1)),
            "upload": device.queues[2].update(big, bytes(32 * MIB)),
            "download": device.queues[3].read(big, bytearray(32 * MIB)),
            "semaphore": gate.at(1),
        }
        self.calls = {name: threading.Semaphore(0) for name in self.points}
        for name, point in self.points.items():
            point.on_done(self.calls[name].release)
        self.waits = {name: background(partial(point.wait, LONG)) for name, point in self.points.items()}
        self.waits["await"] = background(lambda: asyncio.run(asyncio.wait_for(settle(self.points["barrier"]), LONG)))
        self.waits["rpc"] = background(lambda: device.load(samples.load("vector")))

    def end(self):
        """The cause that each pending thing ended with, and that each later call gives."""
        causes = {name: cause(partial(future.result, LONG)) for name, future in self.waits.items()}
        for name, called in self.calls.items():
            assert called.acquire(timeout=LONG), f"the callback of {name} was not called"
        later = {
            "wait": partial(self.points["barrier"].wait, LONG),
            "allocate": lambda: self.device.allocate(8),
            "barrier": self.device.queues[0].barrier,
            "load": lambda: self.device.load(samples.load("vector")),
            "semaphore": lambda: self.device.semaphore().wait(1, LONG),
            "signal": lambda: self.semaphore.signal(1),
        }
        causes |= {f"later {name}": cause(call) for name, call in later.items()}
        assert not any(called.acquire(blocking=False) for called in self.calls.values()), "a callback was called twice"
        return causes


async def settle(point):
    await point


def cause(call):
    with pytest.raises(remora.Error) as caught:
        call()
    return type(caught.value), caught.value.message


@pytest.mark.interpreted
def test_h26_a_send_that_fails_hides_nothing_that_the_server_said_before(serve):
    """The link's thread has not read yet why the session died; meanwhile another thread finds the connection closed."""
    server = serve()
    with remora.open(server.uri) as device:
        device.queue.wait_idle(LONG)
        link, reads = device.host.link, threading.Event()
        control, receive = link.carriers[Lane.CONTROL], link.receive
        link.receive = lambda lane, timeout: reads.wait(LONG) and receive(lane, timeout)
        (pid,) = server.session_pids()
        os.kill(pid, signal.SIGKILL)
        asked = background(partial(ask_until_broken, link, control))
        while control.failure is None:
            assert not asked.done()
            threading.Event().wait(0.001)
        reads.set()
        asked.result(LONG)
        with pytest.raises(DeviceLostError, match="SIGKILL"):
            device.queue.wait_idle(LONG)


def ask_until_broken(link, control):
    deadline = monotonic() + LONG
    while control.failure is None:
        assert monotonic() < deadline, "the connection was not closed"
        link._ask()
        threading.Event().wait(0.001)


def test_h05_a_killed_session_process(serve):
    server = serve()
    with remora.open(server.uri) as device:
        device.queue.wait_idle(LONG)
        (pid,) = server.session_pids()
        stop(pid)
        everything = Everything(device)
        os.kill(pid, signal.SIGKILL)
        causes = everything.end()
        assert len(set(causes.values())) == 1, causes
        kind, message = causes["rpc"]
        assert kind is DeviceLostError, causes
        assert "SIGKILL" in message


def test_h05_a_server_that_stops(serve):
    server = serve()
    with remora.open(server.uri) as device:
        everything = HeldBack(device)
        server.signal(signal.SIGTERM)
        causes = everything.end()
        assert len(set(causes.values())) == 1, causes
        kind, message = causes["barrier"]
        assert issubclass(kind, BrokenError)
        assert "stopping" in message
    assert server.wait() == 0


def test_h05_a_local_close(serve):
    server = serve()
    with remora.open(server.uri) as device:
        device.queue.wait_idle(LONG)
        (pid,) = server.session_pids()
        stop(pid)
        everything = Everything(device)
        device.close()
        causes = everything.end()
        go_on(pid)
        assert {kind for kind, _ in causes.values()} == {ClosedError}, causes


@pytest.mark.parametrize("lane", [Lane.CONTROL, Lane.QUEUE, Lane.BULK])
def test_h05_a_malformed_frame(lane):
    with SharedServer() as server, remora.open(server.uri) as device:
        device.upload(bytes(MIB))  # from the first transfer on the bulk lane is read
        everything = HeldBack(device)
        (slot,) = server.server.sessions
        slot._runner.link.carriers[lane].send_all(b"\xff" * 64, timeout=LONG)
        causes = everything.end()
        assert len(set(causes.values())) == 1, causes
        assert causes["barrier"][0] is PeerError


class HeldBack(Everything):
    """What stays pending while the server does answer: it waits for the host."""

    def __init__(self, device):
        self.device = device
        self.semaphore = gate = device.semaphore()
        self.points = {
            "barrier": device.queues[0].barrier(wait=gate.at(1)),
            "behind": device.queues[0].update(device.allocate(MIB), bytes(MIB)),
            "dependent": device.queues[1].barrier(wait=device.queues[0].barrier()),
            "semaphore": gate.at(1),
        }
        self.calls = {name: threading.Semaphore(0) for name in self.points}
        for name, point in self.points.items():
            point.on_done(self.calls[name].release)
        self.waits = {name: background(partial(point.wait, LONG)) for name, point in self.points.items()}
        self.waits["await"] = background(lambda: asyncio.run(asyncio.wait_for(settle(self.points["barrier"]), LONG)))


def test_h05_an_error_at_the_end_is_the_same_for_many_threads(serve):
    server = serve()
    with remora.open(server.uri) as device:
        device.queue.wait_idle(LONG)
        (pid,) = server.session_pids()
        started = threading.Barrier(7)

        def work(number):
            started.wait(LONG)
            while True:
                device.queues[number % 4].barrier().wait(LONG)

        running = [background(partial(work, number)) for number in range(6)]
        started.wait(LONG)
        device.queue.wait_idle(LONG)
        os.kill(pid, signal.SIGKILL)
        causes = {cause(partial(future.result, LONG)) for future in running}
        assert len(causes) == 1, causes


def test_h27_a_callback_may_do_anything_at_the_end(serve):
    """Submitting raises the cause, closing closes, raising goes to threading.excepthook: all the others are called."""
    server = serve()
    device = remora.open(server.uri)
    gate = device.semaphore()
    held = device.queue.barrier(wait=gate.at(1))
    results = []
    called = threading.Semaphore(0)

    def submit():
        results.append(cause(device.queue.barrier)[0])
        called.release()

    def close():
        device.close()
        called.release()

    for callback in (submit, close, submit):
        held.on_done(callback)
    (pid,) = server.session_pids()
    os.kill(pid, signal.SIGKILL)
    for _ in range(3):
        assert called.acquire(timeout=LONG)
    assert results == [DeviceLostError, DeviceLostError]
    assert device.closed


def test_h10_nothing_is_replayed_a_new_device_is_another(serve):
    server = serve()
    with remora.open(server.uri) as device:
        buffer = device.upload(b"abcd")
        (pid,) = server.session_pids()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(DeviceLostError, match="open the device again"):
            device.queue.barrier().wait(LONG)
        with remora.open(server.uri, retry=LONG) as fresh:
            assert fresh.statistics().buffers == 0
            with pytest.raises(remora.UsageError, match="another device"):
                fresh.queue.fill(buffer)
            with pytest.raises(DeviceLostError):
                buffer.read(timeout=LONG)
