"""H08: a process that is stopped, or that died without a word, is noticed within the keepalive deadline on every carrier."""

import mmap
import os
import signal
from pathlib import Path
from time import monotonic

import pytest
from tests.faults.processes import CLIENT

import remora

SOON = 20.0
DEADLINE = 1.0
#: What a busy machine may add to the deadline.
SLACK = 2.0
QUERY = f"?keepalive=0.2&deadline={DEADLINE:g}"


def is_stopped(pid):
    """Whether every thread of the process has stopped."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)


@pytest.fixture
def stop(until):
    """stop(pid): stop a process, all of it; it goes on, or dies, at the end of the test."""
    stopped = []

    def run(pid):
        os.kill(pid, signal.SIGSTOP)
        stopped.append(pid)
        until(lambda: is_stopped(pid))

    yield run
    for pid in stopped:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            continue


def test_h08_a_stopped_server_ends_a_wait_within_the_deadline(serve, stop, scheme):
    server = serve(scheme)
    with remora.open(server.uri + QUERY) as device:
        gate = device.semaphore()
        held = device.queue.barrier(wait=gate.at(1))
        with pytest.raises(remora.DeadlineError):
            held.wait(0.1)
        stop(server.session_of(1))
        begin = monotonic()
        with pytest.raises(remora.BrokenError, match="no sign of life for 1 s") as caught:
            held.wait(SOON)
        assert monotonic() - begin < DEADLINE + SLACK
        assert server.address in str(caught.value)
        with pytest.raises(remora.BrokenError, match="no sign of life"):
            device.allocate(16)


def test_h08_a_stopped_server_ends_a_wait_for_its_answer(serve, stop, scheme):
    """The command has gone and is not answered: the waiting thread itself reads the lane meanwhile."""
    server = serve(scheme)
    with remora.open(server.uri + QUERY) as device:
        buffer = device.upload(b"x" * 100)
        stop(server.session_of(1))
        begin = monotonic()
        with pytest.raises(remora.BrokenError, match="no sign of life"):
            buffer.read(timeout=SOON)
        assert monotonic() - begin < DEADLINE + SLACK
        buffer.close()


def test_h08_an_idle_client_notices_a_stopped_server(serve, stop, until, scheme):
    server = serve(scheme)
    with remora.open(server.uri + QUERY) as device:
        stop(server.session_of(1))
        begin = monotonic()
        until(lambda: device.queue.timeline.failure is not None)
        assert monotonic() - begin < DEADLINE + SLACK
        with pytest.raises(remora.BrokenError, match="no sign of life"):
            device.allocate(16)
        with pytest.raises(remora.BrokenError, match="no sign of life"):
            device.queue.barrier()


@pytest.mark.parametrize("direction", ["upload", "download"])
def test_h08_a_stopped_server_ends_a_transfer(serve, stop, until, scheme, direction):
    server = serve(scheme)
    with remora.open(server.uri + QUERY) as device:
        size = 256 << 20
        buffer = device.allocate(size)
        device.queue.fill(buffer.view(0, 1 << 20), b"x").wait(SOON)
        before = device.link_statistics()
        stop(server.session_of(1))
        memory = mmap.mmap(-1, size)
        point = device.queue.update(buffer, memory) if direction == "upload" else device.queue.read(buffer, memory)
        begin = monotonic()
        with pytest.raises(remora.BrokenError, match="no sign of life"):
            point.wait(SOON)
        assert monotonic() - begin < DEADLINE + SLACK
        assert device.link_statistics().bytes_sent - before.bytes_sent < size
        buffer.close()


def test_h08_a_live_server_outlasts_the_deadline_busy_and_idle(serve, scheme):
    """Only silence ends a session: a long kernel, or a client that has nothing to do, does not."""
    server = serve(scheme, keepalive=0.1, deadline=0.5)
    with remora.open(server.uri + "?keepalive=0.1&deadline=0.5") as device:
        gate = device.semaphore()
        held = device.queue.barrier(wait=gate.at(1))
        with pytest.raises(remora.DeadlineError):
            held.wait(1.5)
        gate.signal(1)
        held.wait(SOON)


def test_h08_a_stopped_parent_does_not_touch_sessions(serve, stop, scheme):
    """The parent only lets new sessions in: with it stopped the running ones go on, and new ones hear of a deadline."""
    server = serve(scheme)
    with remora.open(server.uri) as device:
        stop(server.pid)
        assert bytes(device.upload(b"on").read(timeout=SOON)) == b"on"
        with pytest.raises((remora.DeadlineError, remora.BrokenError), match=r"answer|accept"):
            remora.open(server.uri + "?timeout=0.5")


@pytest.mark.parametrize("doing", ["idle", "wait", "compute", "upload", "download"])
def test_h08_a_stopped_client_loses_its_session_within_the_deadline(serve, client, works, gone, stop, scheme, doing):
    server = serve(scheme, max_sessions=1, keepalive=0.2, deadline=DEADLINE)
    program = client(CLIENT, server.uri, doing)
    program.lines.wait_for("ready")
    pid = server.session_of(1)
    stop(program.pid)
    begin = monotonic()
    gone(pid)
    assert monotonic() - begin < DEADLINE + SLACK
    assert "no sign of life for 1 s" in server.wait_for("session 1 ended")
    works(server.uri)
    os.kill(program.pid, signal.SIGCONT)
    program.lines.wait_for("ended BrokenError")


@pytest.mark.parametrize("doing", ["idle", "wait", "compute", "upload", "download"])
def test_h08_a_killed_client_frees_slot_process_and_memory(serve, client, works, gone, scheme, doing):
    """With default keepalive: the end of its connections is enough."""
    server = serve(scheme, max_sessions=1)
    program = client(CLIENT, server.uri, doing)
    program.lines.wait_for("ready")
    pid = server.session_of(1)
    program.kill()
    begin = monotonic()
    gone(pid)
    assert monotonic() - begin < 3
    server.wait_for("session 1 ended")
    works(server.uri)


#: Reads again and again, and idles in between for longer than its keepalive interval.
READER = """
import sys, threading
import remora

pause = threading.Event()
with remora.open(sys.argv[1]) as device:
    buffer = device.upload(b"x" * 1000)
    while True:
        print("read", len(buffer.read(timeout=20)), flush=True)
        pause.wait(0.3)
"""


def test_h08_a_client_that_was_stopped_itself_does_not_blame_the_server(serve, client, stop, until, scheme):
    """It goes on after more than its own deadline: the server's answer lies there, and is read before the clock is."""
    server = serve(scheme)
    program = client(READER, f"{server.uri}?keepalive=0.2&deadline=0.6")
    program.lines.wait_for("read", 2)
    stop(program.pid)
    begin = monotonic()
    until(lambda: monotonic() > begin + 1.5)
    count = len(program.lines.seen)
    os.kill(program.pid, signal.SIGCONT)
    program.lines.wait_for("read 1000", count + 4)
    assert set(program.lines.seen) == {"read 1000"}
