"""H08, H32: either side of a shared-memory connection is killed, in every state of a ring and of the move to the rings."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from random import Random
from time import monotonic, perf_counter_ns

import pytest

from remora.carriers import connect, listen
from remora.carriers.shm.ring import READER_ASLEEP, WRITER_ASLEEP
from remora.errors import BrokenError
from remora.testing.cts.carrier import background
from remora.testing.cts.carrier_factory import open_descriptors

LONG = 20.0
#: Seconds within which the survivor must know.
NOTICED = 5.0

#: One process that forks the victims, which so begin at once. Lines in: role, state, address. Lines out: a victim's own.
NURSERY = """
import os, signal, sys
from remora.carriers import connect, listen
def say(word):
    print(word, flush=True)
def rest():
    say("ready")
    signal.pause()
def victim(role, what, address):
    say(os.getpid())
    if role == "server":
        listener = listen(address)
        say("listening")
        carrier = listener.accept(20)
        carrier.activate()
        if what == "connected":
            rest()
        carrier.settle()
        if what == "offered":
            rest()
        carrier.send(b"begin")
    else:
        carrier = connect(address + ("?spin_us=60000000" if what == "looking" else ""))
        carrier.activate()
        if what == "connected":
            rest()
        if what == "offered":
            carrier.send(b"through the socket")
            rest()
    carrier.receive_into(bytearray(5), 20)
    if role == "client":
        carrier.send(b"begin")
    if what in ("asleep", "looking"):
        say("ready")
        while True:
            carrier.receive().release()
    elif what == "full":
        while carrier.send(bytes(1 << 16)):
            pass
        say("ready")
        carrier.send_all(bytes(1 << 22))
    elif what == "half":
        carrier.send(b"half of a message")
        rest()
    elif what == "reserved":
        reservation = carrier.reserve(1000)
        reservation.view[:500] = bytes(500)
        rest()
    elif what == "kept":
        while carrier.send(bytes(1 << 16)):
            pass
        carrier.reserve(1000).commit()
        rest()
    elif what == "leased":
        say("ready")
        lease = carrier.receive()
        signal.pause()
    elif what == "unread":
        rest()
    elif what == "echoing":
        say("ready")
        while True:
            with carrier.receive() as lease:
                carrier.send_all(lease.view)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while line := sys.stdin.readline():
    if not os.fork():
        victim(*line.split())
        os._exit(0)
"""


@pytest.fixture(scope="module")
def nursery():
    with subprocess.Popen([sys.executable, "-c", NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.stdin.close()


@contextmanager
def victim(nursery, tmp_path, role, what):
    """The survivor's end, and a call that kills the process in the state that `what` names. Afterwards nothing is left here."""
    before, address = open_descriptors(), f"shm://{tmp_path}/s"
    listener = listen(address) if role == "client" else None
    print(role, what, address, file=nursery.stdin, flush=True)
    pid = int(nursery.stdout.readline())
    try:
        if listener is not None:
            carrier = listener.accept(LONG)
        else:
            assert nursery.stdout.readline() == "listening\n"
            carrier = connect(address)
        with carrier:
            greet(carrier, role, what)
            assert nursery.stdout.readline() == "ready\n"
            yield carrier, lambda: os.kill(pid, signal.SIGKILL)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if listener is not None:
            listener.close()
    assert open_descriptors() == before


def greet(carrier, role, what):
    """As much of the beginning as the victim takes part in."""
    carrier.activate()
    if role == "client":
        if what != "connected":
            carrier.settle()
        if what not in ("connected", "offered"):
            carrier.send(b"begin")
            assert carrier.receive_into(bytearray(5), LONG) == 5
    elif what not in ("connected", "offered"):
        assert carrier.receive_into(bytearray(5), LONG) == 5
        carrier.send(b"begin")


def work(carrier, we):
    """What the survivor does until it hears of the end."""
    while True:
        if we == "receive":
            with carrier.receive():
                pass
        elif we == "send_all":
            carrier.send_all(bytes(1 << 20))
        elif carrier.wait_writable():
            carrier.send(bytes(1 << 16))


def until(condition):
    """Wait for what the other process does to the shared memory, where nothing tells of it."""
    deadline = monotonic() + LONG
    while not condition():
        assert monotonic() < deadline
        os.sched_yield()


def rings(carrier, role):
    """The control blocks towards the survivor and towards the victim."""
    region = carrier._region
    ours = (region.to_maker, region.to_taker) if role == "client" else (region.to_taker, region.to_maker)
    return ours[0].control, ours[1].control


STATES = ["connected", "offered", "asleep", "full", "half", "reserved", "kept", "leased", "unread", "echoing"]


@pytest.mark.parametrize("we", ["receive", "send_all", "wait_writable"])
@pytest.mark.parametrize("what", STATES)
@pytest.mark.parametrize("role", ["client", "server"])
def test_h08_the_survivor_hears_of_it_whatever_both_were_doing(nursery, tmp_path, role, what, we):
    with victim(nursery, tmp_path, role, what) as (carrier, kill):
        if what in ("leased", "unread"):
            carrier.send(b"bytes that the victim holds, or never sees")
        waiting = background(lambda: work(carrier, we))
        if (what, we) == ("asleep", "receive"):  # both sleep
            until(lambda: all(control[READER_ASLEEP] for control in rings(carrier, role)))
        if what == "full" and we != "receive":
            until(lambda: all(control[WRITER_ASLEEP] for control in rings(carrier, role)))
        kill()
        with pytest.raises(BrokenError):
            waiting.result(NOTICED)
        for call in (lambda: carrier.send(b"x"), carrier.receive, lambda: carrier.reserve(1)):
            with pytest.raises(BrokenError):  # sticky; bytes that had arrived come first
                while True:
                    call()


def test_h08_killed_while_it_looks_for_bytes_without_sleeping(nursery, tmp_path):
    with victim(nursery, tmp_path, "client", "looking") as (carrier, kill):
        waiting = background(lambda: work(carrier, "receive"))
        until(lambda: not rings(carrier, "client")[1][READER_ASLEEP])
        kill()
        with pytest.raises(BrokenError):
            waiting.result(NOTICED)


@pytest.mark.parametrize("role", ["client", "server"])
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 40))])
def test_h08_killed_at_any_moment_of_a_conversation(nursery, tmp_path, role, seed):
    random = Random(seed)
    size = random.choice((1, 100, 70_000))
    with victim(nursery, tmp_path, role, "echoing") as (carrier, kill):

        def converse():
            while True:
                carrier.send_all(bytes(size))
                got = 0
                while got < size:
                    with carrier.receive() as lease:
                        got += len(lease.view)

        talking = background(converse)
        moment = perf_counter_ns() + random.randrange(5_000_000)
        until(lambda: carrier.statistics().receives > 3 and perf_counter_ns() > moment)
        kill()
        with pytest.raises(BrokenError):
            talking.result(NOTICED)
