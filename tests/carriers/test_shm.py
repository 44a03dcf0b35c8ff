"""H32: rings in shared memory. The carrier suite covers what every carrier does; this is what only shm can do wrong."""

import errno
import os
import socket
import struct
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager

import pytest

from remora.carriers import connect, listen
from remora.carriers.shm.region import OFFER, make_region, take_region
from remora.carriers.shm.ring import HEAD, TAIL, RingReader, RingWriter
from remora.errors import BrokenError, BusyError, UnsupportedError, UsageError
from remora.testing.cts.carrier import background, read_exactly
from remora.testing.cts.carrier_factory import open_descriptors

LONG = 20.0
PAGE = 4096


@contextmanager
def region(capacity=PAGE):
    made = make_region(capacity)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def pair(tmp_path):
    """(client, server), connected; the server has settled and the client has not looked yet."""
    with listen(f"shm://{tmp_path}/s") as listener, connect(listener.address) as client:
        client.activate()
        with listener.accept(LONG) as server:
            server.activate()
            server.settle()
            yield client, server


def readable(event):
    try:
        os.eventfd_read(event)
    except BlockingIOError:
        return False
    return True


def test_a_full_ring_signals_room_once_it_is_asked_to(pair):
    with region() as made:
        ring = made.to_maker
        writer, reader = RingWriter(ring), RingReader(ring)
        assert writer.put([bytes(PAGE)]) == PAGE
        assert writer.put([b"x"]) == 0
        assert writer.full()
        assert not readable(ring.room_event)
        assert reader.take(bytearray(1)) == 1
        assert readable(ring.room_event)
        assert writer.put([b"xy"]) == 1


@pytest.mark.parametrize("tail", [-1, PAGE + 1, 1 << 63])
def test_numbers_that_cannot_be_break_the_connection(pair, tail):
    """H25: the other side of shared memory can write anything there."""
    client, server = pair
    client.receive(0)
    ring = server._region.to_taker
    ring.control[TAIL] = (ring.control[HEAD] + (tail if tail != PAGE + 1 else ring.capacity + 1)) % (1 << 64)
    with pytest.raises(BrokenError, match="broke the shared memory"):
        client.receive(LONG)
    with pytest.raises(BrokenError):
        server.receive(LONG)


@pytest.mark.parametrize("call", ["send", "send_all", "wait_writable", "budget"])
def test_a_number_of_the_reader_that_cannot_be_ends_every_way_to_send(pair, call):
    client, server = pair
    client.receive(0)
    while server.send(bytes(1 << 16)):
        pass
    server._region.to_taker.control[HEAD] = 1 << 63
    with pytest.raises(BrokenError, match="broke the shared memory"):
        {
            "send": lambda: server.send(b"x"),
            "send_all": lambda: server.send_all(b"x", timeout=LONG),
            "wait_writable": lambda: server.wait_writable(LONG),
            "budget": lambda: (server.budget(), server.send(b"x")),
        }[call]()
    assert isinstance(server.failure, BrokenError)


def offered(**changes):
    """The descriptors and the offer of a sound region, with changes."""
    made = make_region(PAGE)
    fds = [os.dup(fd) for fd in made.fds]
    fields = {"magic": b"shm ring", "version": 1, "zero": 0, "capacity": PAGE} | changes
    made.close()
    return OFFER.pack(*fields.values()), fds


def test_an_offer_is_taken_as_it_was_made():
    offer, fds = offered()
    taken = take_region(offer, fds)
    assert RingWriter(taken.to_maker).put([b"hello"]) == 5
    taken.close()


@pytest.mark.parametrize(
    "changes", [{"magic": b"shm sing"}, {"version": 2}, {"zero": 1}, {"capacity": PAGE + 1}, {"capacity": 0}, {"capacity": 1 << 40}]
)
def test_an_offer_that_is_none_of_ours_is_refused_and_its_descriptors_closed(changes):
    offer, fds = offered(**changes)
    with pytest.raises(OSError, match="shared memory"):
        take_region(offer, fds)
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_memory_that_its_maker_could_still_cut_is_refused():
    offer, fds = offered()
    memory = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, os.fstat(fds[0]).st_size)
    os.dup2(memory, fds[0])
    os.close(memory)
    with pytest.raises(OSError, match="not sealed"):
        take_region(offer, fds)


def test_a_descriptor_of_another_kind_is_refused():
    offer, fds = offered()
    with open(os.devnull) as other:  # noqa: PTH123
        os.dup2(other.fileno(), fds[2])
    with pytest.raises(OSError, match="no eventfd"):
        take_region(offer, fds)


def test_too_few_descriptors_are_refused():
    offer, fds = offered()
    os.close(fds.pop())
    with pytest.raises(OSError, match="4 descriptors"):
        take_region(offer, fds)


def test_settling_needs_an_active_carrier_and_ends_the_handover(tmp_path):
    with listen(f"shm://{tmp_path}/s") as listener, connect(listener.address) as client, listener.accept(LONG) as server:
        with pytest.raises(UsageError, match="activate"):
            server.settle()
        client.activate()
        server.activate()
        with server.reserve(1), pytest.raises(UsageError, match="before the first send"):
            server.settle()
        server.settle()
        server.settle()
        with pytest.raises(UnsupportedError, match="settled in shared memory"):
            server.detach()
        assert client.receive(0) is None
        with pytest.raises(UnsupportedError, match="settled in shared memory"):
            client.detach()


def test_what_was_sent_before_the_offer_was_seen_comes_first(pair):
    client, server = pair
    client.send(b"through the socket, ")
    server.send(b"through the ring")
    assert read_exactly(client, 16) == b"through the ring"
    client.send(b"through the ring")
    assert read_exactly(server, 36) == b"through the socket, through the ring"


def test_h05_fail_wakes_a_reader_that_looks_without_sleeping(tmp_path):
    with listen(f"shm://{tmp_path}/s") as listener, connect(f"{listener.address}?spin_us=60000000") as client:
        client.activate()
        with listener.accept(LONG) as server:
            server.activate()
            server.settle()
            assert client.receive(0) is None
            looking = background(client.receive)
            client.fail(BrokenError("enough"))
            with pytest.raises(BrokenError, match="enough"):
                looking.result(LONG)


def test_a_server_without_descriptors_for_the_rings_says_so_and_nothing_is_left(tmp_path, monkeypatch):
    with listen(f"shm://{tmp_path}/s") as listener, connect(listener.address) as client, listener.accept(LONG) as server:
        server.activate()
        before = open_descriptors()
        with monkeypatch.context() as patch:
            patch.setattr(os, "eventfd", lambda *_: (_ for _ in ()).throw(OSError(errno.EMFILE, "Too many open files")))
            with pytest.raises(BusyError, match="Too many open files"):
                server.settle()
        assert open_descriptors() == before
        server.settle()
        server.send(b"it went on")
        client.activate()
        assert read_exactly(client, 10) == b"it went on"


def test_the_end_comes_after_the_bytes(pair):
    client, server = pair
    client.send(b"early ")
    client.receive(0)
    client.send(b"late")
    client.close()
    assert read_exactly(server, 10) == b"early late"
    with pytest.raises(BrokenError, match="closed the connection"):
        server.receive(LONG)


def test_descriptors_travel_beside_the_ring(pair):
    client, server = pair
    client.receive(0)
    server.send(b"in the ring")
    with open(os.devnull) as file:  # noqa: PTH123
        server.send_fds(b"beside", [file.fileno()])
    data, fds = client.receive_fds(1, LONG)
    os.close(fds[0])
    assert data == b"beside"
    assert read_exactly(client, 11) == b"in the ring"


def test_h32_a_receive_beside_the_first_fileno_is_not_refused(pair, monkeypatch):
    """The descriptor is made ready to be polled while nobody receives; who comes to receive meanwhile waits for that moment."""
    client, server = pair
    client.receive(0)
    server.send(b"first")
    resting, go_on, rest = threading.Event(), threading.Event(), RingReader.rest

    def slow_rest(reader):
        resting.set()
        assert go_on.wait(LONG)
        rest(reader)

    monkeypatch.setattr(RingReader, "rest", slow_rest)
    asked = background(client.fileno)
    assert resting.wait(LONG)
    got = background(lambda: read_exactly(client, 5))
    assert not got.done()
    go_on.set()
    assert got.result(LONG) == b"first"
    assert asked.result(LONG) >= 0


def echo(server, count, pause):
    room = bytearray(64)
    for number in range(count):
        view, got = memoryview(room), 0
        while got < 8:
            got += server.receive_into(view[got:8], LONG)
        if pause(number):
            os.sched_yield()
        server.send_all(view[:8])


@pytest.mark.parametrize("count", [1000, pytest.param(500_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_h32_no_wakeup_is_lost(pair, count):
    """Both ends sleep before almost every message, and now and then one yields: a million messages in the slow run.

    A lost wakeup would show as a receive that waits for the next tick, a tenth of a second.
    """
    client, server = pair
    thread = threading.Thread(target=echo, args=(server, count, lambda number: number % 7 == 0))
    thread.start()
    room = bytearray(8)
    for number in range(count):
        client.send_all(struct.pack("<Q", number))
        got = client.receive_into(room, LONG)
        assert got == 8
        assert struct.unpack("<Q", room) == (number,)
        if number % 11 == 0:
            os.sched_yield()
    thread.join(LONG)
    assert not thread.is_alive()


def test_the_path_belongs_to_its_owner_alone(tmp_path):
    with listen(f"shm://{tmp_path}/s"):
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600
    with pytest.raises(UsageError, match=r"shm:///run/remora\.sock"):
        listen("shm://relative")
    with pytest.raises(BrokenError, match="no such socket"):
        connect(f"shm://{tmp_path}/none")


def test_a_stranger_on_the_path_is_no_peer(tmp_path):
    """A unix client reads the offer as bytes of the stream: it is not remora's shm, and nothing breaks on this side."""
    with listen(f"shm://{tmp_path}/s") as listener, socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(f"{tmp_path}/s")
        with listener.accept(LONG) as server:
            server.activate()
            server.settle()
            assert stranger.recv(100) == server._region.offer
            stranger.send(b"hello")
            assert read_exactly(server, 5) == b"hello"


LIAR = """
import os, sys
from random import Random
from remora.carriers import connect
carrier = connect(sys.argv[1])
carrier.activate()
carrier.receive(20).release()
random = Random(int(sys.argv[2]))
blocks = [ring.control for ring in (carrier._region.to_maker, carrier._region.to_taker)]
while True:
    word = random.choice((0, 8, 16, 24))
    number = random.choice((random.getrandbits(64), random.randrange(1 << 20), 0))
    for block in blocks:
        block[word] = number
    for event in carrier._region.fds[1:]:
        os.eventfd_write(event, 1)
"""


@pytest.mark.parametrize("seed", range(4))
def test_h25_a_peer_that_writes_anything_into_the_shared_memory_ends_the_connection(tmp_path, seed):
    """While both ends are in use: each call ends in good time, with bytes, with nothing, or with the failure, which stays."""
    with ExitStack() as stack:
        listener = stack.enter_context(listen(f"shm://{tmp_path}/s"))
        command = [sys.executable, "-c", LIAR, listener.address, str(seed)]
        liar = stack.enter_context(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        stack.callback(liar.kill)
        server = stack.enter_context(listener.accept(LONG))
        server.activate()
        server.settle()
        server.send(b"begin")
        talking = background(lambda: talk(server))
        with pytest.raises(BrokenError, match="broke the shared memory"):
            talking.result(LONG)
        with pytest.raises(BrokenError, match="broke the shared memory"):
            server.send(b"x")


def talk(server):
    while True:
        server.send(b"x" * 100_000)
        server.wait_writable(0.01)
        if (lease := server.receive(0.01)) is not None:
            lease.release()
