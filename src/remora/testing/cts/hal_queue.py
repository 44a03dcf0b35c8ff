"""HAL conformance: fill, update, read, copy, and order on queues (H11, H17)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from remora.errors import DeadlineError, Status, UsageError
from remora.testing.cts.compare import same
from remora.testing.cts.hal_factory import LONG, SHORT, SIZES, blob, hold, second_queue

if TYPE_CHECKING:
    from remora.hal.device import Device

__all__ = ["TestCopy", "TestFill", "TestOrder", "TestUpdateAndRead"]


class TestFill:
    """H17: a pattern over a range."""

    @pytest.mark.parametrize("pattern", [b"\x07", b"ab", b"wxyz"])
    @pytest.mark.parametrize("count", [1, 3, 1000, (1 << 18) + 5])
    def test_h17_a_pattern_is_repeated(self, device: Device, pattern: bytes, count: int) -> None:
        size = count * len(pattern)
        with device.upload(bytes(size + 8)) as buffer:
            device.queue.fill(buffer.view(4, size), pattern).wait(LONG)
            assert bytes(buffer.read(timeout=LONG)) == bytes(4) + pattern * count + bytes(4)

    def test_h17_the_default_is_zeros(self, device: Device) -> None:
        with device.upload(blob(100)) as buffer:
            device.queue.fill(buffer)
            assert bytes(buffer.read(timeout=LONG)) == bytes(100)

    @pytest.mark.parametrize("pattern", [b"", b"abc", b"abcde", bytes(8)])
    def test_h17_patterns_of_other_lengths_are_refused(self, device: Device, pattern: bytes) -> None:
        with device.allocate(120) as buffer, pytest.raises(UsageError, match="1, 2 or 4 bytes"):
            device.queue.fill(buffer, pattern)

    def test_h17_a_pattern_must_fit_a_whole_number_of_times(self, device: Device) -> None:
        with device.allocate(16) as buffer:
            for view in (buffer.view(0, 6), buffer.view(2, 4)):
                with pytest.raises(UsageError, match="whole number"):
                    device.queue.fill(view, b"abcd")
            device.queue.fill(buffer.view(1, 3), b"x").wait(LONG)


class TestUpdateAndRead:
    """H17: host memory in and out through a queue, without blocking."""

    def test_h17_updates_are_there_in_order(self, device: Device) -> None:
        with device.upload(bytes(64)) as buffer:
            for index in range(200):
                device.queue.update(buffer, bytes([index]), index % 64)
            expected = bytes(max(index for index in range(200) if index % 64 == place) for place in range(64))
            assert bytes(buffer.read(timeout=LONG)) == expected

    def test_h17_many_transfers_of_mixed_sizes_in_flight(self, device: Device) -> None:
        blobs = [blob(size, seed) for seed, size in enumerate(SIZES * 2)]
        buffers = [device.allocate(len(data)) for data in blobs]
        intos = [bytearray(len(data)) for data in blobs]
        for buffer, data in zip(buffers, blobs, strict=True):
            device.queue.update(buffer, data)
        done = [device.queue.read(buffer, into) for buffer, into in zip(buffers, intos, strict=True)]
        for point in reversed(done):
            point.wait(LONG)
        assert intos == blobs

    def test_h17_transfers_on_several_queues_at_once(self, device: Device) -> None:
        """Reads and writes pass each other on all queues, above and below every border between inline and bulk."""
        count = len(device.queues)
        data = [[blob(size, 10 * size + number) for size in SIZES] for number in range(count)]
        intos = [[bytearray(size) for size in SIZES] for _ in range(count)]
        done = []
        for index in range(len(SIZES)):
            for number, queue in enumerate(device.queues):
                buffer = device.allocate(SIZES[index])
                queue.update(buffer, data[number][index])
                done.append(queue.read(buffer, intos[number][index]))
        for point in done:
            point.wait(LONG)
        assert intos == data

    def test_h17_more_transfers_than_any_window(self, device: Device) -> None:
        """Far more bulk transfers than a link has room for are in flight at once; submission only waits for room."""
        size, count = 70_000, 200
        data = [blob(size, seed) for seed in range(count)]
        with device.allocate(size * count) as buffer:
            for index, part in enumerate(data):
                device.queue.update(buffer, part, index * size)
            intos = [bytearray(size) for _ in range(count)]
            done = [device.queue.read(buffer, into, index * size) for index, into in enumerate(intos)]
            done[-1].wait(LONG)
        assert intos == data

    def test_h17_read_needs_writable_memory(self, device: Device) -> None:
        with device.allocate(4) as buffer, pytest.raises(UsageError, match="read-only"):
            device.queue.read(buffer, b"abcd")

    def test_h17_host_data_must_be_bytes_like(self, device: Device) -> None:
        with device.allocate(4) as buffer, pytest.raises(UsageError, match="buffer protocol"):
            device.queue.update(buffer, 7)


class TestCopy:
    """H17: device memory to device memory."""

    @pytest.mark.parametrize("size", [0, 1, 5, 64 * 1024 + 1, (1 << 20) + 1])
    def test_h17_between_buffers(self, device: Device, size: int) -> None:
        data = blob(size)
        with device.upload(data) as source, device.upload(bytes(size + 6)) as target:
            device.queue.copy(source, target.view(3)).wait(LONG)
            assert bytes(target.read(timeout=LONG)) == bytes(3) + data + bytes(3)
            assert bytes(source.read(timeout=LONG)) == data

    def test_h17_inside_one_buffer(self, device: Device) -> None:
        with device.upload(b"abcdefgh") as buffer:
            device.queue.copy(buffer.view(0, 3), buffer.view(3, 3))
            device.queue.copy(buffer.view(6, 2), buffer.view(0, 2))
            assert bytes(buffer.read(timeout=LONG)) == b"ghcabcgh"

    @pytest.mark.parametrize(("source", "target"), [(0, 0), (0, 3), (3, 0), (2, 3)])
    def test_h17_an_overlap_is_refused(self, device: Device, source: int, target: int) -> None:
        with device.upload(b"abcdefgh") as buffer:
            with pytest.raises(UsageError, match="overlap"):
                device.queue.copy(buffer.view(source, 4), buffer.view(target, 4))
            assert bytes(buffer.read(timeout=LONG)) == b"abcdefgh"

    def test_h17_the_target_must_be_as_large(self, device: Device) -> None:
        with device.allocate(8) as source, device.allocate(7) as target:
            with pytest.raises(UsageError, match="7 bytes, the source 8") as caught:
                device.queue.copy(source, target)
            assert caught.value.code is Status.OUT_OF_RANGE


class TestOrder:
    """H11: one queue runs in order, several run beside each other."""

    def test_h11_timepoints_of_a_queue_count_up(self, device: Device) -> None:
        points = [device.queue.barrier() for _ in range(5)]
        values = [point.value for point in points]
        assert values == sorted(set(values))
        assert all(point.semaphore is device.queue.timeline for point in points)
        points[-1].wait(LONG)
        assert all(point.done for point in points)
        assert device.queue.timeline.value == values[-1]

    def test_h11_operations_run_in_the_order_of_submission(self, device: Device) -> None:
        with device.upload(bytes(1 << 20)) as first, device.upload(bytes(1 << 20)) as second:
            for round_number in range(1, 9):
                device.queue.fill(first, bytes([round_number]))
                device.queue.copy(first, second)
                into = bytearray(1 << 20)
                device.queue.read(second, into).wait(LONG)
                assert same(into, bytes([round_number]) * (1 << 20))

    def test_h11_a_held_queue_does_nothing_and_others_go_on(self, device: Device) -> None:
        other = second_queue(device)
        with device.upload(b"abcd") as buffer, device.upload(b"abcd") as free:
            gate = hold(device.queue)
            late = device.queue.fill(buffer, b"x")
            other.fill(free, b"y").wait(LONG)
            with pytest.raises(DeadlineError):
                late.wait(SHORT)
            assert not late.done
            into = bytearray(4)
            other.read(buffer, into).wait(LONG)
            assert into == b"abcd"
            gate.semaphore.signal(1)
            late.wait(LONG)
            assert bytes(buffer.read(timeout=LONG)) == b"xxxx"

    def test_h11_what_is_no_timepoint_is_refused(self, device: Device) -> None:
        semaphore = device.semaphore()
        with device.allocate(4) as buffer:
            mistakes: list[Any] = [semaphore, [(semaphore, 1)], 1, ["x"], None]
            for wrong in mistakes:
                for where in ("wait", "signal"):
                    with pytest.raises(UsageError, match=r"timepoints, semaphore\.at\(1\) or what another operation returned"):
                        device.queue.fill(buffer, b"x", **{where: wrong})
            device.queue.fill(buffer, b"y", wait=[semaphore.at(0)], signal=semaphore.at(1)).wait(LONG)
            assert semaphore.value == 1

    def test_h11_wait_idle_waits_for_everything(self, device: Device) -> None:
        points = [queue.fill(device.allocate(1 << 16), b"z") for queue in device.queues for _ in range(20)]
        for queue in device.queues:
            queue.wait_idle(LONG)
        assert all(point.done for point in points)

    def test_h12_more_operations_than_any_window(self, device: Device) -> None:
        """Submission waits for room in a full window and loses nothing."""
        with device.upload(bytes(4)) as buffer:
            points = [device.queue.update(buffer, index.to_bytes(4, "little")) for index in range(20_000)]
            points[-1].wait(LONG)
            assert bytes(buffer.read(timeout=LONG)) == (19_999).to_bytes(4, "little")

    def test_h13_a_held_queue_takes_many_operations(self, device: Device) -> None:
        with device.upload(bytes(4)) as buffer:
            gate = hold(device.queue)
            points = [device.queue.update(buffer, index.to_bytes(4, "little")) for index in range(6_000)]
            gate.semaphore.signal(1)
            points[-1].wait(LONG)
            assert bytes(buffer.read(timeout=LONG)) == (5_999).to_bytes(4, "little")
