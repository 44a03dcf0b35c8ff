"""HAL conformance: timeline semaphores, dependencies between queues, callbacks and asyncio (H11, H13, H27)."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest

from remora.errors import ClosedError, DeadlineError, DeviceError, UsageError
from remora.testing.cts.compare import same
from remora.testing.cts.hal_factory import LONG, SHORT, background, hold, second_queue

if TYPE_CHECKING:
    from remora.hal.device import Device
    from remora.hal.semaphore import Semaphore, Timepoint

__all__ = ["TestAwait", "TestCallbacks", "TestDependencies", "TestHostWaits", "TestSemaphores"]


class TestSemaphores:
    """H11: a u64 that only grows."""

    def test_h11_it_begins_where_it_is_told(self, device: Device) -> None:
        assert device.semaphore().value == 0
        semaphore = device.semaphore(41)
        assert semaphore.value == 41
        semaphore.signal(42)
        assert semaphore.query() == 42
        assert semaphore.at(42).done
        assert not semaphore.at(43).done

    def test_h11_it_holds_64_bits(self, device: Device) -> None:
        semaphore = device.semaphore((1 << 64) - 2)
        semaphore.signal((1 << 64) - 1)
        assert semaphore.value == (1 << 64) - 1
        for call in (lambda: semaphore.at(1 << 64), lambda: semaphore.at(-1), lambda: device.semaphore(-1)):
            with pytest.raises(UsageError, match="2\\*\\*64"):
                call()

    def test_h11_it_never_goes_back_or_stays(self, device: Device) -> None:
        semaphore = device.semaphore(5)
        for value in (4, 5):
            with pytest.raises(UsageError, match="greater value"):
                semaphore.signal(value)
        assert semaphore.value == 5

    def test_h11_failure_is_sticky_and_the_first_cause_wins(self, device: Device) -> None:
        semaphore = device.semaphore()
        semaphore.signal(3)
        semaphore.fail(DeviceError("the first cause"))
        semaphore.fail(DeviceError("the second cause"))
        semaphore.wait(3, LONG)
        assert semaphore.value == 3
        for call in (lambda: semaphore.wait(4, LONG), semaphore.query, lambda: semaphore.signal(9), lambda: semaphore.at(4).done):
            with pytest.raises(DeviceError, match="the first cause"):
                call()


class TestHostWaits:
    """H11: threads wait for queues and for each other."""

    def test_h11_a_wait_may_begin_before_the_signal(self, device: Device) -> None:
        semaphore = device.semaphore()
        waiting = [background(partial(semaphore.wait, value, LONG)) for value in (1, 2, 3)]
        semaphore.signal(2)
        waiting[0].result(LONG)
        waiting[1].result(LONG)
        assert not waiting[2].done()
        semaphore.signal(3)
        waiting[2].result(LONG)

    def test_h11_a_queue_signals_what_the_host_waits_for(self, device: Device) -> None:
        semaphore = device.semaphore()
        with device.upload(b"abcd") as buffer:
            device.queue.fill(buffer, b"1", signal=semaphore.at(1))
            device.queue.fill(buffer, b"2", signal=[semaphore.at(2), device.semaphore().at(7)])
            semaphore.wait(2, LONG)
            assert bytes(buffer.read(timeout=LONG)) == b"2222"

    def test_h11_a_timeout_ends_the_waiting_and_nothing_else(self, device: Device) -> None:
        gate = hold(device.queue)
        late = device.queue.barrier()
        for timeout in (0.0, SHORT):
            with pytest.raises(DeadlineError, match="did not reach") as caught:
                late.wait(timeout)
            assert isinstance(caught.value, TimeoutError)
            assert caught.value.retryable
        with pytest.raises(DeadlineError):
            device.queue.wait_idle(SHORT)
        gate.semaphore.signal(1)
        late.wait(LONG)
        device.queue.wait_idle(LONG)

    def test_h11_a_wait_without_a_timeout(self, device: Device) -> None:
        gate = hold(device.queue)
        late = device.queue.barrier()
        waiting = background(late.wait)
        assert not waiting.done()
        gate.semaphore.signal(1)
        waiting.result(LONG)
        assert late.done

    def test_h11_many_threads_wait_for_one_queue(self, device: Device) -> None:
        gate = hold(device.queue)
        points = [device.queue.barrier() for _ in range(16)]
        waiting = [background(partial(point.wait, LONG)) for point in points for _ in range(2)]
        gate.semaphore.signal(1)
        assert [future.result(LONG) for future in waiting] == [None] * 32
        assert all(point.done for point in points)


class TestDependencies:
    """H11, H13: operations wait for timepoints, whoever reaches them, and whenever."""

    def test_h11_an_operation_waits_for_another_queue(self, device: Device) -> None:
        other = second_queue(device)
        with device.upload(bytes(1 << 20)) as buffer:
            into = bytearray(1 << 20)
            for value in range(1, 20):
                filled = other.fill(buffer, bytes([value]))
                read = device.queue.read(buffer, into, wait=filled)
                other.barrier(wait=read)
                read.wait(LONG)
                assert same(into, bytes([value]) * (1 << 20))

    def test_h11_a_chain_over_all_queues(self, device: Device) -> None:
        semaphore = device.semaphore()
        queues = device.queues
        with device.upload(bytes(64)) as buffer:
            for step in range(64):
                queue = queues[step % len(queues)]
                wait = (semaphore.at(step),) if step else ()
                queue.update(buffer, bytes([step + 1]), step, wait=wait, signal=semaphore.at(step + 1))
            semaphore.wait(64, LONG)
            into = bytearray(64)
            queues[-1].read(buffer, into).wait(LONG)
            assert into == bytes(range(1, 65))

    def test_h13_a_wait_may_be_submitted_before_its_signal(self, device: Device) -> None:
        other = second_queue(device)
        semaphore = device.semaphore()
        with device.upload(b"abcd") as buffer:
            into = bytearray(4)
            late = device.queue.read(buffer, into, wait=semaphore.at(1))
            behind = device.queue.fill(buffer, b"z")
            assert not late.done
            other.fill(buffer, b"x", signal=semaphore.at(1))
            late.wait(LONG)
            assert into == b"xxxx"
            behind.wait(LONG)

    def test_h13_the_host_lets_an_operation_go(self, device: Device) -> None:
        semaphore = device.semaphore()
        with device.upload(b"abcd") as buffer:
            late = device.queue.fill(buffer, b"x", wait=[semaphore.at(1), semaphore.at(3)])
            semaphore.signal(2)
            with pytest.raises(DeadlineError):
                late.wait(SHORT)
            semaphore.signal(3)
            late.wait(LONG)
            assert bytes(buffer.read(timeout=LONG)) == b"xxxx"

    def test_h13_two_queues_wait_for_each_other_in_turn(self, device: Device) -> None:
        """Ping-pong, all of it submitted at once, the waiting side first."""
        other = second_queue(device)
        ping, pong = device.semaphore(), device.semaphore()
        for step in range(1, 51):
            other.barrier(wait=ping.at(step), signal=pong.at(step))
            device.queue.barrier(wait=pong.at(step - 1), signal=ping.at(step))
        pong.wait(50, LONG)
        assert ping.value == 50

    def test_h13_large_transfers_wait_too(self, device: Device) -> None:
        semaphore = device.semaphore()
        size = (1 << 20) + 1
        with device.upload(b"a" * size) as buffer:
            into = bytearray(size)
            device.queue.update(buffer, b"b" * size, wait=semaphore.at(1))
            late = device.queue.read(buffer, into)
            with pytest.raises(DeadlineError):
                late.wait(SHORT)
            semaphore.signal(1)
            late.wait(LONG)
            assert into == b"b" * size

    def test_h13_a_timepoint_of_another_device_is_waited_for(self, device: Device, second: Device) -> None:
        gate = hold(second.queue)
        foreign = second.queue.barrier()
        late = device.queue.barrier(wait=foreign)
        with pytest.raises(DeadlineError):
            late.wait(SHORT)
        gate.semaphore.signal(1)
        late.wait(LONG)

    def test_h11_a_reached_timepoint_is_no_wait(self, device: Device) -> None:
        done = device.queue.barrier()
        done.wait(LONG)
        behind = device.queues[-1].barrier(wait=[done, device.semaphore(5).at(5)])
        behind.wait(LONG)
        assert behind.done


class TestCallbacks:
    """H27: called exactly once, and free to do what they like."""

    def test_h27_each_is_called_once(self, device: Device) -> None:
        gate = hold(device.queue)
        point = device.queue.barrier()
        calls: list[int] = []
        called = threading.Semaphore(0)

        def call(number: int) -> None:
            calls.append(number)
            called.release()

        for number in range(20):
            point.on_done(partial(call, number))
        assert calls == []
        gate.semaphore.signal(1)
        for _ in range(20):
            assert called.acquire(timeout=LONG)
        device.queue.barrier().wait(LONG)
        assert sorted(calls) == list(range(20))

    def test_h27_a_reached_timepoint_calls_at_once(self, device: Device) -> None:
        point = device.queue.barrier()
        point.wait(LONG)
        calls: list[bool] = []
        point.on_done(lambda: calls.append(True))
        assert calls == [True]

    def test_h27_a_failure_calls_too(self, device: Device) -> None:
        semaphore = device.semaphore()
        called = threading.Semaphore(0)
        semaphore.at(1).on_done(called.release)
        semaphore.fail(DeviceError("no more"))
        assert called.acquire(timeout=LONG)
        assert not called.acquire(timeout=SHORT)

    def test_h27_a_callback_may_submit(self, device: Device) -> None:
        points: list[Timepoint] = []
        called = threading.Event()

        def submit() -> None:
            points.append(device.queues[-1].barrier())
            called.set()

        device.queue.barrier().on_done(submit)
        assert called.wait(LONG)
        points[0].wait(LONG)

    def test_h27_what_a_callback_raises_breaks_nothing(self, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
        """It goes to threading.excepthook, and the others are called."""
        raised: list[str] = []
        monkeypatch.setattr(threading, "excepthook", lambda args: raised.append(str(args.exc_value)))
        gate = hold(device.queue)
        point = device.queue.barrier()
        called = threading.Event()

        def fail() -> None:
            raise ValueError("mine")

        point.on_done(fail)
        point.on_done(called.set)
        gate.semaphore.signal(1)
        assert called.wait(LONG)
        device.queue.barrier().wait(LONG)
        assert raised == ["mine"]

    def test_h27_a_callback_may_close_the_device(self, device: Device) -> None:
        gate = hold(device.queue)
        late = device.queue.barrier()
        closed = threading.Event()

        def close() -> None:
            device.close()
            closed.set()

        late.on_done(close)
        gate.semaphore.signal(1)
        assert closed.wait(LONG)
        with pytest.raises(ClosedError):
            device.queue.barrier()

    def test_h27_a_callback_of_the_operation_itself_may_close_the_device(self, device: Device) -> None:
        signal = device.semaphore()
        closed = threading.Event()

        def close() -> None:
            device.close()
            closed.set()

        signal.at(1).on_done(close)
        device.queue.barrier(signal=signal.at(1))
        assert closed.wait(LONG)
        with pytest.raises(ClosedError):
            device.queue.barrier()

    def test_h27_closing_the_device_calls_what_is_left(self, device: Device) -> None:
        hold(device.queue)
        called = threading.Semaphore(0)
        device.queue.barrier().on_done(called.release)
        device.close()
        assert called.acquire(timeout=LONG)
        assert not called.acquire(timeout=SHORT)


class TestAwait:
    """H27: `await` in asyncio."""

    def test_h27_a_timepoint_is_awaited(self, device: Device) -> None:
        async def run() -> bytes:
            with device.allocate(4) as buffer:
                await device.queue.fill(buffer, b"x")
                into = bytearray(4)
                await device.queue.read(buffer, into)
                return bytes(into)

        assert asyncio.run(asyncio.wait_for(run(), LONG)) == b"xxxx"

    def test_h27_the_loop_runs_on_while_one_awaits(self, device: Device) -> None:
        async def run() -> None:
            gate = hold(device.queue)
            late = [device.queue.barrier() for _ in range(10)]
            tasks = [asyncio.ensure_future(settle(point)) for point in late]
            await asyncio.sleep(0)
            assert not any(task.done() for task in tasks)
            gate.semaphore.signal(1)
            await asyncio.wait_for(asyncio.gather(*tasks), LONG)
            assert all(point.done for point in late)

        asyncio.run(run())

    def test_h27_cancelling_stops_only_the_waiting(self, device: Device) -> None:
        async def run() -> None:
            gate = hold(device.queue)
            late = device.queue.barrier()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(settle(late), SHORT)
            gate.semaphore.signal(1)
            await asyncio.wait_for(settle(late), LONG)

        asyncio.run(run())

    def test_h27_a_failure_is_raised(self, device: Device) -> None:
        async def run(semaphore: Semaphore) -> None:
            task = asyncio.ensure_future(settle(semaphore.at(1)))
            await asyncio.sleep(0)
            semaphore.fail(DeviceError("no more"))
            await asyncio.wait_for(task, LONG)

        with pytest.raises(DeviceError, match="no more"):
            asyncio.run(run(device.semaphore()))

    def test_h27_a_loop_may_end_before_the_signal(self, device: Device) -> None:
        gate = hold(device.queue)
        late = device.queue.barrier()

        async def run() -> None:
            asyncio.ensure_future(settle(late)).cancel()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(settle(late), SHORT)

        asyncio.run(run())
        gate.semaphore.signal(1)
        late.wait(LONG)

    def test_h27_closing_the_device_ends_an_await(self, device: Device) -> None:
        async def run() -> None:
            hold(device.queue)
            task = asyncio.ensure_future(settle(device.queue.barrier()))
            await asyncio.sleep(0)
            device.close()
            await asyncio.wait_for(task, LONG)

        with pytest.raises(ClosedError):
            asyncio.run(run())


async def settle(point: Timepoint) -> None:
    await point
