"""HAL conformance: failure travels along dependencies, stays, and touches nothing else (H05, H11, H13, H26)."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest

from remora.errors import DeviceError, Error, UsageError
from remora.testing.cts.hal_factory import LONG, HalFactory, background, hold, second_queue

if TYPE_CHECKING:
    from collections.abc import Callable

    from remora.hal.buffer import Buffer
    from remora.hal.device import Device
    from remora.hal.queue import Queue
    from remora.hal.semaphore import Timepoint

__all__ = ["TestFailedKernels", "TestFailedQueues", "TestFailedWaits"]


class TestFailedWaits:
    """H11, H13: an operation whose wait fails, fails; so does what is behind it and what depends on it."""

    def test_h13_a_failed_wait_fails_the_operation_with_the_cause(self, device: Device) -> None:
        gate = device.semaphore()
        with device.upload(b"abcd") as buffer:
            late = device.queue.fill(buffer, b"x", wait=gate.at(1))
            gate.fail(DeviceError("the pump is broken"))
            with pytest.raises(DeviceError, match="the pump is broken"):
                late.wait(LONG)
            if len(device.queues) > 1:
                into = bytearray(4)
                device.queues[1].read(buffer, into).wait(LONG)
                assert into == b"abcd"

    def test_h13_all_signals_of_the_operation_fail(self, device: Device) -> None:
        gate, first, second = device.semaphore(), device.semaphore(), device.semaphore()
        device.queue.barrier(wait=gate.at(1), signal=[first.at(1), second.at(5)])
        device.queue.barrier(signal=second.at(6))
        gate.fail(DeviceError("the pump is broken"))
        for point in (first.at(1), second.at(5), second.at(6)):
            with pytest.raises(DeviceError, match="the pump is broken"):
                point.wait(LONG)

    def test_h11_a_wait_that_has_failed_before(self, device: Device) -> None:
        gate = device.semaphore()
        gate.fail(DeviceError("the pump is broken"))
        late = device.queue.barrier(wait=gate.at(1))
        with pytest.raises(DeviceError, match="the pump is broken"):
            late.wait(LONG)

    def test_h11_failure_reaches_other_queues_along_dependencies(self, device: Device) -> None:
        other = second_queue(device)
        gate = device.semaphore()
        failing = device.queue.barrier(wait=gate.at(1))
        dependent = other.barrier(wait=failing)
        gate.fail(DeviceError("the pump is broken"))
        with pytest.raises(DeviceError, match="the pump is broken"):
            dependent.wait(LONG)

    def test_h11_a_reached_value_outlives_the_failure(self, device: Device) -> None:
        semaphore = device.semaphore()
        semaphore.signal(2)
        semaphore.fail(DeviceError("no more"))
        behind = device.queue.barrier(wait=semaphore.at(2))
        behind.wait(LONG)
        assert behind.done

    def test_h11_a_signal_that_cannot_grow_fails_the_semaphore(self, device: Device) -> None:
        semaphore = device.semaphore(5)
        done = device.queue.barrier(signal=semaphore.at(5))
        done.wait(LONG)
        with pytest.raises(UsageError, match="greater value"):
            semaphore.wait(6, LONG)


class TestFailedQueues:
    """H05, H27: a queue that has failed says why, for good."""

    def test_h05_every_later_call_raises_the_cause(self, device: Device) -> None:
        failing = poison(device.queue)
        with device.allocate(8) as buffer:
            for call in calls_of(device.queue, buffer):
                with pytest.raises(DeviceError, match="the pump is broken"):
                    call()
        for _ in range(3):
            with pytest.raises(DeviceError, match="the pump is broken"):
                failing.wait(LONG)

    def test_h05_what_was_done_stays_done(self, device: Device) -> None:
        with device.upload(b"abcd") as buffer:
            done = device.queue.fill(buffer, b"x")
            done.wait(LONG)
            poison(device.queue)
            done.wait(LONG)
            assert done.done

    def test_h05_everything_behind_ends_and_calls_back_once(self, device: Device) -> None:
        gate = device.semaphore()
        device.queue.barrier(wait=gate.at(1))
        with device.allocate(1 << 20) as buffer:
            points = [call() for call in calls_of(device.queue, buffer)[:4] for _ in range(5)]
        called = [threading.Semaphore(0) for _ in points]
        for point, counter in zip(points, called, strict=True):
            point.on_done(counter.release)
        waiting = [background(partial(point.wait, LONG)) for point in points[:4]]
        gate.fail(DeviceError("the pump is broken"))
        for counter in called:
            assert counter.acquire(timeout=LONG)
        for future in waiting:
            with pytest.raises(DeviceError, match="the pump is broken"):
                future.result(LONG)
        assert not any(counter.acquire(blocking=False) for counter in called)

    def test_h11_another_queue_goes_on(self, device: Device) -> None:
        other = second_queue(device)
        poison(device.queue)
        with device.allocate(200_000) as buffer:
            other.fill(buffer, b"x")
            into = bytearray(200_000)
            other.read(buffer, into).wait(LONG)
            assert into == b"x" * 200_000

    def test_h05_the_device_closes_as_ever(self, device: Device) -> None:
        poison(device.queue)
        for queue in device.queues[1:]:
            hold(queue)
        device.close()
        assert device.closed


class TestFailedKernels:
    """H26: a kernel that reports an error fails its queue, and names itself."""

    def test_h26_the_kernel_and_its_code_are_named(self, factory: HalFactory, device: Device) -> None:
        fail = device.load(factory.need_faults())["fail"]
        for code, queue in zip((7, -3), device.queues, strict=False):
            failing = queue.dispatch(fail, (1, 1, 1), [], (code,))
            with pytest.raises(DeviceError, match=rf"fail.*{code}") as caught:
                failing.wait(LONG)
            assert caught.value.origin

    def test_h26_zero_is_no_failure(self, factory: HalFactory, device: Device) -> None:
        fail = device.load(factory.need_faults())["fail"]
        ran = device.queue.dispatch(fail, (3, 1, 1), [], (0,))
        ran.wait(LONG)
        assert ran.done
        assert device.queue.timeline.failure is None

    def test_h26_the_queue_has_failed_and_another_goes_on(self, factory: HalFactory, device: Device) -> None:
        kernels = device.load(factory.need_faults())
        device.queue.dispatch(kernels["fail"], (1, 1, 1), [], (7,))
        with pytest.raises(DeviceError, match="fail"):
            device.queue.wait_idle(LONG)
        with pytest.raises(DeviceError, match="fail"):
            device.queue.barrier()
        with pytest.raises(DeviceError, match="fail"):
            device.upload(b"through the first queue")
        other = second_queue(device)
        other.dispatch(kernels["fail"], (1, 1, 1), [], (0,)).wait(LONG)

    def test_h26_what_depends_on_it_fails_with_it(self, factory: HalFactory, device: Device) -> None:
        fail = device.load(factory.need_faults())["fail"]
        other = second_queue(device)
        signal = device.semaphore()
        gate = hold(device.queue)
        failing = device.queue.dispatch(fail, (1, 1, 1), [], (7,), signal=signal.at(1))
        dependent = other.barrier(wait=failing)
        gate.semaphore.signal(1)
        for point in (signal.at(1), dependent, device.queue.timeline.at(failing.value)):
            with pytest.raises(DeviceError, match=r"fail.*7"):
                point.wait(LONG)

    def test_h12_nothing_behind_a_failure_runs(self, factory: HalFactory, device: Device) -> None:
        fail = device.load(factory.need_faults())["fail"]
        other = second_queue(device)
        with device.upload(b"abcd") as buffer:
            gate = hold(device.queue)
            device.queue.dispatch(fail, (1, 1, 1), [], (7,))
            behind = device.queue.fill(buffer, b"x")
            into = bytearray(4)
            read = device.queue.read(buffer, into)
            gate.semaphore.signal(1)
            for point in (behind, read):
                with pytest.raises(DeviceError, match=r"fail.*7"):
                    point.wait(LONG)
            other.read(buffer, into).wait(LONG)
            assert into == b"abcd"


def poison(queue: Queue) -> Timepoint:
    """Make a queue fail; returns the timepoint that failed."""
    gate = queue.device.semaphore()
    late = queue.barrier(wait=gate.at(1))
    gate.fail(DeviceError("the pump is broken"))
    with pytest.raises(Error, match="the pump is broken"):
        late.wait(LONG)
    return late


def calls_of(queue: Queue, buffer: Buffer) -> list[Callable[[], Timepoint]]:
    """Every kind of operation on a buffer."""
    return [
        lambda: queue.fill(buffer, b"x"),
        lambda: queue.update(buffer, b"abcd"),
        lambda: queue.read(buffer, bytearray(8)),
        queue.barrier,
        lambda: queue.copy(buffer.view(0, 4), buffer.view(4, 4)),
        lambda: queue.update(buffer, bytes(buffer.size)),
    ]
