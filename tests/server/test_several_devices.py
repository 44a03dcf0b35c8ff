"""H09: all devices of a server, each with its own queues, and each fails alone."""

import pytest

import remora
from remora import samples
from remora.base.frontier import MAX_FRONTIER
from remora.errors import DeviceError
from remora.testing.server import ServerProcess

LONG = 20.0
BIG = 8 << 20
VECTOR, FAULTS = samples.load("vector"), samples.load("faults")
DEVICES = ("cpu", "cpu://?threads=1")


@pytest.fixture(scope="module", params=["processes", "shared"])
def server(request):
    with ServerProcess(device=DEVICES, shared=request.param == "shared") as server:
        yield server


@pytest.fixture
def host(server):
    with remora.connect(server.uri) as host:
        yield host


def runs(device):
    """A kernel gives a right answer on the device."""
    kernel = device.load(VECTOR)["fill_index"]
    with device.allocate(4 * 100) as buffer:
        device.queue.dispatch(kernel, (1, 1, 1), [buffer], (100, 7))
        assert list(memoryview(buffer.read(timeout=LONG)).cast("I")) == [7 + i for i in range(100)]


def test_h09_kernels_run_on_every_device(host):
    assert len(host.devices) == len(DEVICES)
    for device in host.devices:
        runs(device)


@pytest.mark.parametrize("number", range(len(DEVICES)))
def test_h09_any_device_is_picked_by_its_number(server, number):
    with remora.open(f"{server.uri}?device={number}") as device:
        assert device.ordinal == number
        runs(device)


def test_h09_devices_share_the_axes_of_a_session(host):
    axes = [queue.axis for device in host.devices for queue in device.queues]
    assert len(set(axes)) == len(axes) <= MAX_FRONTIER
    for device in host.devices:
        assert 1 <= len(device.queues) <= MAX_FRONTIER // len(DEVICES)


def test_h09_sixteen_devices_have_a_queue_each():
    with ServerProcess(device=("null",) * MAX_FRONTIER) as server, remora.connect(server.uri) as host:
        assert [len(device.queues) for device in host.devices] == [1] * MAX_FRONTIER
        for device in host.devices:
            device.queue.barrier().wait(LONG)


def test_h09_a_queue_that_fails_on_one_device_leaves_the_other_alone(host):
    first, second = host.devices
    with pytest.raises(DeviceError):
        first.queue.dispatch(first.load(FAULTS)["fail"], (1, 1, 1), [], (7,)).wait(LONG)
    with pytest.raises(DeviceError):
        first.queue.barrier()
    first.queues[1].barrier().wait(LONG)
    runs(second)


def test_h09_uploads_to_all_devices_at_once(host):
    buffers = [device.allocate(BIG) for device in host.devices]
    into = [bytearray(BIG) for _ in buffers]
    for number, buffer in enumerate(buffers, 1):
        buffer.device.queue.update(buffer, bytes([number]) * BIG)
    points = [buffer.device.queue.read(buffer, data) for buffer, data in zip(buffers, into, strict=True)]
    for number, (point, data) in enumerate(zip(points, into, strict=True), 1):
        point.wait(LONG)
        assert data == bytes([number]) * BIG
