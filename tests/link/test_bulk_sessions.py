"""Sessions that end in the middle of uploads and downloads: nothing waits for them, and each ends exactly once (H05, H27)."""

import threading
from time import monotonic

import pytest

import remora
from remora import samples
from remora.testing.proxy import DelayProxy
from remora.testing.server import ServerProcess

SOON = 10.0
MIB = 1 << 20


class Transfers:
    """Uploads and downloads on the first queue, and how often each of them was said to be done."""

    def __init__(self, device, count, size, behind=None):
        self._changed = threading.Condition()
        self.ends = {}
        self.memory = [bytearray(size) for _ in range(2 * count)]
        self.buffers = [device.allocate(size) for _ in range(count)]
        queue, self.points = device.queue, []
        if behind is not None:
            queue.dispatch(behind, (1, 1, 1), [])
        for number, buffer in enumerate(self.buffers):
            self.points.append(queue.update(buffer, self.memory[2 * number]))
            self.points.append(queue.read(buffer, self.memory[2 * number + 1]))
        for number, point in enumerate(self.points):
            point.on_done(lambda number=number: self._end(number))

    def _end(self, number):
        with self._changed:
            self.ends[number] = self.ends.get(number, 0) + 1
            self._changed.notify_all()

    def check(self):
        """Each ends once, with or without an error; returns how many were done without."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.ends) == len(self.points), SOON)
            assert set(self.ends.values()) == {1}
        failure = self.points[0].semaphore.failure
        assert failure is not None
        return sum(point.semaphore._value >= point.value for point in self.points)


@pytest.fixture
def server():
    with ServerProcess() as server:
        yield server


def lanes_of(name):
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


def test_h27_closing_does_not_wait_for_uploads_that_wait_for_a_kernel(server):
    with remora.open(server.uri) as device:
        transfers = Transfers(device, 8, 4 * MIB, behind=device.load(samples.load("faults"))["spin"])
        begin = monotonic()
        device.close()
        assert monotonic() - begin < SOON
        assert transfers.check() == 0
    assert not lanes_of("remora bulk")


@pytest.mark.parametrize("done", [0, 1, 5])
def test_h27_the_client_closes_in_the_middle_of_transfers(server, done):
    with remora.open(server.uri) as device:
        transfers = Transfers(device, 6, 16 * MIB)
        if done:
            transfers.points[done - 1].wait(SOON)
        begin = monotonic()
        device.close()
        assert monotonic() - begin < SOON
        assert transfers.check() >= done
    assert not lanes_of("remora bulk")
    with remora.open(server.uri) as device:  # the server is as good as before
        assert bytes(device.upload(b"x" * MIB).read(timeout=SOON)) == b"x" * MIB


@pytest.mark.parametrize("done", [0, 1, 5])
def test_h05_the_server_dies_in_the_middle_of_transfers(server, done):
    with remora.open(server.uri) as device:
        transfers = Transfers(device, 6, 16 * MIB)
        if done:
            transfers.points[done - 1].wait(SOON)
        server.kill()
        assert transfers.check() >= done
    assert not lanes_of("remora bulk")


@pytest.mark.parametrize("done", [0, 3])
def test_h05_the_link_is_cut_in_the_middle_of_transfers(server, done):
    with DelayProxy(server.addresses[0], 0.005) as proxy, remora.open(f"remote-{proxy.address}") as device:
        transfers = Transfers(device, 6, 8 * MIB)
        if done:
            transfers.points[done - 1].wait(SOON)
        proxy.cut()
        assert transfers.check() >= done
    assert not lanes_of("remora bulk")


def test_h27_a_callback_of_a_download_closes_the_device(server):
    with remora.open(server.uri) as device:
        buffer = device.upload(bytes(8 * MIB))
        closed = threading.Event()
        point = device.queue.read(buffer, bytearray(8 * MIB))
        point.on_done(lambda: (device.close(), closed.set()))
        assert closed.wait(SOON)
    assert device.closed


def test_h02_small_commands_of_another_queue_pass_a_large_upload(server):
    with remora.open(server.uri) as device:
        kernel = device.load(samples.load("vector"))["empty"]
        buffer, data = device.allocate(256 * MIB), bytes(256 * MIB)
        upload = device.queue.update(buffer, data)
        passed = 0
        while upload.semaphore._value < upload.value:
            device.queues[-1].dispatch(kernel, (1, 1, 1), []).wait(SOON)
            passed += 1
        assert passed > 3
