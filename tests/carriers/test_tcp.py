"""tcp: options on both sides, addresses, and what happens when the network or the peer is gone (H08, H31)."""

import json
import os
import resource
import socket
import subprocess
import sys

import pytest

from remora.carriers import Keepalive, adopt, connect, listen
from remora.errors import BrokenError, DeadlineError, UsageError
from remora.testing.cts.carrier import background, read_exactly
from remora.testing.proxy import DelayProxy

LONG = 20.0


@pytest.fixture
def pair():
    keepalive = Keepalive(interval=2, deadline=7)
    with (
        listen("tcp://127.0.0.1:0", keepalive=keepalive) as listener,
        connect(listener.address, keepalive=keepalive) as client,
        listener.accept(LONG) as server,
    ):
        client.activate()
        server.activate()
        yield client, server


def option(carrier, name):
    with socket.socket(fileno=os.dup(carrier.fileno())) as copy:
        return copy.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))


def test_h31_no_nagle_and_h08_keepalive_on_either_side(pair):
    for end in pair:
        assert option(end, "TCP_NODELAY") == 1
        assert option(end, "TCP_KEEPIDLE") == 2
        assert option(end, "TCP_KEEPINTVL") == 2
        assert option(end, "TCP_USER_TIMEOUT") == 7000
        # Probes end no later than the deadline: idle + count * interval.
        assert 2 + option(end, "TCP_KEEPCNT") * 2 <= 7 + 2


def test_h31_the_bound_address_is_told_and_both_ends_know_each_other(pair):
    client, server = pair
    assert client.peer == server.local
    assert client.local == server.peer
    assert client.peer.startswith("tcp://127.0.0.1:")


def test_h31_the_wildcard_address_says_so_and_takes_connections():
    with listen("tcp://0.0.0.0:0") as listener:
        assert listener.address.startswith("tcp://0.0.0.0:")
        port = listener.address.rpartition(":")[2]
        with connect(f"tcp://127.0.0.1:{port}"), listener.accept(LONG) as server:
            assert server is not None


def test_an_adopted_carrier_says_both_addresses(pair):
    client, server = pair
    local = client.local
    with adopt("tcp", client.detach(), server.local) as heir:
        assert heir.local == local
        assert heir.peer == server.local


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("tcp://no-such-host.invalid:5000", "no host is called|no name server"),
        ("tcp://127.0.0.1:0", "needs a host and a port"),
        ("tcp://:5000", "needs a host and a port"),
        ("tcp://127.0.0.1:99999", "no port"),
        ("tcp://127.0.0.1:5000?nodelay=0", "only key"),
        ("tcp://127.0.0.1:5000?spin_us=fast", "only key"),
    ],
)
def test_wrong_addresses_are_explained(uri, says):
    with pytest.raises((UsageError, BrokenError), match=says):
        connect(uri)


def test_an_address_that_is_not_ours_cannot_be_listened_on():
    with pytest.raises(UsageError, match=r"cannot listen on tcp://192\.0\.2\.1"):
        listen("tcp://192.0.2.1:0")


@pytest.mark.parametrize("values", [(0, 5), (-1, 5), (5, 5), (6, 5)])
def test_a_keepalive_that_makes_no_sense_is_refused(values):
    with pytest.raises(UsageError):
        Keepalive(*values)


def test_a_connect_without_an_answer_gives_up_in_time():
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = f"tcp://127.0.0.1:{full.getsockname()[1]}"
        with connect(address, timeout=LONG), pytest.raises(BrokenError, match=r"no answer within 0\.1 s"):
            # The queue of an unaccepting listener holds one connection with backlog 0; some kernels take one more.
            for _ in range(3):
                connect(address, timeout=0.1).close()


def test_h05_a_reset_is_told_from_an_orderly_end():
    with (
        listen("tcp://127.0.0.1:0") as listener,
        DelayProxy(listener.address, 0) as proxy,
        connect(proxy.address) as client,
        listener.accept(LONG) as server,
    ):
        client.activate()
        server.activate()
        server.send(b"x")
        assert read_exactly(client, 1) == b"x"
        waiting = background(client.receive)
        proxy.cut()
        with pytest.raises(BrokenError, match="reset by the peer"):
            waiting.result(LONG)


@pytest.mark.slow
def test_h08_a_peer_that_takes_nothing_for_the_deadline_counts_as_dead():
    """TCP_USER_TIMEOUT also counts while the peer's window is closed: the README says so."""
    with (
        listen("tcp://127.0.0.1:0") as listener,
        connect(listener.address, keepalive=Keepalive(1, 2)) as client,
        listener.accept(LONG),
    ):
        client.activate()
        with pytest.raises(BrokenError, match="keepalive deadline"):
            client.send_all(bytes(64 << 20), timeout=50)


def test_send_all_without_a_reader_ends_at_its_own_deadline(pair):
    client, _ = pair
    with pytest.raises(DeadlineError):
        client.send_all(bytes(64 << 20), timeout=0.2)


STARVED = """
import json, resource, sys
from remora.carriers import listen
with listen("tcp://127.0.0.1:0") as listener:
    print(json.dumps(listener.address), flush=True)
    sys.stdin.readline()                        # a client is in the queue now
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = listener.fileno() + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
    print(json.dumps(listener.accept(0.2) is None), flush=True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with listener.accept(20) as carrier:
        carrier.activate()
        carrier.send(b"welcome")
        sys.stdin.readline()
"""


def test_accept_survives_running_out_of_descriptors():
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 16
    with subprocess.Popen([sys.executable, "-c", STARVED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            with connect(json.loads(server.stdout.readline()), timeout=LONG) as client:
                client.activate()
                server.stdin.write("\n")
                server.stdin.flush()
                assert json.loads(server.stdout.readline()) is True
                assert read_exactly(client, 7) == b"welcome"
                server.stdin.write("\n")
                server.stdin.flush()
                assert server.wait(LONG) == 0
        finally:
            server.kill()


def test_a_client_that_gives_up_in_the_queue_does_not_stop_accept():
    with listen("tcp://127.0.0.1:0") as listener:
        host, port = listener.address.removeprefix("tcp://").split(":")
        for _ in range(3):
            gone = socket.create_connection((host, int(port)))
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            gone.close()
        with connect(listener.address) as client:
            client.activate()
            client.send(b"me")
            for _ in range(4):
                with listener.accept(LONG) as server:
                    server.activate()
                    try:
                        assert read_exactly(server, 2) == b"me"
                        break
                    except BrokenError:
                        continue
            else:
                pytest.fail("the living client was never accepted")
