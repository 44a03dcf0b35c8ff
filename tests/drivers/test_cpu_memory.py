"""Device memory of the cpu driver: blocks never overlap, go back exactly when unused, and can be mapped elsewhere (D01, H27)."""

import fcntl
import gc
import mmap
import os
import weakref
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.descriptors import MEMORY, count_open

from remora.drivers.cpu import memory as memory_module
from remora.drivers.cpu.memory import MEDIUM, PAGED, Memory, size_class
from remora.errors import ClosedError, OutOfMemoryError

GIB = 1 << 30
SIZES = st.one_of(st.integers(0, 300), st.integers(0, 300_000), st.sampled_from([1 << 20, MEDIUM, MEDIUM + 1, 3 * MEDIUM]))


@given(st.integers(0, 1 << 40))
def test_size_classes_hold_the_size_and_waste_little(size):
    reserved = size_class(size)
    assert reserved >= max(size, 64)
    assert reserved % 64 == 0
    assert size_class(reserved) == reserved
    assert reserved <= max(64, size * 1.5 + 64)
    assert size <= MEDIUM or reserved <= size * 1.125 + 1
    assert reserved < PAGED or reserved % mmap.PAGESIZE == 0


class Blocks(RuleBasedStateMachine):
    """Allocate, write, close and drop in any order, against a list of what must be there."""

    def __init__(self):
        super().__init__()
        self.memory = Memory(GIB, "test")
        self.live = []
        self.pinned = []
        self.serial = 0
        self.peak = 0

    @rule(size=SIZES)
    def allocate(self, size):
        block = self.memory.allocate(size)
        assert block.address % 64 == 0
        assert block.view.nbytes == size
        self.serial += 1
        stamp = self.serial.to_bytes(4, "little") * 2
        block.view[:8] = stamp[:size]
        self.live.append((block, stamp[:size]))
        self.peak = max(self.peak, sum(block.size for block, _ in self.live))

    @rule(index=st.integers(0, 1 << 16), pin=st.booleans())
    def close(self, index, pin):
        if self.live:
            block, stamp = self.live.pop(index % len(self.live))
            block.retire()
            block.retire()
            if pin:
                self.pinned.append((block, stamp))

    @rule()
    def drop_without_close(self):
        if self.live:
            self.live.pop()

    @rule()
    def unpin(self):
        if self.pinned:
            self.pinned.pop(0)

    @invariant()
    def contents_are_untouched(self):
        for block, stamp in self.live + self.pinned:
            assert bytes(block.view[:8]) == stamp

    @invariant()
    def nothing_overlaps(self):
        held = sorted((block.address, block.reserved) for block, _ in self.live + self.pinned)
        for (start, size), (following, _) in pairwise(held):
            assert start + size <= following

    @invariant()
    def counts_agree(self):
        assert self.memory.statistics() == (len(self.live), sum(block.size for block, _ in self.live), self.peak)

    def teardown(self):
        self.live.clear()
        self.pinned.clear()
        assert self.memory.statistics()[:2] == (0, 0)
        self.memory.close()


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("size", [100, 100_000, 1 << 20, 20 << 20])
def test_freed_memory_is_used_again(size):
    memory = Memory(GIB, "test")
    first = memory.allocate(size)
    place = first.address
    first.retire()
    held = memory.allocate(size)
    assert held.address != place
    del first
    assert memory.allocate(size).address == place


def test_warm_memory_is_bounded_and_the_rest_goes_back(monkeypatch):
    monkeypatch.setattr(memory_module, "WARM_BYTES", 1 << 20)
    memory = Memory(GIB, "test")
    blocks = [memory.allocate(1 << 20) for _ in range(3)]
    for block in blocks:
        block.view[:4] = b"warm"
    segment, offsets = blocks[0].segment, [block.offset for block in blocks]
    while blocks:
        blocks.pop(0).retire()
    del block
    kept = [bytes(segment.view[offset : offset + 4]) for offset in offsets]
    assert sorted(kept) == [bytes(4), bytes(4), b"warm"]


def test_a_large_block_beyond_the_warm_limit_is_unmapped(monkeypatch):
    monkeypatch.setattr(memory_module, "WARM_BYTES", 0)
    memory = Memory(GIB, "test")
    before = count_open(MEMORY)
    block = memory.allocate(MEDIUM + 1)
    assert count_open(MEMORY) > before
    block.retire()
    del block
    assert count_open(MEMORY) == before


def test_memory_runs_out_with_numbers():
    memory = Memory(1 << 20, "cpu://")
    held = memory.allocate(1 << 19)
    with pytest.raises(
        OutOfMemoryError, match=r"asked for 600,000 bytes, 524,288 of 1,048,576 are free: close buffers first"
    ) as caught:
        memory.allocate(600_000)
    assert caught.value.origin == "cpu://"
    assert memory.statistics() == (1, 1 << 19, 1 << 19)
    del held
    memory.allocate(600_000)


def test_a_large_allocation_asks_the_system_first(monkeypatch):
    monkeypatch.setattr(memory_module, "available_bytes", lambda: 1 << 20)
    memory = Memory(GIB, "test")
    with pytest.raises(OutOfMemoryError, match="1,048,576 of 1,073,741,824 are free"):
        memory.allocate(100 << 20)


def test_warm_memory_makes_room_for_a_large_allocation(monkeypatch):
    memory = Memory(GIB, "test")
    medium = memory.allocate(1 << 20)
    medium.view[:4] = b"warm"
    segment, offset = medium.segment, medium.offset
    memory.allocate(40 << 20).retire()
    medium.retire()
    del medium
    monkeypatch.setattr(memory_module, "available_bytes", lambda: 30 << 20)
    held = memory.allocate(64 << 20)
    assert held.size == 64 << 20
    assert bytes(segment.view[offset : offset + 4]) == bytes(4)


def test_the_systems_refusal_is_told(monkeypatch):
    def refuse(name, flags):
        raise OSError(24, "Too many open files")

    memory = Memory(GIB, "test")
    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(OutOfMemoryError, match=r"the system refused: Too many open files.*ulimit -n"):
        memory.allocate(1)


def test_the_collector_may_drop_blocks_while_the_lock_is_held():
    memory = Memory(GIB, "test")
    cycle = [memory.allocate(100)]
    cycle.append(cycle)
    with memory._lock:
        del cycle
        gc.collect()
    assert memory.statistics()[0] == 0


def test_another_mapping_sees_the_same_memory(cpu):
    buffer = cpu.upload(b"seen from both sides")
    fd, offset = buffer.descriptor()
    with mmap.mmap(fd, 0) as other:
        assert other[offset : offset + 4] == b"seen"
        other[offset : offset + 4] = b"SEEN"
    assert bytes(buffer.read(0, 4)) == b"SEEN"
    buffer.close()
    with pytest.raises(ClosedError):
        buffer.descriptor()


def test_statistics_of_a_device(cpu):
    first, second = cpu.allocate(100), cpu.allocate(0)
    assert (cpu.statistics().buffers, cpu.statistics().bytes_allocated) == (2, 100)
    first.close()
    del second
    statistics = cpu.statistics()
    assert (statistics.buffers, statistics.bytes_allocated, statistics.bytes_peak) == (0, 0, 100)


def test_h27_memory_of_a_closed_buffer_lives_until_its_operation_is_done(cpu):
    go = cpu.semaphore()
    buffer = cpu.upload(b"before..")
    into = bytearray(8)
    place = buffer.memory.address
    done = cpu.queues[1].read(buffer, into, wait=go.at(1))
    buffer.close()
    others = [cpu.upload(b"another!") for _ in range(10)]
    assert place not in {other.memory.address for other in others}
    go.signal(1)
    done.wait(5)
    cpu.queues[1].wait_idle(5)
    assert into == b"before.."
    others += [cpu.allocate(8) for _ in range(10)]
    assert place in {other.memory.address for other in others}


def test_a_view_from_a_mapping_outlives_the_device(cpu):
    with cpu.upload(bytes(MEDIUM + 1)).map() as mapping:
        view = mapping.view
    cpu.close()
    view[0] = 1
    assert view[0] == 1


def test_h20_the_size_of_a_memory_file_is_sealed():
    """Whoever has its descriptor can neither cut it, which would kill the one who touches it, nor forbid to write or map it."""
    block = Memory(GIB, "test").allocate(3 * MEDIUM)
    block.view[-1] = 7
    for size in (0, 4 * MEDIUM):
        with pytest.raises(PermissionError):
            os.ftruncate(block.segment.fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(block.segment.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    assert block.view[-1] == 7
    block.segment.discard(0, mmap.PAGESIZE)


def test_huge_pages_are_asked_for_where_one_fits():
    """`hg` among the flags of a mapping says so; the system grants them as transparent_hugepage/shmem_enabled says."""
    memory = Memory(GIB, "test")
    large, small = memory.allocate(3 * MEDIUM), memory.allocate(100)
    assert "hg" in told_of(large.address, "VmFlags:")
    assert "hg" not in told_of(small.address, "VmFlags:")


def told_of(address, key):
    """What the system tells of the mapping that an address is in."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            start, end = (int(word, 16) for word in words[0].split("-"))
            inside = start <= address < end
        elif inside and words[0] == key:
            return words[1:]
    raise AssertionError("the address is not mapped")


def test_freed_memory_is_warm_when_it_comes_back():
    """No page of it is touched for the first time again: that costs ten times a copy."""
    memory = Memory(GIB, "test")
    size = 32 << 20
    block = memory.allocate(size)
    segment = weakref.ref(block.segment)
    block.view[:] = bytes(size)
    before = resident(block.address)
    assert before >= size
    block.retire()
    del block
    for _ in range(3):
        again = memory.allocate(size - 1000)
        assert again.segment is segment()
        assert resident(again.address) == before
        again.retire()
        del again


def resident(address):
    """Bytes of the mapping that an address is in which are in memory."""
    return int(told_of(address, "Rss:")[0]) * 1024
