"""H06, H07, H03: sessions begin and end; a broken client costs nobody anything."""

import contextlib
import os
import signal
import socket
import struct
from dataclasses import replace

import pytest
from tests.remote.raw import LONG, raw_client

import remora
from remora.base.uri import parse_uri, split_host_port
from remora.carriers import connect as connect_carrier
from remora.errors import BrokenError, BusyError, NotFoundError
from remora.session.state import Lane
from remora.wire import commands
from remora.wire.bootstrap import Hello, Join, Reject, decode_bootstrap, encode_bootstrap

FRAME = encode_bootstrap(Hello(client="half"))


def place(server):
    return split_host_port(parse_uri(server.uri).place)


@contextlib.contextmanager
def plain(server, data=b""):
    with socket.create_connection(place(server), timeout=LONG) as connection:
        connection.sendall(data)
        yield connection


def works(server, timeout=LONG):
    with remora.open(f"{server.uri}?timeout={timeout:g}") as device, device.upload(b"works") as buffer:
        return bytes(buffer.read(timeout=LONG)) == b"works"


def answer(connection):
    """Everything the server says before it closes the connection."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while more := connection.recv(4096):
            data += more
    return data


def test_h06_a_full_server_refuses_with_the_reason_and_reuses_slots(serve):
    server = serve(max_sessions=2)
    with remora.open(server.uri) as first, remora.open(server.uri) as second:
        for _ in range(3):
            with pytest.raises(BusyError, match=r"2 sessions.*in use.*try again later"):
                remora.open(server.uri)
        first.close()
        with remora.open(server.uri, retry=LONG) as third:
            third.queue.barrier().wait(LONG)
            second.queue.barrier().wait(LONG)
            with pytest.raises(BusyError):
                remora.open(server.uri)
    for _ in range(6):
        with remora.open(server.uri, retry=LONG) as again:
            again.queue.barrier().wait(LONG)


def test_h06_a_killed_session_frees_its_slot(serve):
    server = serve(max_sessions=1)
    with remora.open(server.uri) as device:
        pids = server.session_pids()
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(remora.Error):
            device.queue.barrier().wait(LONG)
    with remora.open(server.uri, retry=LONG) as device:
        device.queue.barrier().wait(LONG)


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", bytes(64), b"\xff" * 64, struct.pack("<I", 1 << 30) + bytes(60)])
def test_h06_garbage_is_refused_with_a_reason(server, garbage):
    with plain(server, garbage) as connection:
        reject = decode_bootstrap(memoryview(answer(connection)))
    assert isinstance(reject, Reject)
    assert works(server)


def test_h06_half_a_hello_and_silence_hold_nobody_up(server):
    with plain(server, FRAME[: len(FRAME) // 2]), plain(server), plain(server, FRAME[:1]):
        assert works(server, timeout=5)


def test_h06_more_silent_clients_than_the_server_waits_for(server):
    with contextlib.ExitStack() as stack:
        for _ in range(80):
            stack.enter_context(plain(server))
        assert works(server, timeout=5)


def test_h06_a_hundred_connects_that_vanish(server):
    for number in range(100):
        with plain(server, FRAME[: number % len(FRAME)]) as connection:
            if number % 2:  # reset instead of an orderly end
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert works(server, timeout=5)


def test_h06_clients_that_vanish_after_accept_free_their_slots(serve):
    server = serve(max_sessions=3)
    for _ in range(6):
        with plain(server, FRAME) as connection:
            connection.recv(1)
            with contextlib.suppress(remora.Error):
                remora.open(server.uri).close()
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            device = stack.enter_context(remora.open(server.uri, retry=LONG))
            device.queue.barrier().wait(LONG)
        assert len(server.session_pids()) == 3


def test_h06_a_frame_trickles_in(server):
    with plain(server) as connection:
        for at in range(len(FRAME)):
            connection.sendall(FRAME[at : at + 1])
        assert connection.recv(1)
    assert works(server)


def test_h26_a_lane_joins_only_with_the_token(server):
    with raw_client(server.uri) as raw:
        accept = raw.session.accepted
        good = Join(accept.session_id, accept.token, Lane.QUEUE)
        wrong = [
            replace(good, token=bytes(16)),
            replace(good, token=accept.token[:-1] + bytes([accept.token[-1] ^ 1])),
            replace(good, session_id=accept.session_id + 1000),
            good,  # the lane is there already
        ]
        for join in wrong:
            with plain(server, encode_bootstrap(join)) as connection:
                reject = decode_bootstrap(memoryview(answer(connection)))
            assert isinstance(reject.error, NotFoundError)
        epoch = raw.command(0, commands.BARRIER)
        raw.send()
        raw.advanced(0, epoch)
    assert works(server)


@pytest.mark.parametrize("lane", [Lane.CONTROL, Lane.QUEUE, Lane.BULK])
def test_h06_garbage_on_a_lane_ends_that_session_only(server, lane):
    with remora.open(server.uri) as other, raw_client(server.uri) as raw:
        raw.carriers[lane].send_all(b"\xff" * 64, timeout=LONG)
        assert isinstance(raw.failed(), BrokenError)
        other.queue.barrier().wait(LONG)
    assert works(server)


def test_h07_clients_have_names_of_their_own(server):
    """The same ids on two sessions are different things."""
    with remora.open(server.uri) as one, remora.open(server.uri) as two:
        mine, theirs = one.upload(b"mine"), two.upload(b"them")
        one.queue.wait_idle(LONG)
        two.queue.wait_idle(LONG)
        assert mine.resource == theirs.resource
        two.queue.fill(theirs, b"x").wait(LONG)
        assert bytes(mine.read(timeout=LONG)) == b"mine"


def test_h03_an_unknown_capability_is_refused_with_the_reason(server):
    carrier = connect_carrier(f"tcp://{parse_uri(server.uri).place}", timeout=LONG)
    with carrier:
        carrier.activate()
        carrier.send_all(encode_bootstrap(Hello(client="picky", capabilities=1 << 20, required=1 << 20)), timeout=LONG)
        with carrier.receive(LONG) as lease:
            reject = decode_bootstrap(memoryview(bytes(lease.view)))
    assert isinstance(reject, Reject)
    assert "capability" in str(reject.error)
    assert works(server)
