"""H30 against an oracle: whatever the order of sends, reservations and reads, the stream is the bytes in order of publication."""

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from remora.carriers import connect, listen
from remora.errors import BusyError

LONG = 20.0
sizes = st.one_of(st.integers(1, 64), st.integers(1, 1 << 18))
numbers = itertools.count()


class Stream(RuleBasedStateMachine):
    """One carrier pair, and the bytes that must come out of it."""

    uri = "loopback://"
    reservations = Bundle("reservations")

    def __init__(self):
        super().__init__()
        self.listener = listen(self.uri)
        self.client = connect(self.listener.address)
        self.server = self.listener.accept(LONG)
        self.client.activate()
        self.server.activate()
        self.published = bytearray()
        self.received = 0
        self.open = 0

    def fresh(self, size):
        """`size` bytes that say where they stand."""
        return bytes((next(numbers) * 31 + index * 7) & 0xFF for index in range(min(size, 256))) * (size // 256 + 1)

    @rule(sizes=st.lists(sizes, min_size=1, max_size=3))
    def send(self, sizes):
        spans = [self.fresh(size)[:size] for size in sizes]
        count = self.client.send(*spans)
        self.published += b"".join(spans)[:count]

    @rule(target=reservations, size=sizes)
    def reserve(self, size):
        before = self.client.budget()
        try:
            reservation = self.client.reserve(size)
        except BusyError:
            assert before.slots == 0 or before.bytes < size
            return None
        self.open += 1
        reservation.view[:] = self.fresh(size)[:size]
        return reservation, bytes(reservation.view)

    @rule(reserved=consumes(reservations), publish=st.booleans())
    def settle(self, reserved, publish):
        if reserved is None:
            return
        reservation, data = reserved
        self.open -= 1
        if publish:
            reservation.commit()
            self.published += data
        else:
            reservation.abort()

    @rule()
    def settle_down(self):
        """Any time, and without a sign to the sender, who may go on for long before it looks."""
        self.server.settle()

    @rule()
    def look(self):
        assert self.client.receive(0) is None

    @rule()
    def flush(self):
        self.client.flush()

    @rule(times=st.integers(1, 20))
    def receive(self, times):
        for _ in range(times):
            lease = self.server.receive(0)
            if lease is None:
                return
            with lease:
                self.check(lease.view)

    @rule(size=sizes)
    def receive_into(self, size):
        room = bytearray(size)
        self.check(room[: self.server.receive_into(room, 0)])

    def check(self, data):
        assert data == self.published[self.received : self.received + len(data)]
        self.received += len(data)

    @invariant()
    def budget_is_sound(self):
        assert self.client.budget().slots + self.open <= 64
        assert self.received <= len(self.published)

    def teardown(self):
        while self.received < len(self.published):
            self.client.flush()
            with self.server.receive(LONG) as lease:
                self.check(lease.view)
        assert self.client.flush()
        assert self.client.statistics().bytes_sent == self.server.statistics().bytes_received == len(self.published)
        for end in (self.client, self.server, self.listener):
            end.close()


@pytest.mark.parametrize("scheme", ["loopback", "tcp", "unix", "shm"])
def test_h30_the_stream_is_what_was_published(scheme, tmp_path):
    from hypothesis.stateful import run_state_machine_as_test

    made = []

    def machine():
        stream = type("Stream", (Stream,), {})
        path = f"{scheme}://{tmp_path}/{next(numbers)}"
        stream.uri = {"loopback": "loopback://", "tcp": "tcp://127.0.0.1:0"}.get(scheme, path)
        made.append(stream())
        return made[-1]

    run_state_machine_as_test(machine, settings=settings(max_examples=25, stateful_step_count=30, deadline=None))
    assert len(made) >= 25
    assert sum(each.received for each in made) == sum(len(each.published) for each in made) > 0
