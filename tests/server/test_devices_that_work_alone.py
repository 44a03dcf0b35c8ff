"""H13, H20, H21: a server in front of a device that works by itself, in memory that the host cannot address."""

import os

import pytest

import remora
from remora.drivers.null.buffer import NullBuffer
from remora.hal import registry
from remora.server import dispatch
from remora.testing.cts.compare import same
from remora.testing.server import SharedServer

LONG = 20.0
MIB = 1 << 20


@pytest.fixture(params=[50e-6, 0.0], ids=["lingers", "hurries"])
def server(request, monkeypatch, tmp_path):
    """Answers come from the thread that took the commands, or from the queue's own."""
    monkeypatch.setitem(registry.DRIVERS, "streaming", "tests.hal.streaming")
    monkeypatch.setattr(NullBuffer, "memory_at_turn", lambda _: None)
    monkeypatch.setattr(dispatch, "LINGER_S", request.param)
    server = SharedServer("streaming", ["tcp://127.0.0.1:0", f"unix://{tmp_path}/s"])
    server.start()
    yield server
    server.close()


@pytest.fixture(params=["tcp", "unix", "copied"])
def device(request, server):
    uri = next(uri for uri in server.uris if uri.startswith(f"remote-{'tcp' if request.param == 'tcp' else 'unix'}"))
    with remora.open(uri + ("?shared=0" if request.param == "copied" else "")) as device:
        yield device


def test_h13_answers_come_in_order_from_whoever_looks(device):
    with device.allocate(64) as buffer:
        for number in range(200):
            device.queue.fill(buffer, bytes([number]))
            if number % 7 == 0:
                assert bytes(buffer.read(0, 1, timeout=LONG)) == bytes([number])
        points = [queue.barrier() for queue in device.queues for _ in range(20)]
        for point in points:
            point.wait(LONG)


@pytest.mark.parametrize("size", [(64 << 10) + 1, MIB, 5 * MIB + 3])
def test_h20_large_transfers_go_through_staging_memory(device, size):
    data = [os.urandom(size) for _ in range(3)]
    with device.allocate(size) as buffer:
        for each in data:
            buffer.write(each, timeout=LONG)
            assert same(buffer.read(timeout=LONG), each)
    if device.host.segments is not None and size >= MIB:  # the client has moved them itself
        assert device.link_statistics().bytes_sent < size


def test_h21_several_transfers_at_once_have_memory_of_their_own(device):
    data = [os.urandom(MIB) for _ in range(6)]
    into = [bytearray(MIB) for _ in data]
    buffers = [device.allocate(MIB) for _ in data]
    ends = []
    for number, (buffer, each) in enumerate(zip(buffers, data, strict=True)):
        queue = device.queues[number % len(device.queues)]
        queue.update(buffer, each)
        ends.append(queue.read(buffer, into[number]))
    for end in ends:
        end.wait(LONG)
    assert all(same(got, sent) for got, sent in zip(into, data, strict=True))


def test_h25_a_refused_upload_leaves_the_device_in_order(device):
    data = os.urandom(MIB)
    with device.allocate(MIB) as buffer:
        with pytest.raises(remora.UsageError):
            buffer.write(data, 1, timeout=LONG)
        buffer.write(data, timeout=LONG)
        assert same(buffer.read(timeout=LONG), data)
