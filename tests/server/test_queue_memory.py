"""H07, H17: memory that queues allocate, under a session's quota and from clients that do it wrong."""

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.remote.raw import raw_client

import remora
from remora.base.ids import ResourceType, make_provisional
from remora.errors import ClosedError, Error, NotFoundError, OutOfMemoryError, UsageError
from remora.server.options import SessionLimits
from remora.server.quotas import Quotas
from remora.wire import commands

LONG = 20.0
MIB = 1 << 20


def test_h17_memory_that_a_queue_gives_back_is_there_for_what_comes_behind(serve, mode):
    """Ten times the quota goes through one queue, while that is held and when it runs freely."""
    server = serve("--session-memory", "8MiB", **mode)
    with remora.open(server.uri) as device:
        queue = device.queue
        for held in (True, False):
            gate = device.semaphore()
            if held:
                queue.barrier(wait=gate.at(1))
            for _ in range(10):
                buffer, _ = queue.allocate(6 * MIB)
                queue.fill(buffer, b"x")
                queue.deallocate(buffer)
            gate.signal(1)
            queue.wait_idle(LONG)
        whole, _ = queue.allocate(8 * MIB)  # nothing of it is charged any more
        queue.fill(whole, b"y")
        assert bytes(whole.read(8 * MIB - 4, 4, timeout=LONG)) == b"yyyy"


def test_h17_memory_beyond_the_quota_fails_its_queue_with_the_quota_by_name(serve, mode):
    server = serve("--session-memory", "8MiB", **mode)
    with remora.open(server.uri) as device:
        other = device.queues[1]
        kept = device.allocate(6 * MIB)
        buffer, there = device.queue.allocate(3 * MIB)
        behind = device.queue.fill(buffer, b"x")
        for point in (there, behind):
            with pytest.raises(OutOfMemoryError, match="quota of memory: asked for 3 MiB, 6 MiB of 8 MiB are in use"):
                point.wait(LONG)
        with pytest.raises(OutOfMemoryError, match="quota of memory"):
            other.fill(buffer, b"x")
        fits, there = other.allocate(2 * MIB)
        there.wait(LONG)
        other.deallocate(fits)
        other.deallocate(kept)
        other.allocate(8 * MIB)[1].wait(LONG)


def test_h07_released_memory_counts_until_what_uses_it_is_done(serve):
    server = serve("--session-memory", "8MiB")
    with remora.open(server.uri) as device:
        event, commands = device.event(), device.command_buffer(one_shot=True)
        commands.wait_event(event)
        first = device.allocate(6 * MIB)
        commands.fill(first, b"x")
        commands.seal()
        device.queue.execute(commands)
        first.close()
        commands.close()
        second = device.allocate(6 * MIB)
        device.queues[1].barrier().wait(LONG)
        with pytest.raises(OutOfMemoryError, match="6 MiB of 8 MiB are in use"):
            device.queues[1].fill(second, b"x")
        event.signal()
        device.queue.wait_idle(LONG)
        third = device.allocate(6 * MIB)
        device.queues[1].fill(third, b"x").wait(LONG)


def failure_of(raw, queue, op, resource):
    epoch = raw.command(queue, op, commands.encode_buffer(resource))
    raw.send()
    return raw.advanced(queue, epoch).failure


def test_h25_a_client_that_does_it_wrong_hears_of_it_and_the_session_goes_on(serve, mode):
    server = serve(device=("cpu",), **mode)
    with raw_client(server.uri) as raw:
        ready = raw.session.allocate(0, 64)
        assert isinstance(failure_of(raw, 0, commands.ALLOCA, ready), UsageError)
        assert isinstance(failure_of(raw, 1, commands.ALLOCA, make_provisional(ResourceType.BUFFER, 99)), NotFoundError)
        late = raw.session.allocate(0, 64, late=True)
        assert failure_of(raw, 2, commands.ALLOCA, late) is None
        assert failure_of(raw, 2, commands.DEALLOCA, late) is None
        assert isinstance(failure_of(raw, 2, commands.DEALLOCA, late), ClosedError)
        raw.session.release([late])
        last = raw.command(3, commands.BARRIER)
        raw.send()
        assert raw.advanced(3, last).failure is None


def test_h17_released_before_its_turn(serve):
    """The client forgets a buffer while its allocation waits: nothing stays counted."""
    server = serve("--session-memory", "1MiB")
    with remora.open(server.uri) as device:
        event, wait = device.event(), device.command_buffer()
        wait.wait_event(event)
        wait.seal()
        for _ in range(3):
            device.queue.execute(wait)
            buffer, there = device.queue.allocate(MIB)
            device.queue.fill(buffer, b"x")
            buffer.close()
            device.allocate(0).close()  # releases travel with the next allocation
            device.queue.flush()
            event.signal()
            there.wait(LONG)
            device.queue.wait_idle(LONG)
            event.reset()
        with device.allocate(MIB) as whole:
            device.queue.fill(whole, b"x").wait(LONG)


# -- without a server ---------------------------------------------------------------------------------------------------------


class Holder:
    """Something that holds memory."""


@given(st.lists(st.sampled_from(["charge", "drop", "settle", "settle again", "look"]), max_size=60), st.randoms())
def test_h07_memory_is_counted_while_its_holder_lives_and_is_not_settled(steps, dice):
    quotas = Quotas(SessionLimits(memory=1000))
    live, settled = [], []
    for step in steps:
        if step == "charge":
            holder = Holder()
            try:
                quotas.memory.take(10)
            except Error:
                continue
            live.append((holder, quotas.charge_memory(holder, 10)))
            del holder
        elif step == "drop" and live:
            live.pop(dice.randrange(len(live)))
        elif step == "settle" and live:
            holder, charge = live.pop(dice.randrange(len(live)))
            assert quotas.charge_of(holder) is charge
            charge.settle()
            assert quotas.charge_of(holder) is None
            settled.append((holder, charge))
            del holder
        elif step == "settle again" and settled:
            settled[dice.randrange(len(settled))][1].settle()
        gc.collect(0)
        quotas.memory.take(0)
        assert quotas.memory.used == 10 * len(live)
    del live
    quotas.memory.take(0)
    assert quotas.memory.used == 0
