"""H05, H23: a link or process that ends in the middle of a file; a file that goes wrong in the middle of a transfer."""

import os
import signal

import pytest

import remora
from remora.errors import Status
from remora.testing.proxy import DelayProxy, Direction

SOON = 20.0
MIB = 1 << 20
SIZE = 64 * MIB


@pytest.fixture
def big(tmp_path):
    """A file of 64 MiB."""
    path = tmp_path / "big.bin"
    path.write_bytes(os.urandom(MIB) * (SIZE // MIB))
    return path


def begin(device, what, path):
    """Start to read or write a whole file; returns (file, buffer, timepoint)."""
    buffer = device.allocate(SIZE)
    if what == "read":
        file = device.open_file(path)
        return file, buffer, device.queue.read_file(file, 0, buffer)
    file = device.open_file(path.with_name("copy"), "w")
    return file, buffer, device.queue.write_file(buffer, file)


def moved(device, what):
    counts = device.link_statistics()
    return counts.bytes_sent if what == "read" else counts.bytes_received


@pytest.mark.parametrize("what", ["read", "write"])
@pytest.mark.parametrize("how", ["cut", "stall"])
def test_h05_the_link_ends_in_the_middle(serve, works, until, big, what, how):
    server = serve(max_sessions=1, keepalive=0.3, deadline=1.5)
    with DelayProxy(server.address, 0.01, held_bytes=4 * MIB) as proxy:
        with remora.open(f"remote-{proxy.address}?keepalive=0.2&deadline=1") as device:
            file, buffer, done = begin(device, what, big)
            direction = Direction.UP if what == "read" else Direction.DOWN
            until(lambda: proxy.delivered_bytes(direction) > 6 * MIB)
            getattr(proxy, how)()
            with pytest.raises(remora.BrokenError) as caught:
                done.wait(SOON)
            assert proxy.address in str(caught.value)
            file.close()
            buffer.close()
        assert moved(device, what) < SIZE
    server.wait_for("session 1 ended")
    works(server.uri)


@pytest.mark.parametrize("what", ["read", "write"])
def test_h26_the_session_is_killed_in_the_middle(serve, scheme, works, until, big, what):
    """Over unix the server has the descriptor, and nothing says how far it is."""
    server = serve(scheme, max_sessions=1)
    with remora.open(server.uri) as device:
        file, buffer, done = begin(device, what, big)
        if scheme == "tcp":
            until(lambda: moved(device, what) > MIB)
        os.kill(server.session_of(1), signal.SIGKILL)
        try:
            done.wait(SOON)
        except remora.DeviceLostError as error:
            assert "SIGKILL" in str(error)
        file.close()
        buffer.close()
    server.wait_for("session 1")
    until(lambda: not server.session_pids())
    works(server.uri)


CLIENT = """
import sys, threading
import remora

size = 64 << 20
device = remora.open(sys.argv[1])
buffer = device.allocate(size)
file = device.open_file(sys.argv[2], "r" if sys.argv[3] == "read" else "w")
print("ready", flush=True)
while True:
    if sys.argv[3] == "read":
        device.queue.read_file(file, 0, buffer).wait(20)
    else:
        device.queue.write_file(buffer, file).wait(20)
    print("turn", flush=True)
"""


@pytest.mark.parametrize("what", ["read", "write"])
def test_h05_the_client_is_killed_in_the_middle(serve, scheme, client, works, gone, big, what):
    server = serve(scheme, max_sessions=1)
    program = client(CLIENT, server.uri, big if what == "read" else big.with_name("copy"), what)
    program.lines.wait_for("turn", 2)
    session = server.session_of(1)
    program.kill()
    gone(session)
    server.wait_for("session 1 ended")
    works(server.uri)


def works_on(device, size=3 * MIB):
    """The last queue still moves more transfers at once than may be staged without a destination, in both directions."""
    queue = device.queues[-1]
    data = [os.urandom(size) for _ in range(12)]
    buffers = [device.allocate(size) for _ in data]
    for buffer, part in zip(buffers, data, strict=True):
        queue.update(buffer, part)
    back = [bytearray(size) for _ in data]
    for point in [queue.read(buffer, into) for buffer, into in zip(buffers, back, strict=True)]:
        point.wait(SOON)
    assert back == data


def test_h23_a_file_that_is_cut_while_it_travels(serve, until, big):
    server = serve()
    with DelayProxy(server.address, 0.001, held_bytes=4 * MIB) as proxy, remora.open(f"remote-{proxy.address}") as device:
        for queue in device.queues[:-1]:
            with device.open_file(big) as file, device.allocate(SIZE) as buffer:
                before = proxy.delivered_bytes(Direction.UP)
                done = queue.read_file(file, 0, buffer)
                until(lambda before=before: proxy.delivered_bytes(Direction.UP) > before + 5 * MIB)
                proxy.stall()
                os.truncate(big, 6 * MIB)
                proxy.resume()
                with pytest.raises(remora.UsageError, match="ends at byte") as caught:
                    done.wait(SOON)
                assert caught.value.code is Status.OUT_OF_RANGE
                assert big.name in str(caught.value)
            os.truncate(big, SIZE)
        works_on(device)


FULL = """
import os, resource, sys
import remora

resource.setrlimit(resource.RLIMIT_FSIZE, (9 << 20, 9 << 20))
size = 64 << 20
with remora.open(sys.argv[1]) as device, device.allocate(size) as buffer:
    for queue in device.queues[:-1]:
        with device.open_file(sys.argv[2], "w") as file:
            try:
                queue.write_file(buffer, file).wait(20)
            except remora.DeviceError as error:
                print("failed", error.code.name, error, flush=True)
    queue = device.queues[-1]
    for _ in range(3):
        into = [bytearray(3 << 20) for _ in range(12)]
        for point in [queue.read(buffer, each) for each in into]:
            point.wait(20)
    print("works", flush=True)
"""


def test_h23_a_disk_that_is_full_in_the_middle(serve, client, tmp_path):
    """The process may write no file beyond 9 MiB: what was written stays, and the cause names the file."""
    server = serve()
    program = client(FULL, server.uri, tmp_path / "full.bin")
    program.lines.wait_for("works")
    failures = [line for line in program.lines.seen if line.startswith("failed")]
    assert len(failures) == 3
    assert all("DATA_LOSS" in line and "full.bin: cannot write" in line and "File too large" in line for line in failures)
    assert (tmp_path / "full.bin").stat().st_size <= 9 * MIB
