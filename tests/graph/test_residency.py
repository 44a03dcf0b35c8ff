"""G11: a budget that cannot be oversubscribed; loads once, leases, pins, eviction of what is idle, oldest first."""

import gc
import threading
import weakref

import pytest

from remora.errors import BusyError, DeviceError, UsageError
from remora.graph import MemoryBudget, ResidencyManager

SOON = 20.0


class Weights:
    """Something loaded."""

    def __init__(self, name="w"):
        self.name = name

    def end(self):
        DROPPED.append(self.name)


#: Whose end was called, in order.
DROPPED = []


@pytest.fixture(autouse=True)
def nothing_dropped():
    DROPPED.clear()


def load(manager, key, resident=40, peak=None, **options):
    def loader():
        return Weights(key), resident

    return manager.load(key, Weights, peak=resident if peak is None else peak, loader=loader, drop=Weights.end, **options)


def test_g11_a_budget_counts_and_refuses():
    budget = MemoryBudget(100)
    first = budget.reserve(60)
    assert budget.reserved_bytes == 60
    with pytest.raises(BusyError, match="do not fit"):
        budget.reserve(41)
    with pytest.raises(UsageError, match="never"):
        budget.reserve(101)
    with pytest.raises(UsageError, match="never"):
        budget.reserve(-1)
    budget.reserve(0).release()
    first.shrink(10)
    with pytest.raises(UsageError, match="cannot become"):
        first.shrink(11)
    assert budget.reserved_bytes == 10
    with first:
        pass
    first.release()
    assert budget.reserved_bytes == 0
    with pytest.raises(UsageError, match="at least one byte"):
        MemoryBudget(0)


def test_g11_a_dropped_reservation_gives_its_bytes_back():
    budget = MemoryBudget(100)
    budget.reserve(60)
    gc.collect()
    assert budget.reserved_bytes == 0


def test_g11_many_threads_never_get_more_than_there_is():
    budget, most = MemoryBudget(100), []

    def work():
        for _ in range(300):
            try:
                with budget.reserve(30):
                    most.append(budget.reserved_bytes)
            except BusyError:
                continue

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert 0 < max(most) <= 100
    assert budget.reserved_bytes == 0


def test_g11_a_key_is_loaded_once_and_kept():
    manager = ResidencyManager(100)
    with load(manager, "a", 40, peak=90) as lease:
        assert lease.bytes == 40
        assert manager.budget.reserved_bytes == 40
        with load(manager, "a") as again:
            assert again.value is lease.value
    assert manager.budget.reserved_bytes == 40
    with pytest.raises(UsageError, match="lease was closed"):
        _ = lease.value
    with pytest.raises(UsageError, match="is a Weights, not a int"):
        manager.load("a", int, peak=1, loader=lambda: (1, 1), drop=print)


def test_g11_idle_things_go_oldest_first_and_only_when_room_is_needed():
    manager = ResidencyManager(100)
    for key in "ab":
        load(manager, key).close()
    load(manager, "a").close()  # used again: b is the oldest now
    load(manager, "c").close()
    assert DROPPED == ["b"]
    assert manager.statistics().resources == 2
    with manager.budget.reserve(100):
        assert DROPPED == ["b", "a", "c"]
    assert manager.statistics().evictions == 3


def test_g11_leases_pins_and_use_keep_things():
    manager = ResidencyManager(100)
    lease, idle = load(manager, "a"), load(manager, "b", idle=lambda weights: weights.name == "never")
    pin = lease.pin()
    lease.close()
    lease.close()
    idle.close()
    for key in "ab":
        assert not manager.evict(key)
    with pytest.raises(BusyError):
        load(manager, "c")
    with pin:
        pass
    pin.close()
    assert manager.evict("a")
    assert not manager.evict("a")
    assert DROPPED == ["a"]


def test_g11_bytes_stay_charged_until_the_drop_is_over():
    manager, seen = ResidencyManager(100), []

    def drop(weights):
        seen.append(manager.budget.reserved_bytes)

    manager.load("a", Weights, peak=40, loader=lambda: (Weights(), 40), drop=drop).close()
    assert manager.evict("a")
    assert seen == [40]
    assert manager.budget.reserved_bytes == 0


@pytest.mark.parametrize("resident", [0, -1, 41])
def test_g11_a_loader_that_says_nonsense_leaves_nothing(resident):
    manager = ResidencyManager(100)
    with pytest.raises(DeviceError, match="announced as its peak"):
        load(manager, "a", resident, peak=40)
    assert DROPPED == ["a"]
    assert manager.statistics().resources == 0
    assert manager.budget.reserved_bytes == 0


def test_g11_others_wait_for_a_load_and_one_of_them_tries_again_when_it_fails():
    manager, tries, begun, go = ResidencyManager(100), [], threading.Event(), threading.Event()

    def loader():
        tries.append(threading.get_ident())
        begun.set()
        assert go.wait(SOON)
        if len(tries) == 1:
            raise ValueError("a bad disk")
        return Weights(), 40

    results = []

    def work():
        try:
            results.append(manager.load("a", Weights, peak=40, loader=loader, drop=Weights.end).value)
        except ValueError as error:
            results.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert begun.wait(SOON)
    go.set()
    for thread in threads:
        thread.join(SOON)
    assert len(tries) == 2
    assert results.count("a bad disk") == 1
    assert len({id(each) for each in results if each != "a bad disk"}) == 1


def test_g11_a_manager_and_its_budget_hold_each_other_weakly():
    manager = ResidencyManager(100)
    budget, gone = manager.budget, weakref.ref(manager)
    lease = load(manager, "a")
    lease.close()
    del manager, lease
    gc.collect()
    assert gone() is None
    assert budget.reserved_bytes == 0
    with pytest.raises(UsageError, match="never"):
        budget.reserve(101)
