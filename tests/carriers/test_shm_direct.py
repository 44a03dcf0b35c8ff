"""H32: registered regions between two processes, and keys and descriptors that a peer made up (H25)."""

import fcntl
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from remora.carriers import listen
from remora.carriers.shm.direct import KEY, SEALS, attach, register
from remora.carriers.shm.region import OFFER, make_region, take_region
from remora.errors import BrokenError, PeerError
from remora.testing.cts.carrier import background, read_exactly
from remora.testing.cts.carrier_factory import open_descriptors, pattern
from remora.testing.cts.compare import same

LONG = 20.0
SIZE = 3 << 20

PEER = """
import sys
from remora.carriers import connect
from remora.testing.cts.carrier_factory import pattern
carrier = connect(sys.argv[1])
carrier.activate()
carrier.receive_into(bytearray(5), 20)
key, fds = carrier.receive_fds(1, 20)
remote = carrier.attach(key, fds)
room = bytearray(remote.size)
remote.read(0, room)
assert room == pattern(remote.size)
remote.write(0, pattern(remote.size, 2))
carrier.send(b"written")
carrier.receive_into(bytearray(2), 20)
while True:
    remote.write(0, room)
"""


def test_h32_another_process_reads_and_writes_the_memory_and_may_die_while_it_does(tmp_path):
    before = open_descriptors()
    with listen(f"shm://{tmp_path}/s") as listener, subprocess.Popen([sys.executable, "-c", PEER, listener.address]) as peer:
        try:
            with listener.accept(LONG) as server, server.register(SIZE) as region:
                server.activate()
                server.settle()
                server.send(b"begin")
                region.view[:] = pattern(SIZE)
                server.send_fds(region.key, region.fds, LONG)
                assert read_exactly(server, 7) == b"written"
                assert same(region.view, pattern(SIZE, 2))
                server.send(b"go")
                waiting = background(server.receive)
                peer.send_signal(signal.SIGKILL)
                with pytest.raises(BrokenError):
                    waiting.result(LONG)
                region.view[:] = bytes(SIZE)  # still this side's, and nobody else's any more
                assert same(region.view, bytes(SIZE))
        finally:
            peer.kill()
    assert open_descriptors() == before


def memory(size, seals=SEALS):
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def reached(key, fds):
    return attach(key, fds, "shm://here", "shm://there", lambda: None)


@pytest.mark.parametrize("kind", ["unsealed", "short", "long", "eventfd", "none", "two"])
def test_h25_descriptors_that_do_not_go_with_the_key_are_refused_and_closed(kind):
    before = open_descriptors()
    fds = {
        "unsealed": lambda: [memory(100, 0)],
        "short": lambda: [memory(99)],
        "long": lambda: [memory(101)],
        "eventfd": lambda: [os.eventfd(0)],
        "none": list,
        "two": lambda: [memory(100), memory(100)],
    }[kind]()
    with pytest.raises(PeerError, match="cannot be used"):
        reached(KEY.pack(b"shm area", 1, 0, 100), fds)
    assert open_descriptors() == before


@given(st.one_of(st.binary(max_size=40), st.builds(KEY.pack, st.just(b"shm area"), *[st.integers(0, 2)] * 2, st.integers(0, 200))))
@example(KEY.pack(b"shm area", 1, 0, 100))
@settings(deadline=None)
def test_h25_a_key_of_any_bytes_is_taken_or_refused(key):
    try:
        remote = reached(key, [memory(100)])
    except PeerError:
        assert key != KEY.pack(b"shm area", 1, 0, 100)
    else:
        assert key == KEY.pack(b"shm area", 1, 0, 100)
        remote.close()


@given(
    st.one_of(
        st.binary(max_size=40),
        st.builds(OFFER.pack, st.just(b"shm ring"), *[st.integers(0, 2)] * 2, st.integers(0, 1 << 14)),
    )
)
@example(OFFER.pack(b"shm ring", 1, 0, 4096))
@settings(deadline=None)
def test_h25_an_offer_of_any_bytes_is_taken_or_refused(offer):
    made = make_region(4096)
    sound, fds = made.offer, [os.dup(fd) for fd in made.fds]
    made.close()
    try:
        taken = take_region(offer, fds)
    except OSError:
        assert offer != sound
    else:
        assert offer == sound
        taken.close()


def test_the_memory_of_an_owner_is_not_more_than_it_asked_for():
    with register(10, "shm://here") as region:
        assert len(region.view) == 10
        assert os.fstat(region.fds[0]).st_size == 10
