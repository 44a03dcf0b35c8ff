"""H20, H21: staging memory is reused, bounded, pinned while it is kept, and gone with its device."""

import gc
from pathlib import Path

import pytest

from remora.hal import staging
from remora.hal.staging import LEAST, StagingPool

MIB = 1 << 20


class Pins:
    """What a driver has pinned."""

    def __init__(self, refuse=False):
        self.now, self.made, self._refuse = [], 0, refuse

    def pin(self, segment):
        if self._refuse:
            raise OSError("no memory may be pinned")
        self.now.append(segment.size)
        self.made += 1

    def unpin(self, segment):
        self.now.remove(segment.size)


@pytest.fixture
def pins():
    return Pins()


@pytest.fixture
def pool(pins):
    pool = StagingPool(pins.pin, pins.unpin)
    yield pool
    pool.close()
    assert pins.now == []


def test_what_is_given_back_is_used_again(pool, pins):
    first = pool.take(MIB)
    place = first.place()
    first.view[:4] = b"warm"
    first.give_back()
    first.give_back()
    second = pool.take(MIB - 5)
    assert second.place().file is place.file
    assert (second.view.nbytes, bytes(second.view[:4])) == (MIB - 5, b"warm")
    third = pool.take(MIB)
    assert third.place().file is not place.file
    assert pins.made == 2
    for each in (second, third):
        each.give_back()


def test_the_view_is_the_file(pool):
    taken = pool.take(MIB)
    file, offset = taken.place()
    taken.view[10:14] = b"here"
    with Path(f"/proc/self/fd/{file.fd}").open("rb") as other:
        other.seek(offset + 10)
        assert other.read(4) == b"here"
    taken.give_back()


def test_little_is_not_staged(pool, pins):
    assert pool.take(LEAST - 1) is None
    assert pins.made == 0


def test_there_is_an_end_to_it(monkeypatch, pool, pins):
    monkeypatch.setattr(staging, "MOST", 4 * MIB)
    assert pool.take(5 * MIB) is None
    held = [pool.take(MIB) for _ in range(4)]
    assert None not in held
    assert pool.take(MIB) is None
    for each in held:
        each.give_back()
    large = pool.take(4 * MIB)  # what is free goes for it
    assert pins.now == [4 * MIB]
    large.give_back()


def test_a_small_transfer_does_not_take_a_large_file(pool, pins):
    large = pool.take(8 * MIB)
    large.give_back()
    small = pool.take(MIB)
    assert pins.made == 2
    small.give_back()


def test_what_cannot_be_pinned_is_no_staging():
    pool = StagingPool(Pins(refuse=True).pin)
    assert pool.take(MIB) is None
    pool.close()


def test_memory_that_is_used_outlives_the_pool(pool, pins):
    taken = pool.take(MIB)
    pool.close()
    assert pool.take(MIB) is None
    taken.view[:2] = b"ok"
    assert pins.now == [MIB]
    view = taken.view
    taken.give_back()
    assert pins.now == []
    assert bytes(view[:2]) == b"ok"
    gc.collect()
