"""H16: what costs a round trip, counted by the link."""

import pytest

from remora import samples

LONG = 20.0
pytestmark = [pytest.mark.interpreted, pytest.mark.usefixtures("only_who_waits_reads")]


@pytest.fixture
def fill_index(device):
    return device.load(samples.load("vector"))["fill_index"]


def trips(device):
    return device.link_statistics().round_trips


def test_h16_allocate_fill_dispatch_and_read_cost_one(device, fill_index):
    device.queue.wait_idle(LONG)
    before = trips(device)
    with device.allocate(4096) as buffer:
        device.queue.fill(buffer, b"\xff")
        device.queue.dispatch(fill_index, (1, 1, 1), [buffer], (4, 7))
        got = buffer.read(timeout=LONG).cast("I")
    assert got[:5].tolist() == [7, 8, 9, 10, 0xFFFFFFFF]
    assert trips(device) - before == 1


def test_h16_so_does_memory_of_the_queue(device, fill_index):
    device.queue.wait_idle(LONG)
    before = trips(device)
    buffer, _ = device.queue.allocate(4096)
    device.queue.fill(buffer, b"\xff")
    device.queue.dispatch(fill_index, (1, 1, 1), [buffer], (4, 7))
    into = bytearray(20)
    done = device.queue.read(buffer, into)
    device.queue.deallocate(buffer)
    done.wait(LONG)
    assert memoryview(into).cast("I").tolist() == [7, 8, 9, 10, 0xFFFFFFFF]
    assert trips(device) - before == 1


def test_h16_so_does_the_same_through_bulk(device, fill_index):
    device.queue.wait_idle(LONG)
    before = trips(device)
    with device.allocate(1 << 20) as buffer:
        device.queue.update(buffer, bytes(1 << 20))
        device.queue.dispatch(fill_index, fill_index.grid_for(1 << 18), [buffer], (1 << 18, 0))
        got = buffer.read(timeout=LONG).cast("I")
    assert (got[0], got[-1]) == (0, (1 << 18) - 1)
    assert trips(device) - before == 1


def test_h16_submitting_costs_none(device, fill_index):
    device.queue.wait_idle(LONG)
    before = trips(device)
    gate = device.semaphore()
    buffers = [device.allocate(64) for _ in range(20)]
    for buffer in buffers:
        device.queue.fill(buffer, b"x", wait=gate.at(1))
        device.queues[1].dispatch(fill_index, (1, 1, 1), [buffer], (1, 1), wait=device.queue.barrier())
        buffer.close()
    assert trips(device) == before
    gate.signal(1)
    for queue in device.queues:
        queue.wait_idle(LONG)
    assert trips(device) - before <= len(device.queues)


def test_h16_loading_costs_one(device):
    before = trips(device)
    device.load(samples.load("vector"))
    assert trips(device) - before == 1


def test_h16_facts_and_finished_timepoints_cost_none(device):
    done = device.queue.barrier()
    done.wait(LONG)
    before = trips(device)
    assert done.done
    done.wait(LONG)
    assert device.targets
    assert device.info.heaps
    device.statistics()
    assert trips(device) == before


def test_h12_many_commands_go_in_few_sends(device):
    device.queue.wait_idle(LONG)
    before = device.link_statistics()
    for _ in range(1000):
        last = device.queue.barrier()
    last.wait(LONG)
    after = device.link_statistics()
    assert after.commands - before.commands == 1000
    assert after.sends - before.sends <= 500
