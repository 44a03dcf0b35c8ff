"""H26: a kernel that crashes or never ends takes its own session and nothing else."""

import os
import signal
from pathlib import Path

import pytest

import remora
from remora import samples

SOON = 20.0


def start(device, kernel):
    """Dispatch one of the kernels that go wrong."""
    executable = device.load(samples.load("faults"))
    return device.queue.dispatch(executable[kernel], (1, 1, 1), [])


@pytest.mark.parametrize(("kernel", "name"), [("crash_segv", "SIGSEGV"), ("crash_abort", "SIGABRT")])
def test_h26_a_crashing_kernel_names_its_signal_and_takes_nobody_along(serve, works, gone, scheme, kernel, name):
    server = serve(scheme, max_sessions=2)
    with remora.open(server.uri) as bystander, remora.open(server.uri) as victim:
        kept = bystander.upload(b"kept" * 1000)
        pid = server.session_of(2)
        done = start(victim, kernel)
        with pytest.raises(remora.DeviceLostError, match=name) as caught:
            done.wait(SOON)
        assert server.address in str(caught.value)
        assert "open the device again" in str(caught.value)
        with pytest.raises(remora.DeviceLostError, match=name):
            victim.allocate(64)
        with pytest.raises(remora.DeviceLostError, match=name):
            done.wait(SOON)
        gone(pid)
        server.wait_for(f"session 2 died of {name}")
        works(server.uri)  # the slot is free again
        assert bytes(kept.read(timeout=SOON)) == b"kept" * 1000
        kept.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_h26_an_operator_ends_an_endless_kernel(serve, works, gone, scheme, number):
    server = serve(scheme, max_sessions=2)
    with remora.open(server.uri) as bystander, remora.open(server.uri) as victim:
        pid = server.session_of(2)
        done = start(victim, "spin")
        with pytest.raises(remora.DeadlineError):
            done.wait(0.2)
        assert bytes(bystander.upload(b"beside").read(timeout=SOON)) == b"beside"
        os.kill(pid, number)
        with pytest.raises(remora.DeviceLostError, match=number.name):
            done.wait(SOON)
        gone(pid)
        server.wait_for(f"session 2 died of {number.name}")
        works(server.uri)
        assert bytes(bystander.upload(b"beside").read(timeout=SOON)) == b"beside"


def test_h26_a_client_may_leave_an_endless_kernel_behind(serve, works, gone):
    """Closing the device ends the session's process, whatever its kernel does."""
    server = serve(max_sessions=1)
    with remora.open(server.uri) as device:
        pid = server.session_of(1)
        done = start(device, "spin")
    with pytest.raises(remora.ClosedError):
        done.wait(SOON)
    gone(pid)
    server.wait_for("session 1 ended")
    works(server.uri)


def test_h26_every_session_may_crash_one_after_the_other(serve, works):
    server = serve(max_sessions=1)
    for round_ in range(1, 6):
        with remora.open(server.uri) as device, pytest.raises(remora.DeviceLostError, match="SIGSEGV"):
            start(device, "crash_segv").wait(SOON)
        server.wait_for(f"session {round_} died of SIGSEGV")
    works(server.uri)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_h26_a_server_that_is_told_to_stop_does_not_wait_for_an_endless_kernel(serve, gone, scheme, number):
    server = serve(scheme)
    with remora.open(server.uri) as device:
        pid = server.session_of(1)
        running = start(device, "spin")
        with pytest.raises(remora.DeadlineError):
            running.wait(0.05)
        server.signal(number)
        with pytest.raises(remora.BrokenError, match="the server is stopping") as caught:
            running.wait(SOON)
        assert server.address in str(caught.value)
        assert server.wait(SOON) == 0
        gone(pid)


def test_h06_the_server_keeps_no_descriptor_and_no_process_of_a_session_that_ended(serve, until):
    """Whatever way they end: closed, crashed, killed, told to go."""
    server = serve(max_sessions=4)
    place = Path(f"/proc/{server.pid}/fd")

    def one_of_each(first):
        with remora.open(server.uri) as device:
            device.upload(b"x" * 100_000).close()
        with remora.open(server.uri) as device, pytest.raises(remora.DeviceLostError):
            start(device, "crash_segv").wait(SOON)
        with remora.open(server.uri) as device, pytest.raises(remora.DeviceLostError):
            held = device.queue.barrier(wait=device.semaphore().at(1))
            os.kill(server.session_of(first + 2), signal.SIGKILL)
            held.wait(SOON)
        for number in range(first, first + 3):
            server.wait_for(f"session {number} ")
        server.wait_for_sessions(0)

    one_of_each(1)
    before = len(list(place.iterdir()))
    for first in (4, 7, 10):
        one_of_each(first)
    # the last session of the first round may not have been reaped yet when `before` was counted
    until(lambda: len(list(place.iterdir())) <= before, lambda: f"{before} descriptors became {len(list(place.iterdir()))}")
