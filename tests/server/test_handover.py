"""H26: a connection moves from the server's parent process to the session's with all that its address asked for."""

import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.faults.processes import wait_until

import remora
from remora.carriers.registry import connect, listen
from remora.errors import BrokenError
from remora.server.handover import HIGH, hand_over, high, take_over
from remora.server.slot import _killed_by
from remora.session.state import Lane


@pytest.fixture
def supervisors():
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield ends
    for end in ends:
        end.close()


@pytest.mark.parametrize("query", ["", "?spin_us=0", "?spin_us=25"])
@pytest.mark.parametrize("scheme", ["tcp", "unix", "shm"])
def test_h26_a_lane_is_handed_over_with_its_bytes_peer_and_polling(supervisors, scheme, query, tmp_path):
    place = "127.0.0.1:0" if scheme == "tcp" else f"{tmp_path}/socket"
    with listen(f"{scheme}://{place}{query}") as listener, connect(listener.address.partition("?")[0]) as client:
        client.activate()
        carrier = listener.accept(10)
        peer = carrier.peer
        carrier.activate()
        client.send(b"first words")
        hand_over(supervisors[0], Lane.QUEUE, carrier)
        lane, heir = take_over(supervisors[1], scheme)
        with heir:
            assert lane is Lane.QUEUE
            assert heir.peer == peer
            assert heir.spin_us == {"": None, "?spin_us=0": 0, "?spin_us=25": 25}[query]
            assert bytes(heir.receive(10).view) == b"first words"


def test_h26_a_parent_that_is_gone_hands_nothing_over(supervisors):
    supervisors[0].close()
    with pytest.raises(BrokenError, match="the server stopped before the session began"):
        take_over(supervisors[1], "tcp")


def test_h26_a_session_that_is_gone_costs_the_parent_nothing(supervisors):
    supervisors[1].close()
    with listen("tcp://127.0.0.1:0") as listener, connect(listener.address) as client:
        client.activate()
        carrier = listener.accept(10)
        carrier.activate()
        hand_over(supervisors[0], Lane.QUEUE, carrier)
        with pytest.raises(BrokenError):
            client.receive(10)


def test_h05_connections_have_higher_numbers_than_memory(serve, tmp_path):
    """Linux closes them first when the process is killed, so the client hears of it before memory is taken down."""
    server = serve("--bind", f"unix://{tmp_path}/s")
    with remora.open(server.uri) as device, device.upload(bytes(1 << 20)), device.allocate(16 << 20):
        (pid,) = server.session_pids()
        files = {int(entry.name): str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()}
        memory = [number for number, name in files.items() if "memfd:remora (" in name]
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        connections = [number for number in files if number >= min(HIGH, most // 2)]
        assert len(connections) == 4, "three lanes, and the line to the parent"
        assert all(files[number].startswith("socket:") for number in connections)
        assert len(memory) >= 2
        assert max(memory) < min(connections)


def test_a_descriptor_moves_up_and_stays_what_it_is():
    read, write = os.pipe()
    moved = high(write)
    assert moved > write
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(write)
    os.write(moved, b"x")
    assert os.read(read, 1) == b"x"
    os.close(read)
    os.close(moved)


def test_where_no_number_is_left_a_descriptor_stays(monkeypatch):
    monkeypatch.setattr("remora.server.handover.HIGH", 1 << 30)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 31, 1 << 31))
    read, write = os.pipe()
    assert high(write) == write
    os.write(write, b"x")
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_h26_what_a_child_dies_of_is_known_before_it_is_waited_for(number):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert _killed_by(child.pid) == 0
        child.send_signal(number)
        wait_until(lambda: _killed_by(child.pid) == number)
    finally:
        child.kill()
        child.communicate()
    assert _killed_by(child.pid) == 0
