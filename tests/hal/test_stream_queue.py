"""Queues of devices that work by themselves, step by step: hardware that does what the test says (H11, H15, H27)."""

import gc
import threading
import weakref

import pytest
from tests.hal.streaming import StreamingDevice

from remora.errors import ClosedError, DeadlineError, DeviceError, DeviceLostError, OutOfMemoryError
from remora.hal import stream_queue
from remora.testing.cts.hal_factory import LONG, SHORT, background


@pytest.fixture
def device():
    opened = StreamingDevice(by_hand=True)
    yield opened
    for queue in opened.queues:
        queue.hardware.step(1 << 20)
    opened.close()


@pytest.fixture
def queue(device):
    return device.queue


@pytest.fixture
def hardware(queue):
    return queue.hardware


def test_h11_submitting_waits_for_nothing_and_done_means_done(device, queue, hardware):
    points = [queue.barrier() for _ in range(3)]
    assert not any(point.done for point in points)
    with pytest.raises(DeadlineError):
        points[0].wait(SHORT)
    hardware.step(2)  # the work of the first and its mark
    points[0].wait(LONG)
    assert not points[1].done
    hardware.step(4)
    points[2].wait(LONG)
    assert queue.timeline.value == points[2].value


def test_h11_a_callback_hears_of_it_without_anyone_waiting(queue, hardware):
    heard = threading.Event()
    queue.barrier().on_done(heard.set)
    assert not heard.wait(SHORT)
    hardware.step(2)
    assert heard.wait(LONG)


def test_h11_a_semaphore_of_the_user_moves_without_anyone_waiting(device, queue, hardware):
    done = device.semaphore()
    queue.barrier(signal=done.at(7))
    hardware.step(2)
    done.wait(7, LONG)


def test_h11_another_queue_waits_for_it(device, queue, hardware):
    first = queue.barrier()
    other = device.queues[1]
    second = other.barrier(wait=first)
    other.hardware.step(2)
    assert not second.done
    hardware.step(2)
    second.wait(LONG)


def test_h15_memory_is_held_until_the_device_is_done(device, queue, hardware):
    buffer = device.allocate(64)
    there = weakref.ref(buffer.holder)
    point = queue.fill(buffer, b"x")
    buffer.close()
    del buffer
    gc.collect()
    assert there() is not None
    hardware.step(2)
    point.wait(LONG)
    gc.collect()
    assert there() is None


def test_h15_nobody_waits_and_memory_still_goes(device, queue, hardware):
    """A program that only submits: what is done is retired when enough is in flight."""
    hardware.step(1 << 20)
    for _ in range(3 * stream_queue.MAX_FLYING):
        queue.barrier()
        assert len(queue._flying) <= stream_queue.MAX_FLYING + 1
    queue.wait_idle(LONG)


def test_h17_a_host_call_comes_after_what_the_host_does_for_operations_before_it(device, queue, hardware):
    """The watcher is at it while the worker drains."""
    entered, gate, seen = threading.Event(), threading.Event(), []

    class Slow:
        def retire(self):
            entered.set()
            assert gate.wait(LONG)
            seen.append("memory")

    queue._submit(queue._give_back, ([Slow()],), 0, (), (device.semaphore().at(1),))
    hardware.step(1 << 20)
    assert entered.wait(LONG)
    called = queue.host_call(lambda: seen.append("call"))
    with pytest.raises(DeadlineError):
        called.wait(SHORT)
    gate.set()
    called.wait(LONG)
    assert seen == ["memory", "call"]


def test_h17_memory_that_is_still_in_flight_is_waited_for_before_an_allocation_fails(device, queue, hardware):
    heap = device.info.heaps[0]
    size, count = heap.max_allocation, heap.size // heap.max_allocation
    held = [queue.allocate(size) for _ in range(count)]
    hardware.step(count)  # the mark of each
    held[-1][1].wait(LONG)
    queue.deallocate(held[0][0])
    late = background(lambda: queue.allocate(size))
    hardware.step(2)
    held.append(late.result(LONG))
    held[-1][1].wait(LONG)
    with pytest.raises(OutOfMemoryError):
        queue.allocate(size)[1].wait(LONG)


def test_h27_a_callback_may_look_and_submit(queue, hardware):
    hardware.step(1 << 20)
    again = []
    first = queue.barrier()
    first.on_done(lambda: again.append((queue.timeline.value, queue.barrier())))
    queue.wait_idle(LONG)
    while not again:
        queue.wait_idle(LONG)
    again[0][1].wait(LONG)
    assert again[0][0] >= first.value


def test_h05_what_is_in_flight_fails_with_the_device_and_what_is_done_is_done(device, queue, hardware):
    signal = device.semaphore()
    first = queue.barrier()
    lost = queue._submit(fault, (), 0, (), (signal.at(1),))
    behind = queue.barrier()
    hardware.step(1 << 20)
    first.wait(LONG)
    for point in (lost, behind, signal.at(1)):
        with pytest.raises(DeviceLostError, match="off the bus"):
            point.wait(LONG)
    with pytest.raises(DeviceLostError):
        queue.barrier()
    device.queues[1].hardware.step(2)
    device.queues[1].barrier().wait(LONG)


def test_h05_a_failure_is_heard_by_callbacks(queue, hardware):
    heard = threading.Event()
    lost = queue._submit(fault, (), 0, (), ())
    lost.on_done(heard.set)
    hardware.step(1)
    assert heard.wait(LONG)
    with pytest.raises(DeviceLostError):
        assert lost.done


def test_an_operation_that_cannot_begin_fails_behind_those_before(queue, hardware):
    first = queue.barrier()
    hardware.step(1 << 20)
    with pytest.raises(DeviceError, match="cannot begin"):
        queue.host_call(refuse).wait(LONG)
    assert first.done


def test_close_waits_for_the_device(device, queue, hardware):
    point = queue.barrier()
    held = queue.barrier(wait=device.semaphore().at(1))
    closed = background(device.close)
    with pytest.raises(TimeoutError):
        closed.result(SHORT)
    for each in device.queues:
        each.hardware.step(1 << 20)
    closed.result(LONG)
    assert point.done
    with pytest.raises(ClosedError):
        held.wait(LONG)


def fault():
    raise DeviceLostError("the device fell off the bus")


def refuse():
    raise DeviceError("cannot begin")
