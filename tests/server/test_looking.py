"""H15: a server looks at a device that works by itself until more commands come, then leaves that to the threads of its queues."""

import threading

import pytest
from tests.hip_standin import standin, standin_library  # noqa: F401 - fixtures

import remora
from remora.server import runner
from remora.testing.server import SharedServer

SOON = 30.0


@pytest.fixture
def device(standin):  # noqa: F811
    """A device that works by itself, behind a server in this process."""
    with SharedServer(device="hip", bind="tcp://127.0.0.1:0") as server, remora.open(server.uri) as device:
        yield device
        standin.hold(False)


def watchers():
    return [thread.name for thread in threading.enumerate() if thread.name.endswith("watcher")]


@pytest.mark.interpreted
def test_h15_what_is_done_within_the_look_wakes_no_other_thread(device, monkeypatch):
    monkeypatch.setattr(runner, "LOOK_S", SOON)
    with device.allocate(4) as buffer:
        for value in range(50):
            device.queue.fill(buffer, bytes([value])).wait(SOON)
        assert buffer.read(timeout=SOON) == bytes([49] * 4)
    assert not watchers()


@pytest.mark.interpreted
@pytest.mark.parametrize("look", [0.0, SOON])
def test_h15_other_commands_are_served_while_a_device_works(device, standin, monkeypatch, look):  # noqa: F811
    monkeypatch.setattr(runner, "LOOK_S", look)
    with device.allocate(64) as buffer, device.allocate(64) as other:
        standin.hold(True)
        late = [queue.fill(buffer, b"\1") for queue in device.queues[:2]]
        gate = device.semaphore()
        behind = device.queues[2].fill(other, b"\2", wait=gate.at(1))
        with device.allocate(1 << 20) as third:
            assert third.size == 1 << 20
        assert not any(point.done for point in late)
        standin.hold(False)
        for point in late:
            point.wait(SOON)
        assert not behind.done
        gate.signal(1)
        behind.wait(SOON)
        assert (buffer.read(timeout=SOON), other.read(timeout=SOON)) == (b"\1" * 64, b"\2" * 64)


def test_h15_a_fault_is_told_whoever_looks(device, standin):  # noqa: F811
    with device.allocate(64) as buffer:
        device.queue.fill(buffer, b"\1").wait(SOON)
        standin.break_with(700)  # an illegal address
        late = device.queue.fill(buffer, b"\2")
        with pytest.raises(remora.DeviceLostError):
            late.wait(SOON)
