"""Two processes: kill -9 at each state, stop, and handing a connection to another process (H05, H08)."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from time import monotonic

import pytest

from remora.carriers import Keepalive, connect, listen
from remora.errors import BrokenError
from remora.testing.cts.carrier import background, read_exactly

LONG = 20.0

PEER = """
import os, sys
from remora.carriers import connect
from remora.errors import BrokenError
carrier = connect(sys.argv[1])
carrier.activate()
carrier.send(b"ready")
def echo():
    while True:
        with carrier.receive() as lease:
            carrier.send_all(lease.view)
def silent():
    sys.stdin.read()
def flood():
    while True:
        carrier.send_all(bytes(1 << 20))
try:
    globals()[sys.argv[2]]()
except BrokenError as error:
    sys.exit(f"ended: {error}")
"""


@contextmanager
def peer(address, what):
    """A process that connects and does `what`; the carrier to it and the process."""
    with listen(address) as listener:
        command = [sys.executable, "-c", PEER, listener.address, what]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            with process, listener.accept(LONG) as carrier:
                carrier.activate()
                carrier.settle()
                got = bytearray(5)
                filled = 0
                while filled < 5:
                    filled += carrier.receive_into(memoryview(got)[filled:], LONG)
                assert got == b"ready"
                yield carrier, process
                process.kill()
        finally:
            process.kill()


@pytest.fixture(params=["tcp", "unix", "shm"])
def address(request, tmp_path):
    return "tcp://127.0.0.1:0" if request.param == "tcp" else f"{request.param}://{tmp_path}/s"


def test_bytes_cross_processes(address):
    data = os.urandom(1 << 20)
    with peer(address, "echo") as (carrier, _):
        sender = background(lambda: carrier.send_all(data, timeout=LONG))
        assert read_exactly(carrier, len(data)) == data
        sender.result(LONG)


@pytest.mark.parametrize("blocked", ["receive", "receive_into", "send_all"])
def test_h08_kill_of_the_peer_ends_a_blocked_call(address, blocked):
    with peer(address, "silent") as (carrier, process):
        work = {
            "receive": carrier.receive,
            "receive_into": lambda: carrier.receive_into(bytearray(10)),
            "send_all": lambda: carrier.send_all(bytes(64 << 20)),
        }
        waiting = background(work[blocked])
        assert not waiting.done()
        process.send_signal(signal.SIGKILL)
        begin = monotonic()
        with pytest.raises(BrokenError) as caught:
            waiting.result(LONG)
        assert monotonic() - begin < 10
        assert carrier.peer in str(caught.value)


def test_h08_kill_in_the_middle_of_a_stream(address):
    with peer(address, "flood") as (carrier, process):
        room = bytearray(1 << 20)
        for _ in range(3):
            assert carrier.receive_into(room, LONG) > 0
        process.send_signal(signal.SIGKILL)
        with pytest.raises(BrokenError):
            drain(carrier)


def drain(carrier):
    room = bytearray(1 << 20)
    while carrier.receive_into(room, LONG):
        pass


def test_h05_the_peer_is_told_when_this_side_is_closed(address):
    with peer(address, "echo") as (carrier, process):
        carrier.close()
        assert process.wait(LONG) != 0
        assert b"ended: the peer closed the connection" in process.stderr.read()


def test_a_stopped_peer_that_takes_nothing_meets_the_keepalive_deadline():
    """H08: a stopped process still answers probes, but not for ever while bytes wait for it."""
    with listen("tcp://127.0.0.1:0", keepalive=Keepalive(1, 2)) as listener:
        command = [sys.executable, "-c", PEER, listener.address, "silent"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                with listener.accept(LONG) as carrier:
                    carrier.activate()
                    assert read_exactly(carrier, 5) == b"ready"
                    process.send_signal(signal.SIGSTOP)
                    with pytest.raises(BrokenError, match="keepalive deadline"):
                        carrier.send_all(bytes(64 << 20), timeout=50)
            finally:
                process.kill()


HEIR = """
import socket, sys
from remora.carriers import adopt
with socket.socket(fileno=int(sys.argv[1])) as lane:
    data, fds, _, _ = socket.recv_fds(lane, 100, 1)
with adopt(sys.argv[2], fds[0], data.decode()) as carrier:
    carrier.activate()
    carrier.send(b"I am the heir of ", carrier.peer.encode())
    with carrier.receive(20) as lease:
        carrier.send(lease.view)
    carrier.shutdown()
    carrier.receive(20)
"""


def test_a_connection_is_handed_to_another_process(address):
    scheme = address.partition(":")[0]
    with listen(address) as listener, connect(listener.address) as client:
        client.activate()
        server = listener.accept(LONG)
        server.activate()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            command = [sys.executable, "-c", HEIR, str(theirs.fileno()), scheme]
            with subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.DEVNULL) as heir:
                try:
                    fd = server.detach()
                    socket.send_fds(ours, [server.peer.encode()], [fd])
                    os.close(fd)
                    hello = f"I am the heir of {server.peer}".encode()
                    assert read_exactly(client, len(hello)) == hello
                    client.send(b"still connected")
                    assert read_exactly(client, 15) == b"still connected"
                    client.close()
                    heir.wait(LONG)
                finally:
                    heir.kill()
