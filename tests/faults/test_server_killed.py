"""H05: kill -9 of the server, or of the session's process, in the middle of a wait: a clear error at once, never success."""

import os
import re
import signal
import threading
from time import monotonic

import pytest
from tests.faults.processes import wait_gone

import remora
from remora import samples

SOON = 20.0
GIB = 1 << 30


class Waiting:
    """A thread that waits for a timepoint; `ended` holds when and how the wait ended."""

    def __init__(self, point):
        self.ended = None
        self._inside = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(point,))
        self._thread.start()
        assert self._inside.wait(SOON)

    def _run(self, point):
        self._inside.set()
        try:
            point.wait(SOON)
        except remora.Error as error:
            self.ended = monotonic(), error
        else:
            self.ended = monotonic(), None

    def join(self):
        self._thread.join(SOON + 1)
        return self.ended


def hang(device):
    """An operation that never ends by itself, and a wait for it that has begun."""
    gate = device.semaphore()
    held = device.queue.barrier(wait=gate.at(1))
    with pytest.raises(remora.DeadlineError):
        held.wait(0.05)
    return Waiting(held), gate


def hang_there(device):
    """The same, with the operation running on the server."""
    spin = device.load(samples.load("faults"))["spin"]
    running = device.queue.dispatch(spin, (1, 1, 1), [])
    with pytest.raises(remora.DeadlineError):
        running.wait(0.05)
    return Waiting(running), None


def kill_and_time(server, device, pid, wait=hang_there):
    """Kill a process while a wait is under way.

    (seconds until the wait raised, the error, seconds until the kernel had taken the session's process down)
    """
    waiting, _gate = wait(device)
    exited = Exit(server.session_of(1))
    begin = monotonic()
    os.kill(pid, signal.SIGKILL)
    end, error = waiting.join()
    return end - begin, error, exited.join() - begin


class Exit:
    """When (monotonic) a process ended."""

    def __init__(self, pid):
        self._at = None
        self._thread = threading.Thread(target=self._run, args=(pid,))
        self._thread.start()

    def _run(self, pid):
        wait_gone(pid, SOON)
        self._at = monotonic()

    def join(self):
        self._thread.join(SOON + 1)
        return self._at


@pytest.mark.parametrize("wait", [hang, hang_there])
def test_h05_a_killed_server_ends_a_wait_at_once(serve, scheme, wait, record_property):
    server = serve(scheme)
    with remora.open(server.uri) as device:
        device.upload(b"x").close()
        seconds, error, _ = kill_and_time(server, device, server.pid, wait)
        record_property("seconds", seconds)
        print(f"{scheme}: {seconds * 1e3:.1f} ms")
        assert isinstance(error, remora.BrokenError | remora.DeviceLostError)
        assert server.address in str(error)
        assert re.search("closed the connection|reset|SIGKILL|parent process is gone", str(error))
        assert seconds < 1
        with pytest.raises(type(error)):
            device.allocate(16)
        with pytest.raises(type(error)):
            device.queue.barrier()


@pytest.mark.parametrize("wait", [hang, hang_there])
def test_h26_a_killed_session_process_ends_a_wait_at_once(serve, works, scheme, wait, record_property):
    server = serve(scheme)
    with remora.open(server.uri) as device:
        seconds, error, _ = kill_and_time(server, device, server.session_of(1), wait)
        record_property("seconds", seconds)
        print(f"{scheme}: {seconds * 1e3:.1f} ms")
        assert isinstance(error, remora.DeviceLostError)
        assert server.address in str(error)
        assert "SIGKILL" in str(error)
        assert seconds < 1
    works(server.uri)


def test_h26_the_place_of_a_killed_session_is_free_as_soon_as_its_client_knows(serve, scheme):
    """The kernel takes its time for 256 MiB; whoever opens the device again meanwhile is not turned away."""
    server = serve(scheme, max_sessions=1)
    with remora.open(server.uri) as device:
        device.queue.fill(device.allocate(GIB // 4), b"\x01").wait(SOON)
        _, error, _ = kill_and_time(server, device, server.session_of(1), hang)
        assert isinstance(error, remora.DeviceLostError)
        with remora.open(server.uri) as again:
            assert bytes(again.upload(b"here").read(timeout=SOON)) == b"here"


@pytest.mark.parametrize("victim", ["server", "session"])
def test_h05_an_idle_client_learns_of_it_at_the_next_call(serve, until, scheme, victim):
    """Nobody waits: the link's thread notices, and the next call raises."""
    server = serve(scheme)
    with remora.open(server.uri) as device:
        os.kill(server.pid if victim == "server" else server.session_of(1), signal.SIGKILL)
        until(lambda: device.queue.timeline.failure is not None, timeout=5)
        with pytest.raises((remora.BrokenError, remora.DeviceLostError)) as caught:
            device.allocate(16)
        assert server.address in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["server", "session"])
@pytest.mark.parametrize(("held_bytes", "limit"), [(0, 0.05), (GIB, 0.15)])
def test_h05_the_error_comes_within_50_ms_or_150_ms_with_a_gib(serve, scheme, victim, held_bytes, limit, record_property):
    """The best of five. Where the kernel itself needs longer to take the process down, 50 ms after that."""
    times = []
    while len(times) < 5 and not any(within(limit, *each) for each in times):
        server = serve(scheme)
        with remora.open(server.uri) as device:
            if held_bytes:
                device.queue.fill(device.allocate(held_bytes), b"\x01").wait(SOON)
            seconds, error, down = kill_and_time(server, device, server.pid if victim == "server" else server.session_of(1))
            assert error is not None
            times.append((seconds, down))
        server.close()
    record_property("seconds", min(times)[0])
    story = ", ".join(f"{seconds * 1e3:.1f} ms (process gone after {down * 1e3:.1f} ms)" for seconds, down in times)
    print(f"{scheme}, {victim}, {held_bytes} bytes: {story}")
    assert any(within(limit, *each) for each in times), story


def within(limit, seconds, down):
    return seconds <= max(limit, down + 0.05)
