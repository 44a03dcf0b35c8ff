"""H23: a client's file on a server that cannot have its descriptor: what the bytes cost on their way."""

import subprocess
import sys

import pytest

import remora
from remora.errors import BusyError
from remora.testing.server import ServerProcess
from remora.wire.file_commands import PIECE

LONG = 20.0
MIB = 1 << 20

#: Prints by how many KiB the process grew while 256 MiB of a file came and went.
BIG = """
import resource, sys
import remora

size = 256 << 20
with remora.open(sys.argv[1]) as device, device.allocate(size) as buffer:
    with device.open_file(sys.argv[2], "r+") as file:
        device.queue.read_file(file, 0, buffer.view(0, 1 << 20)).wait(20)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        device.queue.read_file(file, 0, buffer)
        device.queue.write_file(buffer, file).wait(60)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_h23_a_large_file_takes_little_memory(server, tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(256 * MIB)
    done = subprocess.run([sys.executable, "-c", BIG, server.uri, path], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 32 << 10


@pytest.mark.parametrize("pieces", [1, 9])
def test_h07_a_file_is_one_transfer_to_the_quota(serve, tmp_path, pieces):
    """However many pieces it has; a refused one ends its queue, and what was on its way is dropped on both sides."""
    size = pieces * PIECE
    path = tmp_path / "file"
    path.write_bytes(b"\x07" * size)
    server = serve(flags=("--session-transfers", "2"))
    with remora.open(server.uri) as device, device.allocate(size) as buffer, device.open_file(path, "r+") as file:
        for queue in device.queues[:2]:
            queue.read_file(file, 0, buffer)
        for queue in device.queues[:2]:
            queue.wait_idle(LONG)
        started, gate = device.event(), device.event()
        with device.command_buffer() as commands:
            commands.signal_event(started)
            commands.wait_event(gate)
        held, *refused = device.queues[:3]
        held.execute(commands)
        started.wait(LONG)  # the recording has arrived, so that what follows is submitted in this order
        held.read_file(file, 0, buffer)
        held.write_file(buffer, file)
        held.flush()
        for queue in refused:
            point = queue.read_file(file, 0, buffer)
            with pytest.raises(BusyError, match="quota of transfers"):
                point.wait(LONG)
        gate.signal()
        held.wait_idle(LONG)
        into = bytearray(size)
        held.read(buffer, into).wait(LONG)
        assert into == path.read_bytes()


def test_h23_null_devices_go_through_a_copy(tmp_path):
    """Memory that the host cannot reach on the server's side takes the same bytes."""
    data = bytes(range(256)) * (40 << 10)
    (tmp_path / "in").write_bytes(data)
    with ServerProcess(device="null") as server, remora.open(server.uri) as device:
        buffer, file, out = device.allocate(len(data)), device.open_file(tmp_path / "in"), device.open_file(tmp_path / "out", "w")
        for turn in range(3):
            device.queue.fill(buffer, b"\0")
            device.queue.read_file(file, 0, buffer)
            device.queue.write_file(buffer, out, turn * len(data))
        device.queue.wait_idle(LONG)
        for thing in (buffer, file, out):
            thing.close()
    assert (tmp_path / "out").read_bytes() == data * 3
