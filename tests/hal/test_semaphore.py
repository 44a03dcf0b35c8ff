"""Timeline semaphores (H11): monotonic, wait before signal, sticky failure, each callback once, await."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from remora.errors import DeadlineError, DeviceError, UsageError
from remora.hal.semaphore import MAX_VALUE, Semaphore, Timepoint

LONG = 20.0  # seconds; no wait in a passing test takes this long
values = st.integers(0, 6)


class SemaphoreMachine(RuleBasedStateMachine):
    """The oracle is two facts: the greatest value signalled before the failure, and the first failure."""

    watches = Bundle("watches")

    def __init__(self):
        super().__init__()
        self.semaphore = Semaphore()
        self.value = 0
        self.cause = None
        self.calls = []

    @rule(value=values)
    def signal(self, value):
        if self.cause is not None:
            with pytest.raises(DeviceError, match=self.cause):
                self.semaphore.signal(value)
        elif value <= self.value:
            with pytest.raises(UsageError, match="greater value"):
                self.semaphore.signal(value)
        else:
            self.semaphore.signal(value)
            self.value = value

    @rule(number=st.integers(0, 99))
    def fail(self, number):
        self.semaphore.fail(DeviceError(f"cause {number}."))
        self.cause = self.cause or f"cause {number}."

    @rule(target=watches, value=values)
    def watch(self, value):
        entry = [value, 0]
        self.calls.append(entry)
        self.semaphore.on(value, lambda: entry.__setitem__(1, entry[1] + 1))
        return entry

    @rule(value=values, timeout=st.sampled_from([0, 0.0, -1]))
    def wait(self, value, timeout):
        if value <= self.value:
            self.semaphore.wait(value, timeout)
            self.semaphore.at(value).wait()
        elif self.cause is not None:
            with pytest.raises(DeviceError, match=self.cause):
                self.semaphore.wait(value, timeout)
        else:
            with pytest.raises(DeadlineError, match=f"at {self.value} and did not reach {value}"):
                self.semaphore.wait(value, timeout)

    @rule(value=values)
    def done(self, value):
        point = self.semaphore.at(value)
        if value <= self.value or self.cause is None:
            assert point.done is (value <= self.value)
        else:
            with pytest.raises(DeviceError, match=self.cause):
                _ = point.done

    @invariant()
    def agrees(self):
        assert self.semaphore.value == self.value
        assert (self.semaphore.failure is None) is (self.cause is None)
        for value, calls in self.calls:
            assert calls == (value <= self.value or self.cause is not None)
        if self.cause is None:
            assert self.semaphore.query() == self.value
        else:
            with pytest.raises(DeviceError, match=self.cause):
                self.semaphore.query()

    def teardown(self):
        owed = [value for value, calls in self.calls if not calls]
        assert sorted(waiter.value for waiter in self.semaphore._waiters) == sorted(owed)


TestSemaphoreMachine = SemaphoreMachine.TestCase
TestSemaphoreMachine.settings = settings(max_examples=50, stateful_step_count=30)


@pytest.mark.parametrize("value", [-1, MAX_VALUE + 1])
def test_h11_values_are_u64(value):
    semaphore = Semaphore()
    for use in (Semaphore, semaphore.at, semaphore.signal):
        with pytest.raises(UsageError):
            use(value)


@pytest.mark.parametrize("value", [0, 4, 5])
def test_h11_a_signal_must_grow(value):
    semaphore = Semaphore(5, "ready")
    with pytest.raises(UsageError, match=f"ready is at 5; it can only be signalled to a greater value, not {value}"):
        semaphore.signal(value)
    assert semaphore.value == 5


def test_h11_the_greatest_value_is_reached():
    semaphore = Semaphore(MAX_VALUE - 1)
    semaphore.signal(MAX_VALUE)
    semaphore.wait(MAX_VALUE, 0)
    assert semaphore.value == MAX_VALUE


def test_h11_threads_wait_before_anyone_signals():
    semaphore = Semaphore(name="late")
    with ThreadPoolExecutor(8) as pool:
        waits = [pool.submit(semaphore.wait, value, LONG) for value in (1, 2, 3, 3, 2, 1, 5, 5)]
        for value in (1, 3, 5):
            semaphore.signal(value)
        for wait in waits:
            wait.result(LONG)
    assert not semaphore._waiters


def test_h11_failure_wakes_every_thread_with_the_first_cause():
    semaphore = Semaphore()
    with ThreadPoolExecutor(4) as pool:
        waits = [pool.submit(semaphore.wait, 1, LONG) for _ in range(4)]
        semaphore.fail(DeviceError("the first", origin="there"))
        semaphore.fail(DeviceError("the second"))
        raised = [wait.exception(LONG) for wait in waits]
    assert [(str(error), error.origin) for error in raised] == [("the first [there]", "there")] * 4
    assert len({id(error) for error in raised}) == 4


def test_h11_a_value_reached_before_the_failure_stays_reached():
    semaphore = Semaphore(3)
    semaphore.fail(DeviceError("gone"))
    semaphore.wait(3)
    assert semaphore.at(2).done
    assert semaphore.value == 3
    with pytest.raises(DeviceError, match="gone"):
        semaphore.wait(4)
    assert "failed: gone" in repr(semaphore)


def test_h11_many_threads_signal_and_every_waiter_is_called_once():
    semaphore = Semaphore()
    calls = [0] * 200
    reached = threading.Event()

    def count(index):
        calls[index] += 1

    def signal(value):
        try:
            semaphore.signal(value)
        except UsageError:  # another thread was there first
            return

    with ThreadPoolExecutor(8) as pool:
        watching = [pool.submit(semaphore.on, index + 1, lambda index=index: count(index)) for index in range(200)]
        signalling = [pool.submit(signal, value + 1) for value in range(200)]
        for each in (*watching, *signalling):
            each.result(LONG)
    semaphore.on(200, reached.set)
    if semaphore.value < 200:
        semaphore.signal(200)
    assert reached.wait(LONG)
    assert calls == [1] * 200


def test_h11_a_callback_that_raises_stops_nobody(monkeypatch):
    seen = []
    monkeypatch.setattr(threading, "excepthook", lambda arguments: seen.append(arguments.exc_value))
    semaphore = Semaphore()
    called = threading.Event()
    semaphore.on(1, lambda: 1 / 0)
    semaphore.on(1, called.set)
    semaphore.signal(1)
    assert called.is_set()
    assert [type(error) for error in seen] == [ZeroDivisionError]


def test_h11_a_callback_may_signal_and_watch_the_same_semaphore():
    semaphore = Semaphore()
    order = []

    def first():
        order.append("first")
        semaphore.on(2, lambda: order.append("second"))
        semaphore.signal(2)

    semaphore.on(1, first)
    semaphore.signal(1)
    assert order == ["first", "second"]


def test_h11_an_expired_wait_leaves_nothing_behind():
    semaphore = Semaphore(name="slow")
    with pytest.raises(DeadlineError, match="slow is at 0 and did not reach 7 within 1 ms"):
        semaphore.wait(7, 0.001)
    assert not semaphore._waiters


def test_h11_await_reached_later_from_a_thread():
    semaphore = Semaphore()

    async def main():
        started = asyncio.Event()

        async def waiting():
            started.set()
            await semaphore.at(2)
            return semaphore.value

        task = asyncio.create_task(waiting())
        await started.wait()
        thread = threading.Thread(target=semaphore.signal, args=(2,))
        thread.start()
        result = await asyncio.wait_for(task, LONG)
        thread.join(LONG)
        await semaphore.at(1)
        return result

    assert asyncio.run(main()) == 2


def test_h11_await_raises_the_failure():
    semaphore = Semaphore()

    async def main():
        task = asyncio.create_task(asyncio.wait_for(semaphore.at(1), LONG))
        await asyncio.get_running_loop().run_in_executor(None, semaphore.fail, DeviceError("kernel died"))
        await task

    with pytest.raises(DeviceError, match="kernel died"):
        asyncio.run(main())


def test_h11_a_cancelled_await_stops_only_the_waiting():
    semaphore = Semaphore()

    async def main():
        task = asyncio.ensure_future(asyncio.wait_for(semaphore.at(1), LONG))
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        semaphore.signal(1)
        await semaphore.at(1)

    asyncio.run(main())
    assert not semaphore._waiters


def test_h11_a_signal_after_the_loop_has_closed_is_harmless():
    semaphore = Semaphore()

    async def give_up():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(semaphore.at(1), 0.001)

    asyncio.run(give_up())
    semaphore.signal(1)
    assert semaphore.value == 1


@given(st.integers(0, 5), st.integers(0, 5))
def test_timepoints_are_values(left, right):
    semaphore, other = Semaphore(), Semaphore()
    assert (semaphore.at(left) == semaphore.at(right)) is (left == right)
    assert semaphore.at(left) != other.at(left)
    assert semaphore.at(left) != left
    assert len({semaphore.at(left), Timepoint(semaphore, right)}) == len({left, right})


def test_timepoints_call_back_and_print():
    semaphore = Semaphore(name="ready")
    seen = []
    semaphore.at(1).on_done(lambda: seen.append(semaphore.value))
    semaphore.signal(4)
    assert seen == [4]
    assert repr(semaphore.at(9)) == "<Timepoint ready >= 9>"
    assert repr(semaphore) == "<Semaphore ready 4>"
