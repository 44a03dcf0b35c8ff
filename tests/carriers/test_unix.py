"""unix: who may open the socket, whose path it is, and passing descriptors (H30)."""

import os
import socket
import stat
import threading
from pathlib import Path

import pytest
from tests.descriptors import count_open

from remora.carriers import connect, listen
from remora.errors import BrokenError, UsageError
from remora.testing.cts.carrier import background, read_exactly

LONG = 20.0


@pytest.fixture
def address(tmp_path):
    return f"unix://{tmp_path}/s"


@pytest.fixture
def pair(address):
    with listen(address) as listener, connect(address) as client, listener.accept(LONG) as server:
        client.activate()
        server.activate()
        yield client, server


def test_h30_only_the_owner_may_open_the_socket(address, tmp_path):
    with listen(address):
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600


def test_the_path_goes_with_the_listener(address, tmp_path):
    with listen(address):
        assert (tmp_path / "s").exists()
    assert not (tmp_path / "s").exists()


def test_a_socket_left_behind_is_replaced(address, tmp_path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "s"))
    with listen(address) as listener, connect(address), listener.accept(LONG) as server:
        assert server is not None


def test_a_living_socket_and_a_file_are_left_alone(address, tmp_path):
    with listen(address), pytest.raises(UsageError, match="another server"):
        listen(address)
    (tmp_path / "s").write_text("precious")
    with pytest.raises(UsageError, match="no socket"):
        listen(address)
    assert (tmp_path / "s").read_text() == "precious"


def test_close_leaves_a_path_that_is_not_ours_any_more(address, tmp_path):
    with listen(address):
        (tmp_path / "s").rename(tmp_path / "moved")
        (tmp_path / "s").write_text("precious")
    assert (tmp_path / "s").read_text() == "precious"


def test_a_forked_copy_does_not_remove_the_path(address, tmp_path):
    with listen(address) as listener:
        child = os.fork()
        if not child:
            try:
                listener.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert (tmp_path / "s").exists()
        with connect(address), listener.accept(LONG) as server:
            assert server is not None


def test_relative_long_and_unwritable_paths_are_explained(tmp_path):
    for uri, says in (
        (f"unix://{'x' * 4}/s", "absolute"),
        (f"unix:///{'x' * 120}", "107 bytes"),
        (f"unix://{tmp_path}/no/s", "cannot listen"),
    ):
        with pytest.raises(UsageError, match=says):
            listen(uri)


def test_a_full_queue_is_no_answer_in_time(address, tmp_path):
    with socket.socket(socket.AF_UNIX) as full:
        full.bind(str(tmp_path / "s"))
        full.listen(0)
        with connect(address, timeout=LONG), pytest.raises(BrokenError, match="accepts no connections"):
            connect(address, timeout=0.05)


def test_the_peer_is_named_by_its_process(pair):
    client, server = pair
    assert f"pid={os.getpid()}" in server.peer
    assert client.peer == server.local


def test_descriptors_and_plain_bytes_keep_their_order(pair):
    client, server = pair
    with Path(os.devnull).open() as file:
        client.send(b"plain")
        assert read_exactly(server, 5) == b"plain"
        for number in range(3):
            client.send_fds(bytes([number]), [file.fileno()] * (number + 1))
        client.send(b"after")
        for number in range(3):
            data, fds = server.receive_fds(3, LONG)
            assert (data, len(fds)) == (bytes([number]), number + 1)
            for fd in fds:
                assert os.path.sameopenfile(fd, file.fileno())
                os.close(fd)
        assert read_exactly(server, 5) == b"after"


def test_more_descriptors_than_asked_for_break_the_connection_and_leak_none(pair):
    client, server = pair
    with Path(os.devnull).open() as file:
        client.send_fds(b"x", [file.fileno()] * 40)
        before = count_open(os.devnull)
        with pytest.raises(BrokenError, match="more than 1 descriptors"):
            server.receive_fds(1, LONG)
        assert count_open(os.devnull) == before


def test_wrong_counts_of_descriptors_are_usage_errors(pair):
    client, server = pair
    for data, fds in ((b"", [0]), (b"x", []), (b"x" * 5000, [0]), (b"x", [0] * 300)):
        with pytest.raises(UsageError):
            client.send_fds(data, fds)
    for count in (0, 300):
        with pytest.raises(UsageError):
            server.receive_fds(count)


def test_receive_fds_gives_up_in_time_and_sees_the_end(pair):
    client, server = pair
    assert server.receive_fds(1, 0) is None
    assert server.receive_fds(1, 0.05) is None
    waiting = background(lambda: server.receive_fds(1, LONG))
    client.close()
    with pytest.raises(BrokenError, match="closed"):
        waiting.result(LONG)


def test_descriptors_wait_behind_a_bulk_transfer(pair):
    client, server = pair
    big = bytes(8 << 20)
    bulk = background(lambda: client.send_all(big, timeout=LONG))
    with Path(os.devnull).open() as file:
        rights = background(lambda: client.send_fds(b"!", [file.fileno()], LONG))
        room = bytearray(len(big))
        filled = 0
        while filled < len(room):
            filled += server.receive_into(memoryview(room)[filled:], LONG)
        bulk.result(LONG)
        got = server.receive_fds(1, LONG)
        rights.result(LONG)
    assert got is not None
    assert (got[0], len(got[1])) == (b"!", 1)
    os.close(got[1][0])
    assert threading.active_count() < 20
