"""Virtual memory on a server in another process: what it costs, what a bad client gets, what is left (H22, H25, H07)."""

import gc
import os
import re
from pathlib import Path
from time import monotonic

import pytest
from tests.drivers.test_cpu_virtual_memory import Refusing
from tests.remote.raw import LONG

import remora
from remora.base.ids import ResourceType, make_id
from remora.errors import BrokenError, BusyError, ClosedError, DeadlineError, NotFoundError, OutOfMemoryError, Status, UsageError
from remora.hal.buffer import Access
from remora.hal.virtual_memory import Placement
from remora.server.virtual_memory import MAX_RESERVED
from remora.session.events import Responded
from remora.session.state import Lane
from remora.testing.server import SharedServer
from remora.wire import commands
from remora.wire.bulk import ABORT, decode_bulk
from remora.wire.memory_calls import (
    MemoryClose,
    PhysicalAllocate,
    Placed,
    VirtualMap,
    VirtualProtect,
    VirtualReserve,
    VirtualUnmap,
)
from remora.wire.method import Done, Loaded

PAGE = 4096


@pytest.fixture
def space(device):
    with device.reserve(16 * PAGE) as space:
        yield space


def trips(device, call):
    """The round trips that a call takes."""
    before = device.link_statistics().round_trips
    call()
    return device.link_statistics().round_trips - before


def test_h22_a_change_is_one_round_trip_and_a_mistake_none(device, space):
    memory = device.physical(4 * PAGE)
    three = [Placement(index * PAGE, memory, index * PAGE, PAGE) for index in range(3)]
    assert trips(device, lambda: space.map_all(three)) == 1
    assert trips(device, lambda: space.protect(0, PAGE, Access.READ)) == 1

    def mistakes():
        for call in (
            lambda: space.map(0, memory),
            lambda: space.unmap(8 * PAGE, PAGE),
            lambda: space.protect(0, 1, Access.READ),
            lambda: device.queue.fill(space.view(0, PAGE)),
            lambda: device.queue.fill(space.view(9 * PAGE, 4)),
            lambda: device.reserve(1),
            space.close,
            memory.close,
        ):
            with pytest.raises(UsageError):
                call()

    assert trips(device, mistakes) == 0
    assert trips(device, lambda: space.unmap(0, 3 * PAGE)) == 1
    assert trips(device, memory.close) == 1


@pytest.mark.interpreted
@pytest.mark.usefixtures("only_who_waits_reads")
def test_h16_operations_on_mapped_pages_travel_like_others(device, space):
    with device.physical(4 * PAGE) as memory:
        space.map(0, memory)

        def work():
            device.queue.fill(space.view(0, PAGE), b"\1")
            device.queue.copy(space.view(0, PAGE), space.view(PAGE, PAGE))
            assert bytes(space.buffer.read(PAGE, 16, timeout=LONG)) == b"\1" * 16

        assert trips(device, work) == 1


def test_h22_a_closed_reservation_is_gone_on_the_server(serve):
    server = serve()
    with remora.open(server.uri) as device:
        maps = Path(f"/proc/{session_pid(server)}/maps")
        with device.reserve(PAGE):
            pass
        before = addresses(maps)
        spaces = [device.reserve(1 << 30) for _ in range(5)]
        assert addresses(maps) > before + (4 << 30)
        for space in spaces:
            space.close()
        assert addresses(maps) < before + (1 << 29)
        dropped = [device.reserve(1 << 30) for _ in range(5)]
        memory = device.physical(PAGE)
        for space in dropped:
            space.map(0, memory)
        assert addresses(maps) > before + (4 << 30)
        del space, dropped
        gc.collect()
        within(lambda: addresses(maps) < before + (1 << 29))


def session_pid(server):
    return int(server.wait_for("session 1 began", LONG).rsplit("pid ", 1)[1])


def addresses(maps):
    """Bytes of addresses that a process has mapped."""
    spans = (re.match(r"(\w+)-(\w+)", line).groups() for line in maps.read_text().splitlines())
    return sum(int(high, 16) - int(low, 16) for low, high in spans)


def within(true):
    """Something in another process, which wakes nobody here."""
    deadline = monotonic() + LONG
    while not true():
        assert monotonic() < deadline
        os.sched_yield()


# -- quotas ----------------------------------------------------------------------------------------------------------------------


def test_h07_physical_memory_is_charged_until_nothing_maps_it(serve):
    server = serve(flags=("--session-memory", "64KiB"))
    with remora.open(server.uri) as device:
        for _ in range(50):  # what is closed can be had again at once
            device.physical(16 * PAGE).close()
        with device.reserve(64 * PAGE) as space:
            with device.physical(12 * PAGE) as memory:
                space.map(0, memory)
            for _ in range(3):  # it was given up, and is still mapped
                with pytest.raises(OutOfMemoryError, match="quota of memory: asked for 32 KiB, 48 KiB of 64 KiB are in use"):
                    device.physical(8 * PAGE)
            space.clear()
            del memory
            gc.collect()
            within(lambda: fits(device, 16 * PAGE))
        assert device.statistics().buffers == 0


def fits(device, size):
    """Whether physical memory of this size can be had; what was dropped goes back within a second."""
    try:
        device.physical(size).close()
    except OutOfMemoryError:
        return False
    return True


def test_h07_addresses_of_a_session_are_bounded(device):
    with device.reserve(MAX_RESERVED - (1 << 40)):
        with pytest.raises(BusyError, match=r"16 TiB of addresses: asked for 2 TiB, 15 TiB are in use"):
            device.reserve(2 << 40)
        for _ in range(3):
            device.reserve(1 << 40).close()
    device.reserve(PAGE).close()


# -- a client that does not check ------------------------------------------------------------------------------------------------


def ask(raw, body):
    """The answer to a request."""
    number = raw.session.request(body)
    raw.send(Lane.CONTROL)
    return raw.until(Lane.CONTROL, lambda event: isinstance(event, Responded) and event.id == number).body


@pytest.fixture
def made(raw):
    """(a raw client, a reservation of 8 pages, physical memory of 4 pages)"""
    answers = [
        ask(raw, body(raw.session.provisional(kind), 0, pages * PAGE))
        for body, kind, pages in ((VirtualReserve, ResourceType.BUFFER, 8), (PhysicalAllocate, ResourceType.PHYSICAL_MEMORY, 4))
    ]
    assert all(isinstance(answer, Loaded) for answer in answers)
    return raw, *(answer.resource for answer in answers)


def test_h25_the_server_refuses_what_a_client_should_have(made):
    raw, space, memory = made
    none = make_id(ResourceType.PHYSICAL_MEMORY, 9, 999)
    mistakes = [
        (VirtualMap(space, (Placed(0, none, 0, PAGE),)), NotFoundError, Status.NOT_FOUND),
        (VirtualMap(memory & 0xFFFFFF | space >> 32 << 32 | 77, (Placed(0, memory, 0, PAGE),)), NotFoundError, Status.NOT_FOUND),
        (VirtualMap(space, (Placed(0, memory, 0, PAGE), Placed(PAGE, memory, 4 * PAGE, PAGE))), UsageError, Status.OUT_OF_RANGE),
        (VirtualMap(space, (Placed(0, memory, 0, PAGE), Placed(0, memory, 0, PAGE))), UsageError, Status.INVALID_ARGUMENT),
        (VirtualMap(space, (Placed(2**64 - PAGE, memory, 0, PAGE),)), UsageError, Status.OUT_OF_RANGE),
        (VirtualMap(space, (Placed(0, memory, 2**64 - PAGE, 2 * PAGE),)), UsageError, Status.OUT_OF_RANGE),
        (VirtualMap(space, (Placed(5, memory, 0, PAGE),)), UsageError, Status.INVALID_ARGUMENT),
        (VirtualUnmap(space, 0, PAGE), UsageError, Status.FAILED_PRECONDITION),
        (VirtualUnmap(space, 0, 2**64 - PAGE), UsageError, Status.OUT_OF_RANGE),
        (VirtualProtect(space, 0, PAGE, 1), UsageError, Status.FAILED_PRECONDITION),
        (VirtualReserve(raw.session.provisional(ResourceType.BUFFER), 7, PAGE), UsageError, Status.INVALID_ARGUMENT),
        (VirtualReserve(raw.session.provisional(ResourceType.BUFFER), 0, 0), UsageError, Status.INVALID_ARGUMENT),
        (VirtualReserve(raw.session.provisional(ResourceType.BUFFER), 0, 2**64 - PAGE), BusyError, Status.RESOURCE_EXHAUSTED),
        (
            PhysicalAllocate(raw.session.provisional(ResourceType.PHYSICAL_MEMORY), 0, 1 << 62),
            OutOfMemoryError,
            Status.OUT_OF_DEVICE_MEMORY,
        ),
        (MemoryClose(none), NotFoundError, Status.NOT_FOUND),
    ]
    for body, kind, code in mistakes:
        answer = ask(raw, body)
        assert (type(answer), answer.code) == (kind, code), (body, answer)
    assert ask(raw, VirtualMap(space, (Placed(0, memory, 0, 4 * PAGE),))) == Done()
    for thing in (memory, space):
        assert ask(raw, MemoryClose(thing)) == Done()
        assert isinstance(ask(raw, MemoryClose(thing)), NotFoundError)


def test_h25_an_ordinary_buffer_is_no_reservation(raw):
    buffer = raw.session.allocate(0, PAGE)
    epoch = raw.command(0, commands.BARRIER)
    raw.send()
    raw.advanced(0, epoch)
    canonical = next(event.canonical for event in raw.events if getattr(event, "provisional", None) == buffer)
    for body in (VirtualUnmap(canonical, 0, PAGE), MemoryClose(canonical)):
        answer = ask(raw, body)
        assert isinstance(answer, UsageError)
        assert "no reservation" in str(answer)


def test_h22_the_server_keeps_pages_of_operations_in_flight(made):
    """The client's clock is not trusted: the server looks at its own queue."""
    raw, space, memory = made
    assert ask(raw, VirtualMap(space, (Placed(0, memory, 0, 4 * PAGE),))) == Done()
    size = 2 * PAGE
    upload = raw.command(0, commands.UPLOAD, commands.encode_transfer(space, 0, size, 1))
    raw.send()
    raw.advanced(1, barrier_on(raw, 1))
    answer = ask(raw, VirtualUnmap(space, PAGE, PAGE))
    assert isinstance(answer, UsageError)
    assert "in flight" in str(answer)
    assert ask(raw, VirtualUnmap(space, 2 * PAGE, PAGE)) == Done()
    raw.send_artifact(b"\7" * size)
    raw.advanced(0, upload)
    assert ask(raw, VirtualUnmap(space, 0, 2 * PAGE)) == Done()


def barrier_on(raw, queue):
    epoch = raw.command(queue, commands.BARRIER)
    raw.send()
    return epoch


@pytest.mark.parametrize("op", [commands.UPLOAD, commands.DOWNLOAD, commands.FILL, commands.READ])
def test_h22_an_operation_on_unmapped_pages_fails_its_queue_alone(made, op):
    raw, space, memory = made
    assert ask(raw, VirtualMap(space, (Placed(0, memory, 0, PAGE),))) == Done()
    bodies = {
        commands.UPLOAD: commands.encode_transfer(space, 0, 2 * PAGE, 1),
        commands.DOWNLOAD: commands.encode_transfer(space, 0, 2 * PAGE, 1),
        commands.FILL: commands.encode_fill(space, 0, 2 * PAGE, b"\1"),
        commands.READ: commands.encode_range(space, 0, 2 * PAGE),
    }
    raw.command(0, op, bodies[op])
    raw.send()
    failure = raw.until(Lane.QUEUE, lambda event: getattr(event, "failure", None) is not None).failure
    assert isinstance(failure, UsageError)
    assert f"bytes {PAGE} to {2 * PAGE} of the reservation are not mapped" in str(failure)
    if op in (commands.UPLOAD, commands.DOWNLOAD):
        header = bytearray(24)
        raw.read_bulk(header)
        assert decode_bulk(header).kind == ABORT
    raw.advanced(1, barrier_on(raw, 1))


def test_h22_a_released_reservation_is_given_up_whatever_is_mapped(made):
    raw, space, memory = made
    assert ask(raw, VirtualMap(space, (Placed(0, memory, 0, 4 * PAGE),))) == Done()
    upload = raw.command(0, commands.UPLOAD, commands.encode_transfer(space, 0, PAGE, 1))
    raw.session.release([space, memory])
    raw.send()
    raw.advanced(1, barrier_on(raw, 1))
    raw.send_artifact(b"\7" * PAGE)
    raw.advanced(0, upload)
    assert isinstance(ask(raw, VirtualUnmap(space, 0, PAGE)), NotFoundError)


# -- trouble ---------------------------------------------------------------------------------------------------------------------


def test_h22_a_map_that_fails_halfway_on_the_server_leaves_nothing_mapped(monkeypatch):
    with SharedServer() as server, remora.open(server.uri) as device:
        space, memory = device.reserve(16 * PAGE), device.physical(4 * PAGE)
        three = [Placement(2 * index * PAGE, memory, index * PAGE, PAGE) for index in range(3)]
        Refusing(monkeypatch, "map_memory", 3)
        with pytest.raises(OutOfMemoryError, match="refused to map pages") as caught:
            space.map_all(three)
        assert caught.value.code is Status.OUT_OF_DEVICE_MEMORY
        assert (space.spans, memory.mapped) == ((), False)
        with pytest.raises(UsageError, match="not mapped"):
            device.queue.fill(space.view(0, 4))
        space.map_all(three)
        device.queue.fill(space.view(2 * PAGE, PAGE), b"\1").wait(LONG)
        Refusing(monkeypatch, "map_memory", 1)
        with pytest.raises(OutOfMemoryError, match="refused to unmap"):
            space.unmap(0, PAGE)
        device.queue.fill(space.view(0, PAGE), b"\1").wait(LONG)
        space.clear()


def test_h22_recordings_name_buffers_that_came_after_a_reservation_was_asked_for(device):
    """Reservations are asked for on another lane than buffers: their ids say nothing about what is on its way there."""
    for _ in range(50):
        buffer = device.allocate(64)
        space = device.reserve(PAGE)
        with device.command_buffer() as recording:
            recording.fill(buffer, b"\3")
        device.queue.execute(recording).wait(LONG)
        assert bytes(buffer.read(timeout=LONG)) == b"\3" * 64
        space.close()
        recording.close()


def test_h22_a_change_without_an_answer_gives_the_reservation_up(device, space, monkeypatch):
    memory = device.physical(PAGE)

    def silent(*_):
        raise DeadlineError("the server did not map pages within 120 s")

    monkeypatch.setattr(device.host.calls, "ask", silent)
    with pytest.raises(DeadlineError):
        space.map(0, memory)
    monkeypatch.undo()
    for call in (lambda: space.map(0, memory), lambda: device.queue.fill(space.view(0, 4)), lambda: space.unmap(0, PAGE)):
        with pytest.raises(DeadlineError, match="did not map pages"):
            call()
    space.close()
    memory.close()


def test_h05_a_lost_server_ends_every_change_with_its_cause(serve):
    server = serve()
    with remora.open(server.uri) as device:
        space, memory, other = device.reserve(4 * PAGE), device.physical(PAGE), device.physical(PAGE)
        space.map(0, memory)
        server.kill()
        with pytest.raises(BrokenError):
            device.queue.barrier().wait(LONG)
        for call in (
            lambda: space.map(PAGE, other),
            lambda: space.unmap(0, PAGE),
            lambda: space.protect(0, PAGE, Access.READ),
            lambda: device.reserve(PAGE),
            lambda: device.physical(PAGE),
        ):
            with pytest.raises(BrokenError):
                call()
        other.close()
        memory.close()
        space.close()
        assert space.closed
    with pytest.raises(ClosedError):
        device.reserve(PAGE)
