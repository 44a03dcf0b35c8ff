"""H13: operations that are held on the client go as soon as they can, whatever else is under way."""

from contextlib import contextmanager

import pytest
from tests.remote.processes import go_on, stop

import remora
from remora import samples

LONG = 20.0


@pytest.fixture
def server(serve):
    return serve(max_sessions=1)


@pytest.fixture
def device(server):
    with remora.open(server.uri) as device:
        device.queue.wait_idle(LONG)
        yield device


@pytest.fixture
def stopped(server):
    """While it is entered the session's process does nothing."""

    @contextmanager
    def until_exit():
        (pid,) = server.session_pids()
        stop(pid)
        try:
            yield
        finally:
            go_on(pid)

    return until_exit


def test_h13_a_held_operation_goes_when_the_window_has_room_again(device, stopped):
    """Another queue has filled the session's window when the gate opens."""
    gate = device.semaphore()
    held = device.queues[0].barrier(wait=gate.at(1))
    with stopped():
        while device.host.link.session.submission.in_flight < device.host.link.session.accepted.command_window:
            device.queues[1].barrier()
        gate.signal(1)
        assert not held.done
    held.wait(LONG)
    assert held.done


def test_h13_a_held_operation_goes_when_the_outbox_has_room_again(device, stopped):
    gate = device.semaphore()
    target = device.allocate(1 << 16)
    held = device.queues[0].barrier(wait=gate.at(1))
    with stopped():
        while not device.host.crowded():
            device.queues[1].update(target, bytes(1 << 16))
        gate.signal(1)
        assert not held.done
    held.wait(LONG)
    assert held.done


def test_h13_held_operations_keep_their_order_and_their_resources(device):
    """Buffers and code are closed while what uses them is held."""
    gate = device.semaphore()
    kernels = device.load(samples.load("vector"))
    fill = kernels["fill_index"]
    kept = device.allocate(4 * 64)
    device.queue.barrier(wait=gate.at(1))
    for step in range(64):
        with device.allocate(4) as passing:
            device.queue.dispatch(fill, (1, 1, 1), [passing], (1, step))
            device.queue.copy(passing, kept.view(4 * step, 4))
    kernels.close()
    gate.signal(1)
    assert kept.read(timeout=LONG).cast("I").tolist() == list(range(64))
