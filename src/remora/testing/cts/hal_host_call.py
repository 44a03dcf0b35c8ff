"""HAL conformance: functions of the program in a queue's order, and flush (H17, H27)."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from remora.errors import ClosedError, DeadlineError, DeviceError, UsageError
from remora.testing.cts.hal_factory import LONG, SHORT, background, hold, second_queue

if TYPE_CHECKING:
    from remora.hal.device import Device
    from remora.hal.queue import Queue
    from remora.hal.semaphore import Timepoint

__all__ = ["TestFlush", "TestHostCalls"]


def takes_work(queue: Queue) -> bool:
    """Whether the queue is open."""
    try:
        queue.barrier()
    except ClosedError:
        return False
    return True


class TestHostCalls:
    """H17, H27: a call runs here, once, after everything before it and before everything behind it."""

    def test_h17_a_call_runs_in_the_order_of_its_queue(self, device: Device) -> None:
        seen: list[bytes] = []
        with device.upload(b"aaaa") as buffer, device.allocate(4) as copy:
            queue = device.queue
            for letter in (b"b", b"c", b"d"):
                into = bytearray(4)
                queue.fill(buffer, letter)
                queue.read(buffer, into)
                queue.host_call(partial(lambda into: seen.append(bytes(into)), into))
                queue.fill(buffer, b"x")
            queue.copy(buffer, copy).wait(LONG)
        assert seen == [b"bbbb", b"cccc", b"dddd"]

    def test_h17_what_is_behind_waits_for_the_call(self, device: Device) -> None:
        begun, go = threading.Event(), threading.Event()
        with device.upload(b"abcd") as buffer:
            into = bytearray(4)

            def call() -> None:
                begun.set()
                go.wait(LONG)

            called = device.queue.host_call(call)
            device.queue.fill(buffer, b"x")
            late = device.queue.read(buffer, into)
            assert begun.wait(LONG)
            with pytest.raises(DeadlineError):
                late.wait(SHORT)
            assert not late.done
            assert into == bytes(4)
            go.set()
            called.wait(LONG)
            late.wait(LONG)
            assert into == b"xxxx"

    def test_h17_a_call_waits_and_signals_like_any_operation(self, device: Device) -> None:
        ran, gate, after = threading.Event(), device.semaphore(), device.semaphore()
        device.queue.host_call(ran.set, wait=gate.at(3), signal=[after.at(2)])
        assert not ran.wait(SHORT)
        gate.signal(3)
        after.wait(2, LONG)
        assert ran.is_set()

    def test_h17_a_call_waits_for_another_queue(self, device: Device) -> None:
        other = second_queue(device)
        gate, ran = hold(other), threading.Event()
        device.queue.host_call(ran.set, wait=other.barrier())
        assert not ran.wait(SHORT)
        gate.semaphore.signal(1)
        assert ran.wait(LONG)

    def test_h17_never_on_the_thread_that_submits(self, device: Device) -> None:
        """It may hold a lock that the call takes."""
        lock, threads = threading.Lock(), []

        def call() -> None:
            with lock:
                threads.append(threading.get_ident())

        with lock:
            points = [device.queue.host_call(call) for _ in range(20)]
        points[-1].wait(LONG)
        assert len(threads) == 20
        assert threading.get_ident() not in threads

    def test_h27_a_call_may_submit(self, device: Device) -> None:
        points: list[Timepoint] = []
        with device.upload(b"abcd") as buffer:
            done = device.queue.host_call(lambda: points.extend(queue.fill(buffer, b"y") for queue in device.queues))
            done.wait(LONG)
            for point in points:
                point.wait(LONG)
            assert bytes(buffer.read(timeout=LONG)) == b"yyyy"

    def test_h27_a_call_may_wait_for_another_queue(self, device: Device) -> None:
        other = second_queue(device)
        into = bytearray(200_000)
        with device.upload(b"z" * len(into)) as buffer:
            device.queue.host_call(lambda: other.read(buffer, into).wait(LONG)).wait(LONG)
            assert into == b"z" * len(into)

    def test_h27_a_call_that_raises_fails_its_queue_with_the_cause(self, device: Device) -> None:
        signal = device.semaphore()

        def spill() -> None:
            raise ValueError("no tea left")

        with device.upload(b"abcd") as buffer:
            gate = hold(device.queue)
            called = device.queue.host_call(spill, signal=signal.at(1))
            behind = device.queue.fill(buffer, b"x")
            gate.semaphore.signal(1)
            for point in (called, behind, signal.at(1)):
                with pytest.raises(DeviceError, match=r"spill raised ValueError: no tea left") as caught:
                    point.wait(LONG)
                assert isinstance(caught.value.__cause__, ValueError)
                assert caught.value.origin
            with pytest.raises(DeviceError, match="no tea left"):
                device.queue.barrier()
            if len(device.queues) > 1:
                into = bytearray(4)
                device.queues[1].read(buffer, into).wait(LONG)
                assert into == b"abcd"

    def test_h27_an_error_of_ours_keeps_its_class(self, device: Device) -> None:
        def refuse() -> None:
            raise UsageError("only on Sundays")

        with pytest.raises(UsageError, match="only on Sundays"):
            device.queue.host_call(refuse).wait(LONG)

    def test_h27_a_call_behind_a_failure_does_not_run(self, device: Device) -> None:
        gate, ran = device.semaphore(), threading.Event()
        device.queue.barrier(wait=gate.at(1))
        call = device.queue.host_call(ran.set)
        gate.fail(DeviceError("the pump is broken"))
        with pytest.raises(DeviceError, match="the pump is broken"):
            call.wait(LONG)
        assert not ran.is_set()

    def test_h13_a_call_whose_wait_fails_does_not_run(self, device: Device) -> None:
        gate, ran, signal = device.semaphore(), threading.Event(), device.semaphore()
        call = device.queue.host_call(ran.set, wait=gate.at(1), signal=signal.at(1))
        gate.fail(DeviceError("the pump is broken"))
        for point in (call, signal.at(1)):
            with pytest.raises(DeviceError, match="the pump is broken"):
                point.wait(LONG)
        assert not ran.is_set()

    def test_h27_a_call_may_close_the_device(self, device: Device) -> None:
        closed, ended = threading.Event(), threading.Semaphore(0)

        def close() -> None:
            device.close()
            closed.set()

        gate = hold(device.queue)
        called = device.queue.host_call(close)
        behind = device.queue.barrier()
        for point in (called, behind):
            point.on_done(ended.release)
        gate.semaphore.signal(1)
        assert closed.wait(LONG)
        for _ in range(2):
            assert ended.acquire(timeout=LONG)
        assert not ended.acquire(blocking=False)
        for point in (called, behind):
            with pytest.raises(ClosedError):
                point.wait(LONG)
        assert device.closed

    def test_h27_closing_waits_for_the_call_that_runs(self, device: Device) -> None:
        begun, go, ran = threading.Event(), threading.Event(), []

        def call() -> None:
            begun.set()
            go.wait(LONG)
            ran.append(1)

        device.queue.host_call(call)
        later = device.queue.host_call(lambda: ran.append(2))
        assert begun.wait(LONG)
        closing = background(device.close)
        while takes_work(device.queue):  # until closing has come to the queue
            assert not closing.done()
            threading.Event().wait(SHORT / 50)
        go.set()
        closing.result(LONG)
        with pytest.raises(ClosedError):
            later.wait(LONG)
        assert ran == [1]

    @pytest.mark.parametrize("call", [None, 7, "print"])
    def test_h17_a_call_must_be_callable(self, device: Device, call: Any) -> None:
        with pytest.raises(UsageError, match="function of no arguments"):
            device.queue.host_call(call)


class TestFlush:
    """H17: everything submitted is on its way."""

    def test_h17_flush_waits_for_nothing(self, device: Device) -> None:
        with device.upload(b"abcd") as buffer:
            gate = hold(device.queue)
            late = device.queue.fill(buffer, b"x")
            device.queue.flush()
            assert not late.done
            gate.semaphore.signal(1)
            late.wait(LONG)

    def test_h17_flushed_work_runs_though_nobody_waits(self, device: Device) -> None:
        """Callbacks come without a wait, whether the queue was flushed or not."""
        done = [threading.Event() for _ in range(40)]
        for number, event in enumerate(done):
            device.queue.barrier().on_done(event.set)
            if number % 7 == 0:
                device.queue.flush()
        for event in done:
            assert event.wait(LONG)
