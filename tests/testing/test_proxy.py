"""The delay proxy: lossless, in order, as far away as it says, and it leaves nothing behind."""

import gc
import os
import threading
from contextlib import contextmanager
from time import monotonic

import pytest

from remora.carriers import connect, listen
from remora.errors import BrokenError, ClosedError, UsageError
from remora.testing.cts.carrier import background, read_exactly
from remora.testing.proxy import DelayProxy, Direction

LONG = 20.0


@contextmanager
def linked(delay_s, **options):
    with (
        listen("tcp://127.0.0.1:0") as listener,
        DelayProxy(listener.address, delay_s, **options) as proxy,
        connect(proxy.address) as client,
        listener.accept(LONG) as server,
    ):
        client.activate()
        server.activate()
        yield proxy, client, server


def test_a_round_trip_takes_at_least_twice_the_delay():
    with linked(0.03) as (_, client, server):
        begin = monotonic()
        client.send(b"ping")
        assert read_exactly(server, 4) == b"ping"
        assert monotonic() - begin >= 0.03
        server.send(b"pong")
        assert read_exactly(client, 4) == b"pong"
        assert monotonic() - begin >= 0.06


def test_the_delay_is_no_limit_on_bandwidth():
    data = os.urandom(1 << 20) * 24
    with linked(0.2) as (proxy, client, server):
        begin = monotonic()
        sender = background(lambda: client.send_all(data, timeout=LONG))
        assert read_exactly(server, len(data)) == data
        sender.result(LONG)
        # In blocks of READ_BYTES one after the other this would take 24 delays and more.
        assert monotonic() - begin < 24 * 0.2
        assert proxy.delivered_bytes(Direction.UP) == len(data)
        assert proxy.delivered_bytes(Direction.DOWN) == 0


def test_messages_sent_together_travel_together():
    count = 100
    with linked(0.05) as (_, client, server):
        begin = monotonic()
        for number in range(count):
            client.send(number.to_bytes(4, "little"))
        got = read_exactly(server, 4 * count)
        assert monotonic() - begin < count * 0.05
    assert got == b"".join(number.to_bytes(4, "little") for number in range(count))


def test_a_stalled_proxy_forwards_nothing_until_it_resumes():
    with linked(0) as (proxy, client, server):
        client.send(b"before")
        assert read_exactly(server, 6) == b"before"
        proxy.stall()
        client.send(b"after")
        server.send(b"reply")
        assert server.receive(0.1) is None
        assert client.receive(0.1) is None
        assert proxy.delivered_bytes(Direction.UP) == 6
        proxy.resume()
        assert read_exactly(server, 5) == b"after"
        assert read_exactly(client, 5) == b"reply"


def test_what_is_held_is_bounded_and_the_sender_feels_it():
    with linked(0, held_bytes=1 << 20) as (proxy, client, server):
        data = os.urandom(1 << 20) * 40
        sender = background(lambda: client.send_all(data, timeout=LONG))
        got = bytearray(read_exactly_at_least(server, 1))
        assert proxy.held_bytes(Direction.UP) <= 2 << 20
        assert not sender.done()
        while len(got) < len(data):
            got += read_exactly_at_least(server, 1)
        assert got == data
        sender.result(LONG)
        assert proxy.held_bytes(Direction.UP) == 0


def read_exactly_at_least(carrier, size):
    got = b""
    while len(got) < size:
        with carrier.receive(LONG) as lease:
            got += lease.view
    return got


def test_one_direction_of_one_connection_is_held():
    with (
        listen("tcp://127.0.0.1:0") as listener,
        DelayProxy(listener.address, 0) as proxy,
        connect(proxy.address) as first,
        listener.accept(LONG) as first_server,
        connect(proxy.address) as second,
        listener.accept(LONG) as second_server,
    ):
        ends = (first, first_server, second, second_server)
        for carrier in ends:
            carrier.activate()
        proxy.hold(1, Direction.DOWN)
        second_server.send(b"late")
        for sender, receiver in ((first_server, first), (first, first_server), (second, second_server)):
            sender.send(b"here")
            assert read_exactly(receiver, 4) == b"here"
        assert second.receive(0.05) is None
        assert proxy.held_bytes(Direction.DOWN) == 4
        proxy.hold(7, Direction.UP)  # there is none
        proxy.release(1, Direction.DOWN)
        assert read_exactly(second, 4) == b"late"


def test_cut_resets_both_sides_and_forwards_the_next_connection():
    with listen("tcp://127.0.0.1:0") as listener, DelayProxy(listener.address, 0) as proxy:
        for _ in range(2):
            with connect(proxy.address) as client, listener.accept(LONG) as server:
                client.activate()
                server.activate()
                client.send(b"x")
                assert read_exactly(server, 1) == b"x"
                waiting = background(client.receive)
                proxy.cut()
                assert proxy.connections() == 0
                with pytest.raises(BrokenError, match="reset"):
                    waiting.result(LONG)
                with pytest.raises(BrokenError, match="reset"):
                    server.receive(LONG)


@pytest.mark.parametrize("direction", Direction)
def test_half_close_ends_one_direction_after_what_is_on_its_way(direction):
    with linked(0.02) as (proxy, client, server):
        first, second = (client, server) if direction is Direction.UP else (server, client)
        second.send(b"hello")
        assert read_exactly(first, 5) == b"hello"
        first.send(b"on its way")
        wait_until_held(proxy, direction, 10)
        proxy.half_close(direction)
        second.send(b"other way")
        assert read_exactly(second, 10) == b"on its way"
        assert read_exactly(first, 9) == b"other way"
        with pytest.raises(BrokenError, match="closed"):
            second.receive(LONG)


def wait_until_held(proxy, direction, size):
    deadline = monotonic() + LONG
    while proxy.held_bytes(direction) + proxy.delivered_bytes(direction) < size:
        assert monotonic() < deadline


def test_the_end_of_a_stream_passes_through():
    with linked(0.01) as (_, client, server):
        client.send(b"last")
        client.shutdown()
        assert read_exactly(server, 4) == b"last"
        server.send(b"answer")
        with pytest.raises(BrokenError):
            server.receive(LONG)
        assert read_exactly(client, 6) == b"answer"


def test_a_target_that_is_gone_resets_the_client():
    with listen("tcp://127.0.0.1:0") as listener:
        address = listener.address

    def use(proxy):
        """The reset may be seen by connect already."""
        with connect(proxy.address) as client:
            client.activate()
            client.receive(LONG)

    with DelayProxy(address, 0) as proxy, pytest.raises(BrokenError, match="reset"):
        use(proxy)


def test_close_joins_the_thread_and_leaves_no_descriptor():
    def run():
        with linked(0.001) as (proxy, client, server):
            client.send(b"x")
            assert read_exactly(server, 1) == b"x"
        proxy.close()
        with pytest.raises(ClosedError):
            proxy.stall()
        return proxy.address

    run()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    addresses = [run() for _ in range(5)]
    assert len(os.listdir("/proc/self/fd")) == before
    names = {thread.name for thread in threading.enumerate()}
    assert not names & {f"proxy {address}" for address in addresses}


def test_wrong_arguments_are_usage_errors():
    for target, delay_s in (("unix:///x", 0), ("tcp://127.0.0.1:1", -1)):
        with pytest.raises(UsageError):
            DelayProxy(target, delay_s)
