"""H32: one ring, without a carrier around it: against an oracle, under stress in two processes, and with a peer that lies (H25)."""

import errno
import os
import select
import subprocess
import sys
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from tests.carriers import ring_stress
from tests.carriers.ring_stress import part

from remora.carriers.shm.region import make_region
from remora.carriers.shm.ring import HEAD, READER_ASLEEP, READER_GONE, TAIL, WRITER_ASLEEP, RingReader, RingWriter
from remora.testing.cts.compare import same

PAGE = 4096
CAPACITY = 2 * PAGE


@contextmanager
def region(capacity=PAGE):
    made = make_region(capacity)
    try:
        yield made
    finally:
        made.close()


def up(event):
    """Whether the event is signalled; takes it down."""
    try:
        os.eventfd_read(event)
    except BlockingIOError:
        return False
    return True


sizes = st.one_of(st.integers(1, 100), st.integers(1, 3 * PAGE), st.just(CAPACITY))


class RingAgainstOracle(RuleBasedStateMachine):
    """The oracle: two counts, and who was promised a signal. Sizes that wrap, that fill, that fit only in part."""

    def __init__(self):
        super().__init__()
        self.region = make_region(CAPACITY)
        self.ring = self.region.to_maker
        self.writer, self.reader = RingWriter(self.ring), RingReader(self.ring)
        self.written = self.taken = 0
        self.armed = self.watched = self.wants_room = False

    @rule(sizes=st.lists(sizes, min_size=1, max_size=3))
    def put(self, sizes):
        spans, start = [], self.written
        for size in sizes:
            spans.append(memoryview(part(start, size)))
            start += size
        room = CAPACITY - (self.written - self.taken)
        got = self.writer.put(spans)
        assert got == min(sum(sizes), room)
        self.written += got
        if not got:
            self.wants_room = True
        if got and self.armed:
            assert self.ring.control[READER_ASLEEP] == 0
            assert self.watched or up(self.ring.data_event)
            self.armed = False

    @rule(size=sizes)
    def take(self, size):
        room = bytearray(size)
        got = self.reader.take(room)
        assert got == min(size, self.written - self.taken)
        assert same(room[:got], part(self.taken, got))
        self.taken += got
        if got and self.wants_room:
            assert up(self.ring.room_event)
            self.wants_room = False
        if self.watched:
            self.armed = self.written == self.taken

    @rule()
    def arm(self):
        """About to sleep: then the next put signals, whatever signals came before."""
        self.armed = self.reader.arm()
        assert self.armed == (self.written == self.taken)
        if not self.watched:
            up(self.ring.data_event)

    @rule()
    def look(self):
        assert self.reader.look(0) == (self.written != self.taken)
        self.armed = False
        if self.watched:
            self.reader.rest()
            self.armed = self.written == self.taken

    @rule()
    def ask_for_room(self):
        full = self.written - self.taken == CAPACITY
        assert self.writer.full() == full
        self.wants_room = True

    @precondition(lambda self: not self.watched)
    @rule()
    def watch(self):
        self.reader.watched = self.watched = True
        self.reader.rest()
        self.armed = self.written == self.taken

    @invariant()
    def the_event_of_a_watched_ring_is_true(self):
        if self.watched:
            assert bool(select.select([self.ring.data_event], [], [], 0)[0]) == (self.written != self.taken)

    def teardown(self):
        self.region.close()


def test_h32_a_ring_gives_what_was_put_and_signals_whoever_was_promised_it():
    run_state_machine_as_test(RingAgainstOracle, settings=settings(max_examples=50, stateful_step_count=40, deadline=None))


@pytest.mark.parametrize("we", ["read", "write"])
@pytest.mark.parametrize("messages", [25_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
def test_h32_no_wakeup_is_lost_between_two_processes(we, messages):
    """A ring of one page, now full and now empty; a signal that is promised and does not come within LONG fails either end."""
    with region() as made:
        fds = made.fds
        what = "write" if we == "read" else "read"
        command = [sys.executable, ring_stress.__file__, made.offer.hex(), ",".join(map(str, fds)), what, str(messages)]
        with subprocess.Popen(command, pass_fds=fds, stdout=subprocess.PIPE, text=True) as peer:
            try:
                assert peer.stdout.readline() == "ready\n"
                ours = (
                    ring_stress.read(made.to_maker, messages, 1) if we == "read" else ring_stress.write(made.to_taker, messages, 1)
                )
                theirs = tuple(map(int, peer.stdout.readline().split()))
            finally:
                peer.kill()
        assert ours[0] == theirs[0]
        assert min(ours[1], theirs[1]) > messages // 1000


words = st.one_of(
    st.integers(0, (1 << 64) - 1),
    st.sampled_from([0, 1, CAPACITY - 1, CAPACITY, CAPACITY + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - CAPACITY, (1 << 64) - 1]),
)
lies = st.tuples(st.just("lie"), st.sampled_from([TAIL, HEAD, READER_ASLEEP, WRITER_ASLEEP, READER_GONE]), words, st.booleans())
honest = st.tuples(st.sampled_from(["put", "take", "full", "arm", "rest", "look"]), sizes)


@given(st.lists(st.one_of(lies, honest), max_size=40))
@settings(deadline=None, max_examples=100)
def test_h25_numbers_that_a_peer_made_up_never_lead_outside_the_ring(steps):
    """Any word of the control block, set to anything at any moment, alone or off by what is there; the other ring is the fence."""
    with region(CAPACITY) as made:
        ring, other = made.to_maker, made.to_taker
        other.data[:] = b"\x55" * CAPACITY
        ring.data[:] = b"\xaa" * CAPACITY
        fence = bytes(other.data), bytes(other.control)
        writer, reader = RingWriter(ring), RingReader(ring)
        for what, *how in steps:
            if what == "lie":
                word, number, relative = how
                ring.control[word] = (number + (ring.control[word] if relative else 0)) % (1 << 64)
                continue
            (size,) = how
            room = bytearray(size)
            calls = {
                "put": lambda size=size: writer.put([b"\xaa" * size]),
                "take": lambda room=room: reader.take(room),
                "full": writer.full,
                "arm": reader.arm,
                "rest": reader.rest,
                "look": lambda: reader.look(0),
            }
            try:
                got = calls[what]()
            except OSError as error:
                assert error.errno in (errno.EBADMSG, errno.EPIPE)
                continue
            if what in ("put", "take"):
                assert 0 <= got <= min(size, CAPACITY)
            if what == "take":
                assert same(room[:got], b"\xaa" * got)
        assert (bytes(other.data), bytes(other.control)) == fence
        assert same(ring.data, b"\xaa" * CAPACITY)
