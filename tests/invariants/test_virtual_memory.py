"""Invariant 20 of a remote HAL: virtual memory has a way out of its own, and goes before what it maps (H22)."""

import os
import re
from pathlib import Path
from time import monotonic

import pytest
from tests.invariants.steps import deliver, upload

import remora
from remora.base.ids import ResourceType
from remora.errors import NotFoundError, UsageError
from remora.session.events import Named, Responded
from remora.session.state import Lane
from remora.testing.cts.hal_factory import LONG
from remora.wire import commands
from remora.wire.memory_calls import MemoryClose, PhysicalAllocate, Placed, VirtualMap, VirtualReserve
from remora.wire.method import Done

PAGE = 4096
GIB = 1 << 30


def ask(raw, body):
    """The answer to a request."""
    number = raw.session.request(body)
    raw.send(Lane.CONTROL)
    return raw.until(Lane.CONTROL, lambda event: isinstance(event, Responded) and event.id == number).body


def test_invariant_20_a_reservation_is_closed_by_a_call_of_its_own(raw):
    """The call takes no ordinary buffer; the release that ordinary buffers have gives a reservation up and pulls nothing away."""
    buffer = raw.session.allocate(0, PAGE)
    raw.send()
    ordinary = raw.until(Lane.QUEUE, lambda event: isinstance(event, Named) and event.provisional == buffer).canonical
    space = ask(raw, VirtualReserve(raw.session.provisional(ResourceType.BUFFER), 0, 8 * PAGE)).resource
    memory = ask(raw, PhysicalAllocate(raw.session.provisional(ResourceType.PHYSICAL_MEMORY), 0, 4 * PAGE)).resource
    assert ask(raw, VirtualMap(space, (Placed(0, memory, 0, 4 * PAGE),))) == Done()
    assert isinstance(ask(raw, MemoryClose(ordinary)), UsageError)
    running = upload(raw, 0, space, 2 * PAGE, 1)
    raw.session.release([memory, space])  # the memory first, and both while an operation writes there
    other = raw.command(1, commands.BARRIER)
    raw.send()
    raw.advanced(1, other)
    for resource in (space, memory):
        assert isinstance(ask(raw, MemoryClose(resource)), NotFoundError)
    deliver(raw, 1, b"x" * 2 * PAGE)
    assert raw.advanced(0, running).failure is None


def held(pid):
    """(bytes of addresses, descriptors) of a process."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    spans = (re.match(r"(\w+)-(\w+)", line).groups() for line in lines)
    return sum(int(high, 16) - int(low, 16) for low, high in spans), len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.parametrize("leaving", ["closed", "cut"])
def test_invariant_20_a_session_that_ends_with_everything_mapped_leaves_nothing(serve, leaving):
    """Reservations, what they map, and buffers, made in mixed order and all in use: the server's process has them no more."""
    server = serve(shared=True, flags=("--session-memory", "1MiB"))

    def session(end):
        with remora.open(server.uri) as device:
            keep, spaces, memories = [], [], []
            for _ in range(4):
                spaces.append(device.reserve(GIB))
                keep.append(device.upload(b"x" * PAGE))
                memories.append(device.physical(16 * PAGE))
                for number, space in enumerate(spaces):
                    space.map(16 * PAGE * len(memories), memories[-1], 0, PAGE * (1 + number))
            gate = device.semaphore()
            for space in spaces:
                device.queue.fill(space.view(16 * PAGE * len(memories), PAGE), b"f", wait=gate.at(1))
            gate.signal(1)
            end(device)
            return memories

    session(lambda device: device.queue.wait_idle(LONG))
    server.wait_for("session 1 ended")
    before = held(server.pid)
    if leaving == "closed":
        session(lambda device: None)
    else:
        session(lambda device: [carrier.close() for carrier in device.host.link.carriers.values()])
    server.wait_for("session 2 ended")
    deadline = monotonic() + LONG
    while not (held(server.pid)[0] < before[0] + GIB // 2 and held(server.pid)[1] <= before[1]):
        assert monotonic() < deadline, (before, held(server.pid))
        os.sched_yield()
    with remora.open(server.uri) as device:
        device.physical(1 << 20).close()  # all of the quota is there again
