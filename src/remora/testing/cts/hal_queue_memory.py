"""HAL conformance: memory that comes and goes in a queue's order (H14, H15, H16, H17)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from remora.errors import ClosedError, DeviceError, Error, OutOfMemoryError, Status, UsageError
from remora.hal.records import Patch, Slot
from remora.testing.cts.hal_factory import LONG, HalFactory, blob, hold, second_queue, words

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from remora.hal.buffer import Buffer
    from remora.hal.device import Device
    from remora.hal.queue import Queue

__all__ = ["TestQueueMemory", "TestQueueMemoryFailures"]

BIG = 300_000
"""More bytes than travel inside a command."""


class TestQueueMemory:
    """H17: a buffer of `queue.allocate` is usable at once by what comes behind it."""

    @pytest.mark.parametrize("size", [0, 1, 4096, BIG])
    def test_h17_every_operation_behind_it_may_name_it(self, device: Device, size: int) -> None:
        data, queue = blob(size), device.queue
        gate = hold(queue)
        first, there = queue.allocate(size)
        second, _ = queue.allocate(size)
        into, filled = bytearray(size), bytearray(size)
        queue.update(first, data)
        queue.copy(first, second)
        queue.read(second, into)
        queue.fill(second, b"x")
        last = queue.read(second, filled)
        assert there.semaphore.value < there.value
        gate.semaphore.signal(1)
        last.wait(LONG)
        assert there.done
        assert into == data
        assert filled == b"x" * size
        queue.deallocate(first)
        queue.deallocate(second).wait(LONG)

    def test_h17_views_of_it(self, device: Device) -> None:
        gate = hold(device.queue)
        buffer, _ = device.queue.allocate(8)
        device.queue.fill(buffer, b"a")
        device.queue.fill(buffer.view(2, 4), b"b")
        gate.semaphore.signal(1)
        assert bytes(buffer.read(timeout=LONG)) == b"aabbbbaa"
        buffer.close()

    def test_h17_a_kernel_behind_it_computes_with_it(self, factory: HalFactory, device: Device) -> None:
        factory.need_kernels()
        add, queue = device.load(factory.vector)["add_i32"], device.queue
        with device.upload(words(1, 2, 3)) as x:
            gate = hold(queue)
            y, _ = queue.allocate(12)
            out, _ = queue.allocate(12)
            queue.update(y, words(10, 20, 30))
            queue.dispatch(add, add.grid_for(3), [x, y, out], (3,))
            into = bytearray(12)
            done = queue.read(out, into)
            queue.deallocate(y)
            queue.deallocate(out)
        gate.semaphore.signal(1)
        done.wait(LONG)
        assert into == words(11, 22, 33)

    def test_h17_code_and_memory_of_work_behind_it_may_be_closed(self, factory: HalFactory, device: Device) -> None:
        factory.need_kernels()
        kernels, queue = device.load(factory.vector), device.queue
        add = kernels["add_i32"]
        gate = hold(queue)
        x, out = device.allocate(4), queue.allocate(4)[0]
        queue.update(x, words(5))
        into = bytearray(4)
        queue.dispatch(add, add.grid_for(1), [x, x, out], (1,))
        done = queue.read(out, into)
        x.close()
        out.close()
        kernels.close()
        gate.semaphore.signal(1)
        done.wait(LONG)
        assert into == words(10)

    @pytest.mark.parametrize("one_shot", [False, True])
    def test_h18_a_recording_may_name_it(self, device: Device, one_shot: bool) -> None:
        queue = device.queue
        gate = hold(queue)
        buffer, _ = queue.allocate(64)
        entry, _ = queue.allocate(64)
        with device.command_buffer(1, one_shot=one_shot) as commands:
            commands.fill(buffer, b"ab")
            commands.copy(buffer.view(0, 32), Slot(0, 32), 32)
            commands.fill(Slot(0, 0, 32), b"z")
        into = bytearray(64)
        queue.execute(commands, [entry])
        done = queue.read(entry, into)
        gate.semaphore.signal(1)
        done.wait(LONG)
        assert into == b"z" * 32 + b"ab" * 16
        commands.close()

    def test_h18_a_patch_may_name_it(self, factory: HalFactory, device: Device) -> None:
        factory.need_kernels()
        add, queue = device.load(factory.vector)["add_i32"], device.queue
        with device.upload(words(1)) as x, device.upload(words(0)) as out:
            with device.command_buffer() as commands:
                number = commands.dispatch(add, add.grid_for(1), [x, x, out], (1,))
            gate = hold(queue)
            late, _ = queue.allocate(4)
            queue.update(late, words(40))
            queue.execute(commands, patches={number: Patch(bindings={1: late})})
            gate.semaphore.signal(1)
            assert bytes(out.read(timeout=LONG)) == words(41)
            commands.close()

    @pytest.mark.parametrize("size", [100, BIG])
    def test_h17_files_read_into_it_and_write_from_it(self, device: Device, tmp_path: Path, size: int) -> None:
        (tmp_path / "in").write_bytes(blob(size))
        gate = hold(device.queue)
        with device.open_file(tmp_path / "in") as file, device.open_file(tmp_path / "out", "w") as out:
            buffer, _ = device.queue.allocate(size)
            device.queue.read_file(file, 0, buffer)
            done = device.queue.write_file(buffer, out)
            device.queue.deallocate(buffer)
            gate.semaphore.signal(1)
            done.wait(LONG)
        assert (tmp_path / "out").read_bytes() == blob(size)

    def test_h17_it_comes_when_its_waits_are_reached(self, device: Device) -> None:
        gate, ready = device.semaphore(), device.semaphore()
        buffer, there = device.queue.allocate(1024, wait=gate.at(2), signal=ready.at(7))
        device.queue.flush()
        assert not there.done
        gate.signal(2)
        ready.wait(7, LONG)
        there.wait(LONG)
        gone = device.queue.deallocate(buffer, wait=gate.at(3), signal=[ready.at(8)])
        assert not gone.done
        gate.signal(3)
        ready.wait(8, LONG)
        gone.wait(LONG)

    def test_h17_another_queue_waits_for_it(self, device: Device) -> None:
        other = second_queue(device)
        gate = hold(device.queue)
        buffer, there = device.queue.allocate(BIG)
        filled = other.fill(buffer, b"q", wait=there)
        into = bytearray(BIG)
        done = device.queue.read(buffer, into, wait=filled)
        gate.semaphore.signal(1)
        done.wait(LONG)
        assert into == b"q" * BIG

    def test_h17_closing_it_is_as_good(self, device: Device) -> None:
        gate = hold(device.queue)
        with device.queue.allocate(BIG)[0] as buffer:
            into = bytearray(BIG)
            device.queue.fill(buffer, b"w")
            done = device.queue.read(buffer, into)
        gate.semaphore.signal(1)
        done.wait(LONG)
        assert into == b"w" * BIG

    def test_h17_any_buffer_may_be_deallocated(self, device: Device) -> None:
        buffer, into = device.upload(b"abcd"), bytearray(4)
        gate = hold(device.queue)
        done = device.queue.read(buffer, into)
        device.queue.deallocate(buffer)
        assert buffer.closed
        gate.semaphore.signal(1)
        done.wait(LONG)
        assert into == b"abcd"

    def test_h17_memory_goes_at_its_turn_and_is_there_for_what_comes_behind(self, factory: HalFactory, device: Device) -> None:
        """More is allocated and deallocated in turn than the device has."""
        if not factory.out_of_memory:
            pytest.skip("this device is not to be filled (HalFactory.out_of_memory)")
        heap = device.info.heaps[0]
        size = min(heap.max_allocation, 1 << 26)
        points = []
        for _ in range(20):
            buffer, _ = device.queue.allocate(size)
            device.queue.fill(buffer.view(0, 4096), b"x")
            points.append(device.queue.deallocate(buffer))
        points[-1].wait(LONG)
        assert device.statistics().bytes_allocated == 0
        assert device.statistics().buffers == 0

    def test_h15_ten_thousand_come_and_go(self, device: Device) -> None:
        for _ in range(10_000):
            device.queue.deallocate(device.queue.allocate(64)[0])
        device.queue.wait_idle(LONG)
        assert device.statistics().buffers == 0

    def test_h17_held_elsewhere_it_stays_until_that_is_done(self, device: Device) -> None:
        """An operation that was submitted before, on a queue that waits, still finds the memory."""
        other, into = second_queue(device), bytearray(4)
        with device.upload(b"abcd") as source:
            buffer, there = device.queue.allocate(4)
            device.queue.copy(source, buffer).wait(LONG)
            gate = device.semaphore()
            late = other.read(buffer, into, wait=gate.at(1))
            device.queue.deallocate(buffer).wait(LONG)
            device.queue.allocate(4)[1].wait(LONG)
            gate.signal(1)
            late.wait(LONG)
        assert into == b"abcd"
        assert there.done

    def test_h17_a_late_buffer_gets_its_memory_once(self, device: Device) -> None:
        late = device.late_buffer(16)
        other = second_queue(device)
        device.queue.provide(late).wait(LONG)
        other.fill(late, b"x").wait(LONG)
        for buffer in (late, device.allocate(4)):
            with pytest.raises(UsageError, match="has its memory") as caught:
                device.queue.provide(buffer)
            assert caught.value.code is Status.FAILED_PRECONDITION
        assert bytes(late.read(timeout=LONG)) == b"x" * 16


class TestQueueMemoryFailures:
    """H14, H17: a mistake is refused with nothing lost; what depends on an allocation that failed fails with its cause."""

    def test_h17_use_after_deallocate(self, device: Device) -> None:
        queue = device.queue
        buffer, _ = queue.allocate(8)
        view = buffer.view(0, 4)
        gate = hold(queue)
        queue.deallocate(buffer)
        for call in uses_of(queue, buffer):
            with pytest.raises(ClosedError, match="deallocated; allocate a new one"):
                call()
        with pytest.raises(ClosedError, match="deallocated"):
            queue.fill(view, b"x")
        with pytest.raises(ClosedError, match="deallocated"), device.command_buffer() as commands:
            commands.fill(buffer, b"x")
        buffer.close()
        gate.semaphore.signal(1)
        queue.wait_idle(LONG)

    def test_h17_a_recording_of_what_was_deallocated(self, device: Device) -> None:
        buffer, _ = device.queue.allocate(8)
        with device.command_buffer() as commands:
            commands.fill(buffer, b"x")
        device.queue.execute(commands)
        device.queue.deallocate(buffer)
        with pytest.raises(ClosedError, match="record 0 names"):
            device.queue.execute(commands)
        device.queue.wait_idle(LONG)
        commands.close()

    def test_h17_a_view_or_a_mapped_or_a_closed_buffer_is_not_deallocated(self, device: Device, second: Device) -> None:
        with device.upload(b"abcd") as buffer, second.allocate(4) as foreign:
            with pytest.raises(UsageError, match="deallocate its buffer"):
                device.queue.deallocate(buffer.view(0, 2))  # type: ignore[arg-type]
            with buffer.map(timeout=LONG), pytest.raises(UsageError, match="close the mapping"):
                device.queue.deallocate(buffer)
            with pytest.raises(UsageError, match="another device"):
                device.queue.deallocate(foreign)
            assert bytes(buffer.read(timeout=LONG)) == b"abcd"
        with pytest.raises(ClosedError):
            device.queue.deallocate(buffer)

    def test_h17_sizes_that_can_never_be(self, device: Device) -> None:
        with pytest.raises(UsageError, match="cannot have -1 bytes"):
            device.queue.allocate(-1)
        with pytest.raises(OutOfMemoryError, match="one buffer can have"):
            device.queue.allocate(1 << 60)
        device.queue.wait_idle(LONG)

    def test_h17_no_memory_at_its_turn_fails_the_queue_and_the_buffer(self, factory: HalFactory, device: Device) -> None:
        if not factory.out_of_memory:
            pytest.skip("this device is not to be filled (HalFactory.out_of_memory)")
        other = second_queue(device)
        heap = device.info.heaps[0]
        gate, signal = hold(device.queue), device.semaphore()
        kept = [device.queue.allocate(heap.max_allocation) for _ in range(heap.size // heap.max_allocation + 1)]
        buffer, there = kept[-1]
        behind = device.queue.fill(buffer.view(0, 4), b"x", signal=signal.at(1))
        dependent = other.fill(buffer.view(0, 4), b"y", wait=there)
        gate.semaphore.signal(1)
        for point in (there, behind, dependent, signal.at(1)):
            with pytest.raises(OutOfMemoryError, match="asked for"):
                point.wait(LONG)
        with pytest.raises(OutOfMemoryError, match="asked for"):
            device.queue.barrier()
        with pytest.raises(OutOfMemoryError, match="asked for"):
            buffer.read(0, 4, timeout=LONG)
        for buffer, _ in kept:
            buffer.close()
        device.close()

    def test_h13_an_allocation_whose_wait_fails(self, device: Device) -> None:
        other = second_queue(device)
        gate = device.semaphore()
        buffer, there = device.queue.allocate(64, wait=gate.at(1))
        gate.fail(DeviceError("the pump is broken"))
        with pytest.raises(DeviceError, match="the pump is broken"):
            there.wait(LONG)
        with pytest.raises(DeviceError, match="the pump is broken"):
            other.fill(buffer, b"x")
        other.wait_idle(LONG)

    def test_h17_a_queue_that_failed_allocates_nothing(self, device: Device) -> None:
        kept = device.allocate(8)
        gate = device.semaphore()
        late = device.queue.barrier(wait=gate.at(1))
        gate.fail(DeviceError("the pump is broken"))
        with pytest.raises(DeviceError, match="the pump is broken"):
            late.wait(LONG)
        for _ in range(3):
            with pytest.raises(DeviceError, match="the pump is broken"):
                device.queue.allocate(64)
            with pytest.raises(DeviceError, match="the pump is broken"):
                device.queue.deallocate(kept)
        assert not kept.closed
        assert device.statistics().buffers == 1
        kept.close()

    def test_h17_used_by_another_queue_before_it_is_there(self, device: Device) -> None:
        """A program that forgets to wait hears of it; the queue that allocates goes on."""
        other = second_queue(device)
        gate = hold(device.queue)
        buffer, there = device.queue.allocate(64)
        early = other.fill(buffer, b"x")
        with pytest.raises(UsageError, match="not there yet: wait for the timepoint"):
            early.wait(LONG)
        gate.semaphore.signal(1)
        there.wait(LONG)
        device.queue.fill(buffer, b"y").wait(LONG)

    def test_h05_the_device_closes_with_memory_still_to_come(self, device: Device) -> None:
        gate = hold(device.queue)
        buffer, there = device.queue.allocate(64)
        device.queue.deallocate(device.allocate(64))
        device.close()
        with pytest.raises(Error):
            there.wait(LONG)
        buffer.close()
        assert gate.semaphore.value == 0


def uses_of(queue: Queue, buffer: Buffer) -> list[Callable[[], object]]:
    """Whatever can be done with a buffer."""
    return [
        lambda: queue.fill(buffer, b"x"),
        lambda: queue.update(buffer, b"abcd"),
        lambda: queue.read(buffer, bytearray(8)),
        lambda: queue.copy(buffer.view(0, 4), buffer.view(4, 4)),
        lambda: queue.deallocate(buffer),
        lambda: queue.provide(buffer),
        lambda: buffer.map(timeout=LONG),
        lambda: buffer.read(timeout=LONG),
    ]
