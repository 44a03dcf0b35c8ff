"""Virtual memory of the cpu driver: what the kernel of the system has mapped, and what is left when it refuses (H22, H27)."""

import errno
import gc
import re
from pathlib import Path

import pytest

from remora.drivers.cpu import virtual_memory
from remora.errors import OutOfMemoryError
from remora.hal.buffer import Access
from remora.hal.virtual_memory import Placement

LONG = 20.0
PAGES = 16


def held_kib():
    """Resident memory of this process and the page tables for it."""
    lines = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return sum(int(lines[name].split()[0]) for name in ("VmRSS", "VmPTE"))


def maps():
    return Path("/proc/self/maps").read_text().splitlines()


def mappings(reservation):
    """(offset, length, protection, whether of a memfd) of what the system has mapped in a reservation's addresses."""
    return at(address_of(reservation), reservation.size)


def at(start, size):
    found = []
    for line in maps():
        low, high, protection, name = re.match(r"(\w+)-(\w+) (\S+) \S+ \S+ \S+\s*(.*)", line).groups()
        low, high = int(low, 16), int(high, 16)
        if low < start + size and start < high:
            found.append((max(low, start) - start, min(high, start + size) - max(low, start), protection, "memfd" in name))
    return found


def address_of(reservation):
    return reservation.buffer.memory.address


@pytest.fixture
def page(cpu):
    return cpu.info.page_size


@pytest.fixture
def space(cpu, page):
    reservation = cpu.reserve(PAGES * page)
    yield reservation
    reservation._end()


def test_h22_the_system_has_mapped_what_the_page_table_says(cpu, page, space):
    whole = [(0, PAGES * page, "---p", False)]
    assert mappings(space) == whole
    memory = cpu.physical(4 * page)
    space.map(2 * page, memory)
    assert mappings(space) == [
        (0, 2 * page, "---p", False),
        (2 * page, 4 * page, "rw-s", True),
        (6 * page, 10 * page, "---p", False),
    ]
    space.protect(3 * page, page, Access.READ)
    space.protect(4 * page, page, Access(0))
    assert [part[2] for part in mappings(space)] == ["---p", "rw-s", "r--s", "---s", "rw-s", "---p"]
    space.unmap(2 * page, 4 * page)
    assert sum(length for _, length, protection, _ in mappings(space) if protection == "---p") == PAGES * page
    memory.close()


def test_h22_closing_gives_the_addresses_back_at_once(cpu, page, space):
    with cpu.physical(page) as memory:
        space.map(0, memory)
        where = address_of(space)
        space.clear()
        space.close()
    assert at(where, PAGES * page) == []


def test_h22_a_thousand_reservations_leave_no_mapping(cpu, page):
    with cpu.physical(2 * page) as memory:

        def cycle():
            space = cpu.reserve(PAGES * page)
            space.map_all([Placement(0, memory, 0, page), Placement(5 * page, memory, page, page)])
            space.buffer.write(b"x", 5 * page, timeout=LONG)
            space._end()

        cycle()
        gc.collect()
        before = len(maps())
        for _ in range(1000):
            cycle()
        assert len(maps()) <= before + 4
    assert cpu.statistics().buffers == 0


def test_h27_what_a_dropped_reservation_maps_is_not_reused_in_flight(cpu, page):
    gate = cpu.semaphore()
    space, memory = cpu.reserve(page), cpu.physical(page)
    space.map(0, memory)
    block = memory.backing
    where = address_of(space), (block.segment.fd, block.offset)
    late = cpu.queue.fill(space.view(0, page), b"\xff", wait=gate.at(1))
    del block, space, memory
    gc.collect()
    assert at(where[0], page)[0][2] == "rw-s"
    fresh = [cpu.allocate(page) for _ in range(40)]
    assert where[1] not in [buffer.descriptor() for buffer in fresh]
    for buffer in fresh:
        cpu.queues[1].fill(buffer, b"\x01").wait(LONG)
    gate.signal(1)
    late.wait(LONG)
    assert all(bytes(buffer.read(timeout=LONG)) == b"\x01" * page for buffer in fresh)
    cpu.queue.barrier().wait(LONG)
    assert cpu.statistics().buffers == 40


def test_h22_a_view_keeps_the_addresses(cpu, page):
    space = cpu.reserve(2 * page)
    view = space.view(0, 4)
    with cpu.physical(page) as memory:
        space.map(0, memory)
        del space
        gc.collect()
        cpu.queue.fill(view, b"\3").wait(LONG)
        assert bytes(view.buffer.read(0, 4, timeout=LONG)) == b"\3" * 4


class Refusing:
    """A system call that fails at its `number`-th call from now."""

    def __init__(self, monkeypatch, name, number):
        self.call = getattr(virtual_memory, name)
        self.left = number
        monkeypatch.setattr(virtual_memory, name, self)

    def __call__(self, *args):
        self.left -= 1
        if self.left == 0:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return self.call(*args)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_h22_a_map_that_fails_halfway_leaves_nothing_mapped(cpu, page, space, monkeypatch, number):
    with cpu.physical(4 * page) as memory:
        space.map(9 * page, memory, 3 * page, page)
        before, three = mappings(space), [Placement(2 * index * page, memory, index * page, page) for index in range(3)]
        Refusing(monkeypatch, "map_memory", number)
        with pytest.raises(OutOfMemoryError, match=r"refused to map pages: Cannot allocate memory.*vm\.max_map_count") as caught:
            space.map_all(three)
        assert caught.value.origin == cpu.uri
        assert mappings(space) == before
        assert [span[:2] for span in space.spans] == [(9 * page, page)]
        space.map_all(three)
        assert len(space.spans) == 4


def test_h22_an_unmap_that_fails_changes_nothing(cpu, page, space, monkeypatch):
    with cpu.physical(4 * page) as memory:
        space.map(0, memory)
        space.protect(page, page, Access.READ)
        before = space.spans
        Refusing(monkeypatch, "map_memory", 1)
        with pytest.raises(OutOfMemoryError, match="refused to unmap pages"):
            space.unmap(0, 3 * page)
        assert space.spans == before
        cpu.queue.fill(space.view(0, page), b"\2").wait(LONG)
        space.unmap(0, 3 * page)
        assert [span[:2] for span in space.spans] == [(3 * page, page)]


def test_h22_a_protect_that_fails_halfway_changes_nothing(cpu, page, space, monkeypatch):
    with cpu.physical(4 * page) as memory:
        space.map(0, memory, 0, 2 * page)
        space.map(2 * page, memory, 0, 2 * page)
        space.protect(0, page, Access.READ)
        before = space.spans, mappings(space)
        Refusing(monkeypatch, "protect_memory", 3)
        with pytest.raises(OutOfMemoryError, match="refused to protect pages"):
            space.protect(0, 4 * page, Access(0))
        assert (space.spans, mappings(space)) == before
        cpu.queue.fill(space.view(page, 3 * page), b"\2").wait(LONG)


def test_h22_more_addresses_than_there_are(cpu):
    with pytest.raises(OutOfMemoryError, match="no range of"):
        cpu.reserve(1 << 60)


def test_h22_many_addresses_cost_nothing(cpu, page):
    before = held_kib()
    with cpu.reserve(1 << 40) as space, cpu.physical(page) as memory:
        space.map((1 << 40) - page, memory)
        last, into = space.view((1 << 40) - page, page), bytearray(page)
        cpu.queue.fill(last, b"\1")
        cpu.queue.read(last, into).wait(LONG)
        assert into == b"\1" * page
        assert held_kib() - before < 16 << 10  # the page tables of all of it would take 2 GiB


def test_h22_an_ordinary_buffer_takes_the_short_way(cpu):
    assert cpu.allocate(64)._guarded is False
