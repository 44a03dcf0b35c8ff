"""HAL conformance: the device itself, its end, its counters, and many threads (H05, H09, H27)."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest

from remora.errors import ClosedError
from remora.testing.cts.compare import same
from remora.testing.cts.hal_factory import LONG, HalFactory, background, blob, hold, slow, words

if TYPE_CHECKING:
    from remora.hal.device import Device

__all__ = ["TestClosing", "TestFacts", "TestStatistics", "TestThreads"]


class TestFacts:
    """H09: what a device says of itself."""

    def test_h09_the_catalog_is_whole(self, device: Device) -> None:
        info = device.info
        assert info.name == device.name
        assert info.driver
        assert info.targets == device.targets
        assert len(set(device.targets)) == len(device.targets)
        assert all(0 < heap.max_allocation <= heap.size and heap.alignment for heap in info.heaps)

    def test_h09_there_is_a_queue_for_every_number(self, device: Device) -> None:
        assert len(device.queues) == device.info.queue_count >= 1
        assert device.queue is device.queues[0]
        assert [queue.ordinal for queue in device.queues] == list(range(len(device.queues)))
        assert all(queue.device is device for queue in device.queues)

    def test_h09_everything_can_be_shown(self, factory: HalFactory, device: Device) -> None:
        kernels = device.load(factory.vector)
        buffer = device.allocate(10)
        shown = map(repr, (device, device.queue, buffer, buffer.view(2, 3), kernels, kernels["empty"], device.semaphore()))
        assert all(text.startswith("<") for text in shown)

    def test_h07_devices_are_apart(self, factory: HalFactory, device: Device) -> None:
        with factory.open() as other, other.upload(b"theirs"):
            assert device.statistics().buffers == 0
            hold(device.queue)
            other.queue.barrier().wait(LONG)


class TestClosing:
    """H05, H27: the end comes once, to everything."""

    def test_h27_with_and_close(self, factory: HalFactory) -> None:
        with factory.open() as device:
            assert not is_closed(device)
        assert is_closed(device)
        device.close()
        device.close()

    def test_h27_a_closed_device_says_so(self, factory: HalFactory, device: Device) -> None:
        kernels = device.load(factory.vector)
        buffer = device.allocate(8)
        device.close()
        for call in (
            lambda: device.allocate(1),
            lambda: device.upload(b"x"),
            lambda: device.load(factory.vector),
            device.semaphore,
            device.queue.barrier,
            lambda: device.queue.fill(buffer),
            lambda: device.queue.dispatch(kernels["empty"], (1, 1, 1), []),
            lambda: buffer.read(timeout=LONG),
            lambda: buffer.write(b"x", timeout=LONG),
        ):
            with pytest.raises(ClosedError, match="closed"):
                call()

    def test_h27_children_close_after_their_device(self, factory: HalFactory, device: Device) -> None:
        kernels, buffer = device.load(factory.vector), device.allocate(8)
        device.close()
        for _ in range(2):
            buffer.close()
            kernels.close()
        assert buffer.closed

    def test_h27_pending_waits_end_with_closed_error(self, device: Device) -> None:
        gate = hold(device.queue)
        late, semaphore = device.queue.barrier(), device.semaphore()
        waiting = [background(lambda: late.wait(LONG)), background(lambda: semaphore.wait(1, LONG))]
        device.close()
        for future in waiting:
            with pytest.raises(ClosedError):
                future.result(LONG)
        for point in (late, gate, semaphore.at(1)):
            with pytest.raises(ClosedError):
                point.wait(LONG)

    def test_h27_running_work_is_joined(self, factory: HalFactory, device: Device) -> None:
        """The memory and code of what still runs live until it is done; nothing is pulled from under a kernel."""
        factory.need_kernels()
        mix = device.load(factory.vector)["mix_u32"]
        busy = [slow(mix, queue) for queue in device.queues]
        transfers = [queue.update(device.allocate(2 << 20), blob(2 << 20)) for queue in device.queues]
        device.close()
        for point in (*busy, *transfers):
            if point.semaphore.value < point.value:
                with pytest.raises(ClosedError):
                    point.wait(LONG)

    def test_h27_a_finished_timepoint_stays_finished(self, device: Device) -> None:
        done = device.queue.barrier()
        done.wait(LONG)
        device.close()
        done.wait(LONG)
        assert done.done

    def test_h27_threads_that_submit_see_the_end(self, device: Device) -> None:
        started = threading.Barrier(5)

        def submit() -> None:
            started.wait(LONG)
            while True:
                device.queue.barrier().wait(LONG)

        running = [background(submit) for _ in range(4)]
        started.wait(LONG)
        device.queues[-1].barrier().wait(LONG)
        device.close()
        for future in running:
            with pytest.raises(ClosedError):
                future.result(LONG)


class TestStatistics:
    """Counters are exact."""

    def test_d10_buffers_and_bytes(self, device: Device) -> None:
        assert device.statistics().buffers == 0
        with device.allocate(1000), device.allocate(24), device.allocate(0):
            held = device.statistics()
            assert (held.buffers, held.bytes_allocated) == (3, 1024)
        after = device.statistics()
        assert (after.buffers, after.bytes_allocated, after.bytes_peak) == (0, 0, 1024)

    def test_d10_dispatches(self, factory: HalFactory, device: Device) -> None:
        empty = device.load(factory.vector)["empty"]
        for queue in device.queues:
            for _ in range(3):
                queue.dispatch(empty, (1, 1, 1), [])
            queue.wait_idle(LONG)
        assert device.statistics().dispatches == 3 * len(device.queues)


class TestThreads:
    """Any thread may call any method."""

    def test_d10_many_threads_submit_and_wait_at_once(self, factory: HalFactory, device: Device) -> None:
        fill = device.load(factory.vector)["fill_index"]
        barrier = threading.Barrier(8)

        def work(number: int) -> None:
            queue = device.queues[number % len(device.queues)]
            barrier.wait(LONG)
            for step in range(25):
                with device.allocate(16) as buffer:
                    queue.fill(buffer, bytes([number]))
                    into = bytearray(16)
                    queue.read(buffer, into).wait(LONG)
                    assert into == bytes([number]) * 16
                    queue.dispatch(fill, (1, 1, 1), [buffer], (4, step))
                    queue.read(buffer, into).wait(LONG)
                    assert into == (words(*range(step, step + 4)) if factory.executes else bytes([number]) * 16)

        for future in [background(partial(work, number)) for number in range(8)]:
            future.result(LONG)
        assert device.statistics().buffers == 0

    def test_d10_large_and_small_transfers_from_many_threads(self, device: Device) -> None:
        sizes = (3, 70_000, 1 << 20, 40, 200_000, 64 * 1024)

        def work(number: int) -> None:
            queue = device.queues[number % len(device.queues)]
            for step, size in enumerate(sizes * 2):
                data, into = blob(size, number * 100 + step), bytearray(size)
                with device.allocate(size) as buffer:
                    queue.update(buffer, data)
                    queue.read(buffer, into).wait(LONG)
                assert same(into, data)

        for future in [background(partial(work, number)) for number in range(6)]:
            future.result(LONG)

    def test_d10_loading_while_others_work(self, factory: HalFactory, device: Device) -> None:
        def work() -> int:
            points = [device.queues[-1].barrier() for _ in range(100)]
            for point in points:
                point.wait(LONG)
            return sum(point.done for point in points)

        busy = [background(work) for _ in range(2)]
        for _ in range(5):
            kernels = device.load(factory.vector)
            device.queue.dispatch(kernels["empty"], (1, 1, 1), []).wait(LONG)
            kernels.close()
        assert [future.result(LONG) for future in busy] == [100, 100]


def is_closed(device: Device) -> bool:
    return device.closed
