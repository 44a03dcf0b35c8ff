"""Queues on host threads (H11, H13): order, inline and worker, failed gates, close; nothing is lost."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remora.errors import ClosedError, DeviceError, Error, UsageError
from remora.hal.host_queue import INLINE_NS
from remora.hal.semaphore import Semaphore

LONG = 20.0
SLOW = INLINE_NS  # an expected cost, in nanoseconds, that sends work to the worker


def submit(queue, work, *args, cost_ns=0, wait=(), signal=()):
    return queue._submit(work, args, cost_ns, wait, signal)


@pytest.fixture
def queue(device):
    return device.queue


def test_short_work_runs_at_once_on_the_submitting_thread(queue):
    where = []
    done = submit(queue, lambda: where.append(threading.current_thread()))
    assert where == [threading.current_thread()]
    assert done.done
    assert queue._worker is None


def test_long_work_runs_on_the_worker(queue):
    where = []
    submit(queue, lambda: where.append(threading.current_thread()), cost_ns=SLOW).wait(LONG)
    assert where == [queue._worker]


def test_h11_work_waits_for_its_timepoint_and_everything_behind_stays_behind(queue):
    gate = Semaphore()
    order = []
    first = submit(queue, order.append, 1, wait=(gate.at(1),))
    second = submit(queue, order.append, 2)
    assert not first.done
    assert not second.done
    assert order == []
    gate.signal(1)
    second.wait(LONG)
    assert order == [1, 2]
    assert (first.value, second.value) == (1, 2)


def test_h11_several_waits_and_several_signals(queue):
    gates = [Semaphore() for _ in range(3)]
    told = [Semaphore() for _ in range(3)]
    done = submit(queue, lambda: None, wait=tuple(gate.at(5) for gate in gates), signal=tuple(each.at(7) for each in told))
    for gate in reversed(gates):
        assert not done.done
        gate.signal(5)
    for each in told:
        each.wait(7, LONG)
    done.wait(LONG)


def test_signals_come_before_the_timepoint(queue):
    told = Semaphore()
    seen = []
    queue.timeline.on(1, lambda: seen.append(told.value))
    submit(queue, lambda: None, signal=(told.at(3),))
    assert seen == [3]


def test_h13_a_failed_gate_fails_the_operation_and_all_its_signals(queue):
    gate, told, behind = Semaphore(), Semaphore(), Semaphore()
    done = submit(queue, pytest.fail, "must not run", wait=(gate.at(1),), signal=(told.at(1),))
    later = submit(queue, pytest.fail, "must not run either", signal=(behind.at(1),))
    gate.fail(DeviceError("the first cause", origin="elsewhere"))
    for point in (done, later, told.at(1), behind.at(1)):
        with pytest.raises(DeviceError, match="the first cause") as caught:
            point.wait(LONG)
        assert caught.value.origin == "elsewhere"
    with pytest.raises(DeviceError, match="the first cause"):
        submit(queue, lambda: None)


@pytest.mark.parametrize("cost_ns", [0, SLOW])
def test_h11_an_exception_in_work_is_sticky_and_names_its_operation(device, cost_ns):
    queue = device.queue
    submit(queue, lambda: None).wait(LONG)
    failed = submit(queue, lambda: 1 / 0, cost_ns=cost_ns)
    with pytest.raises(DeviceError, match="ZeroDivisionError") as caught:
        failed.wait(LONG)
    assert caught.value.origin == "scratch:// queue 0, operation 2"
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(DeviceError, match="ZeroDivisionError"):
        submit(queue, lambda: None)
    submit(device.queues[1], lambda: None).wait(LONG)


def test_an_error_of_ours_keeps_its_class(queue):
    def work():
        raise UsageError("a kernel refused", origin="the kernel")

    with pytest.raises(UsageError, match="a kernel refused") as caught:
        submit(queue, work).wait(LONG)
    assert caught.value.origin == "the kernel"


def test_an_interrupt_of_the_submitting_thread_goes_on_and_ends_the_queue(queue):
    def work():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        submit(queue, work)
    with pytest.raises(DeviceError, match="KeyboardInterrupt"):
        submit(queue, lambda: None)


def test_a_signal_that_cannot_move_fails_its_semaphore_only(queue):
    told = Semaphore(5)
    done = submit(queue, lambda: None, signal=(told.at(5),))
    done.wait(LONG)
    assert isinstance(told.failure, UsageError)


def test_work_submitted_while_another_thread_runs_inline_is_done_in_order(queue):
    entered, leave = threading.Event(), threading.Event()
    order = []

    def hold():
        entered.set()
        assert leave.wait(LONG)
        order.append(1)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(submit, queue, hold)
        assert entered.wait(LONG)
        second = submit(queue, order.append, 2)
        assert not second.done
        leave.set()
        second.wait(LONG)
        first.result(LONG).wait(LONG)
    assert order == [1, 2]


def test_inline_again_after_the_worker_has_emptied_the_queue(queue):
    submit(queue, lambda: None, cost_ns=SLOW).wait(LONG)
    # The worker gives the queue back under the lock, after its last operation: submit until it has.

    def runs_here():
        where = []
        submit(queue, lambda: where.append(threading.current_thread())).wait(LONG)
        return where == [threading.current_thread()]

    assert any(runs_here() for _ in range(10_000)), "short work never ran on the submitting thread again"


@settings(max_examples=40)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=40))
def test_h11_any_mix_keeps_submission_order_and_loses_nothing(make_device, plan):
    """Each entry: long or short work, and which of five gates it waits for (0: none); gates open from the last to the first."""
    with make_device() as device:
        gates = [Semaphore() for _ in range(5)]
        order = []
        points = []
        for index, (slow, gate) in enumerate(plan):
            wait = (gates[gate].at(1),) if gate else ()
            points.append(submit(device.queue, order.append, index, cost_ns=SLOW * slow, wait=wait))
        for gate in reversed(gates):
            gate.signal(1)
        for point in points:
            point.wait(LONG)
        assert order == list(range(len(plan)))
        assert [point.value for point in points] == list(range(1, len(plan) + 1))


def test_many_threads_submit_and_every_operation_runs_once(queue):
    ran = []
    with ThreadPoolExecutor(8) as pool:
        points = list(pool.map(lambda index: submit(queue, ran.append, index, cost_ns=SLOW * (index % 3 == 0)), range(400)))
    for point in points:
        point.wait(LONG)
    assert sorted(ran) == list(range(400))
    assert sorted(point.value for point in points) == list(range(1, 401))


class Watched(Semaphore):
    """Says when somebody has begun to wait for it."""

    __slots__ = ("watched",)

    def __init__(self):
        super().__init__()
        self.watched = threading.Event()

    def on(self, value, callback):
        super().on(value, callback)
        self.watched.set()


def test_close_ends_what_waits_for_a_gate(device):
    queue = device.queue
    gate, told, behind = Watched(), Semaphore(), Semaphore()
    first = submit(queue, pytest.fail, "must not run", wait=(gate.at(1),), signal=(told.at(1),))
    second = submit(queue, pytest.fail, "must not run", signal=(behind.at(1),))
    assert gate.watched.wait(LONG)  # the worker has taken the first operation
    device.close()
    for point in (first, second, told.at(1), behind.at(1)):
        with pytest.raises(ClosedError, match="open it again"):
            point.wait(LONG)
    assert not queue._worker.is_alive()
    gate.signal(1)
    with pytest.raises(ClosedError):
        submit(queue, lambda: None)
    device.close()


def test_close_lets_the_running_operation_finish(device):
    queue = device.queue
    entered, leave = threading.Event(), threading.Event()

    def hold():
        entered.set()
        assert leave.wait(LONG)

    running = submit(queue, hold, cost_ns=SLOW)
    behind = submit(queue, pytest.fail, "must not run")
    assert entered.wait(LONG)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(device.close)
        leave.set()
        closing.result(LONG)
    running.wait(LONG)
    with pytest.raises(ClosedError):
        behind.wait(LONG)


def test_close_waits_for_an_inline_operation_of_another_thread(device):
    queue = device.queue
    entered, leave, left = threading.Event(), threading.Event(), threading.Event()

    def hold():
        entered.set()
        assert leave.wait(LONG)
        left.set()

    with ThreadPoolExecutor(2) as pool:
        inline = pool.submit(submit, queue, hold)
        assert entered.wait(LONG)
        behind = submit(queue, pytest.fail, "must not run")
        closing = pool.submit(device.close)
        while not queue._closing:
            assert not closing.done()
        with pytest.raises(ClosedError):
            submit(queue, pytest.fail, "must not run")
        leave.set()
        closing.result(LONG)
        assert left.is_set()
        inline.result(LONG).wait(LONG)
    with pytest.raises(ClosedError):
        behind.wait(LONG)


def test_close_while_many_threads_submit_leaves_no_point_open(device):
    queue = device.queue
    barrier = threading.Barrier(5)
    points = []

    def flood():
        barrier.wait(LONG)
        while True:
            try:
                points.append(submit(queue, lambda: None, cost_ns=SLOW * (len(points) % 2)))
            except ClosedError:
                return

    with ThreadPoolExecutor(4) as pool:
        floods = [pool.submit(flood) for _ in range(4)]
        barrier.wait(LONG)
        queue.timeline.wait(50, LONG)
        device.close()
        for each in floods:
            each.result(LONG)
    outcomes = set()
    for point in points:
        try:
            point.wait(LONG)
            outcomes.add("done")
        except Error as error:
            outcomes.add(type(error))
    assert outcomes <= {"done", ClosedError}


def test_close_from_a_callback_on_the_worker_does_not_wait_for_itself(device):
    closed = threading.Event()

    def close():
        device.close()
        closed.set()

    gate = Semaphore()
    submit(device.queue, lambda: None, cost_ns=SLOW, wait=(gate.at(1),)).on_done(close)
    gate.signal(1)
    assert closed.wait(LONG)
