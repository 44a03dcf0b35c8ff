"""HAL conformance: buffers, views and mappings (H16, H20)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from remora.errors import ClosedError, Error, OutOfMemoryError, Status, UsageError
from remora.hal.buffer import Access, Buffer, Mapping
from remora.testing.cts.compare import same
from remora.testing.cts.hal_factory import LONG, SIZES, HalFactory, blob, hold

if TYPE_CHECKING:
    from remora.hal.device import Device

__all__ = ["TestAllocation", "TestContents", "TestMappings", "TestViews"]


class TestAllocation:
    """H15, H20: memory comes, goes, and runs out in order."""

    def test_h20_a_buffer_has_the_size_asked_for(self, device: Device) -> None:
        with device.allocate(1000) as buffer:
            assert buffer.size == 1000
            assert buffer.offset == 0
            assert buffer.buffer is buffer
            assert buffer.device is device
            assert not buffer.closed
        assert buffer.closed

    def test_h20_an_empty_buffer_is_a_buffer(self, device: Device) -> None:
        with device.allocate(0) as buffer:
            buffer.write(b"", timeout=LONG)
            assert bytes(buffer.read(timeout=LONG)) == b""
            device.queue.fill(buffer, b"abcd").wait(LONG)
            device.queue.copy(buffer, device.allocate(0)).wait(LONG)
            with buffer.map(timeout=LONG) as mapping:
                assert mapping.size == 0

    def test_h20_a_negative_size_is_a_usage_error(self, device: Device) -> None:
        with pytest.raises(UsageError, match="-1 bytes"):
            device.allocate(-1)

    def test_h20_more_than_one_buffer_can_have_is_refused_at_once(self, device: Device) -> None:
        most = max(heap.max_allocation for heap in device.info.heaps)
        with pytest.raises(OutOfMemoryError, match="asked for") as caught:
            device.allocate(most + 1)
        assert caught.value.code is Status.OUT_OF_DEVICE_MEMORY
        assert isinstance(caught.value, MemoryError)
        device.queue.barrier().wait(LONG)

    def test_h20_memory_runs_out_and_comes_back(self, factory: HalFactory, device: Device) -> None:
        """Whoever is told of it, `allocate` or the first use: it is an OutOfMemoryError, and other queues go on."""
        if not factory.out_of_memory:
            pytest.skip("asking for all memory would harm this machine (HalFactory.out_of_memory)")
        heap = max(device.info.heaps, key=lambda heap: heap.max_allocation)
        buffers: list[Buffer] = []

        def take_all() -> None:
            for _ in range(heap.size // heap.max_allocation + 2):
                buffers.append(device.allocate(heap.max_allocation))
                buffers[-1].write(b"x", timeout=LONG)

        with pytest.raises(OutOfMemoryError, match="asked for"):
            take_all()
        for buffer in buffers:
            buffer.close()
        last = device.queues[-1]
        with device.allocate(heap.max_allocation) as buffer:
            last.update(buffer, b"again").wait(LONG)
            into = bytearray(5)
            last.read(buffer, into).wait(LONG)
            assert into == b"again"

    def test_h15_ten_thousand_allocate_and_release_cycles(self, device: Device) -> None:
        for index in range(10_000):
            with device.allocate(64) as buffer:
                if index % 1000 == 0:
                    buffer.write(words_of(index), timeout=LONG)
                    assert bytes(buffer.read(0, 4, timeout=LONG)) == words_of(index)
        device.queue.barrier().wait(LONG)
        assert device.statistics().buffers == 0
        assert device.statistics().bytes_allocated == 0

    def test_h15_memory_is_reused_only_when_nothing_uses_it(self, device: Device) -> None:
        """A buffer is closed while an operation that writes it waits; the buffer made next is not touched by that."""
        first = device.allocate(4096)
        gate = hold(device.queue)
        late = device.queue.fill(first, b"\xff")
        first.close()
        fresh = [device.allocate(4096) for _ in range(4)]
        filled = [device.queues[-1].fill(buffer, b"\x01") for buffer in fresh] if len(device.queues) > 1 else []
        for done in filled:
            done.wait(LONG)
        gate.semaphore.signal(1)
        late.wait(LONG)
        if filled:
            assert all(bytes(buffer.read(timeout=LONG)) == b"\x01" * 4096 for buffer in fresh)

    def test_h20_a_dropped_buffer_gives_its_memory_back(self, device: Device) -> None:
        most = max(heap.max_allocation for heap in device.info.heaps)
        heap = max(heap.size for heap in device.info.heaps)
        for number in range(heap // most + 3):
            buffer = device.allocate(most)
            device.queue.fill(buffer.view(0, 1), bytes([number & 0xFF]))
            assert bytes(buffer.read(0, 1, timeout=LONG)) == bytes([number & 0xFF])
            del buffer


class TestContents:
    """H16, H20: bytes come back as they went in."""

    @pytest.mark.parametrize("size", SIZES)
    def test_h20_write_and_read_of_every_size(self, device: Device, size: int) -> None:
        data = blob(size)
        with device.allocate(size) as buffer:
            buffer.write(data, timeout=LONG)
            assert same(buffer.read(timeout=LONG), data)

    @pytest.mark.parametrize("size", SIZES)
    def test_h20_a_part_at_an_odd_offset_leaves_the_rest_alone(self, device: Device, size: int) -> None:
        around, data = blob(size + 20, 2), blob(size, 3)
        with device.upload(around) as buffer:
            buffer.write(data, 7, timeout=LONG)
            assert same(buffer.read(timeout=LONG), around[:7] + data + around[7 + size :])
            assert same(buffer.read(7, size, timeout=LONG), data)
            into = bytearray(size)
            buffer.read_into(into, 7, timeout=LONG)
            assert same(into, data)

    def test_h20_what_read_gives_is_a_writable_copy(self, device: Device) -> None:
        with device.upload(b"abcd") as buffer:
            copy = buffer.read(timeout=LONG)
            assert not copy.readonly
            copy[:] = b"efgh"
            assert bytes(buffer.read(timeout=LONG)) == b"abcd"

    def test_h20_what_is_written_is_a_copy(self, device: Device) -> None:
        data = bytearray(b"abcd")
        with device.upload(data) as buffer:
            data[:] = b"efgh"
            assert bytes(buffer.read(timeout=LONG)) == b"abcd"

    @pytest.mark.parametrize(("offset", "size"), [(-1, 2), (0, 9), (8, 1), (9, 0), (4, -1)])
    def test_h20_a_range_outside_is_a_usage_error(self, device: Device, offset: int, size: int) -> None:
        with device.upload(bytes(8)) as buffer:
            for call in (
                partial(buffer.read, offset, size, timeout=LONG),
                partial(buffer.view, offset, size),
                partial(buffer.map, Access.READ, offset, size, timeout=LONG),
            ):
                with pytest.raises(UsageError, match="not inside 8 bytes") as caught:
                    call()
                assert caught.value.code is Status.OUT_OF_RANGE
            if size >= 0:
                with pytest.raises(UsageError, match="not inside 8 bytes"):
                    buffer.write(bytes(size), offset)
            assert bytes(buffer.read(timeout=LONG)) == bytes(8)

    def test_h20_writing_nothing_at_the_end_is_fine(self, device: Device) -> None:
        with device.upload(b"abcd") as buffer:
            buffer.write(b"", 4, timeout=LONG)
            assert bytes(buffer.read(4, timeout=LONG)) == b""

    def test_h20_a_closed_buffer_says_so(self, device: Device) -> None:
        buffer = device.allocate(8)
        buffer.close()
        buffer.close()
        for call in (
            lambda: buffer.read(timeout=LONG),
            lambda: buffer.write(b"x", timeout=LONG),
            lambda: buffer.map(timeout=LONG),
            lambda: device.queue.fill(buffer),
            lambda: device.queue.copy(buffer, device.allocate(8)),
            lambda: device.queue.copy(device.allocate(8), buffer.view()),
        ):
            with pytest.raises(ClosedError, match="closed"):
                call()
        device.queue.barrier().wait(LONG)

    def test_h20_a_buffer_of_another_device_is_a_usage_error(self, factory: HalFactory, device: Device) -> None:
        with factory.open() as other, other.allocate(8) as foreign, device.allocate(8) as own:
            for call in (
                partial(device.queue.fill, foreign),
                partial(device.queue.update, foreign, b"x"),
                partial(device.queue.read, foreign, bytearray(1)),
                partial(device.queue.copy, foreign, own),
                partial(device.queue.copy, own, foreign),
            ):
                with pytest.raises(UsageError, match="another device"):
                    call()


class TestViews:
    """H20: a view is used like a buffer."""

    def test_h20_views_of_views_name_the_same_bytes(self, device: Device) -> None:
        with device.upload(bytes(range(32))) as buffer:
            view = buffer.view(8, 16).view(4, 8)
            assert (view.offset, view.size, view.buffer) == (12, 8, buffer)
            into = bytearray(8)
            device.queue.read(view, into).wait(LONG)
            assert into == bytes(range(12, 20))
            device.queue.update(view, b"!!", 3).wait(LONG)
            assert bytes(buffer.read(14, 4, timeout=LONG)) == b"\x0e!!\x11"

    def test_h20_a_view_is_bounded_by_its_view(self, device: Device) -> None:
        view = device.allocate(32).view(8, 16)
        assert (view.view(16).size, view.view().size, view.view(4).size) == (0, 16, 12)
        for offset, size in ((0, 17), (17, 0), (-1, 1), (4, 13)):
            with pytest.raises(UsageError, match="not inside 16 bytes"):
                view.view(offset, size)
        with pytest.raises(UsageError, match="not inside 16 bytes"):
            device.queue.update(view, bytes(17))
        with pytest.raises(UsageError, match="not inside 16 bytes"):
            device.queue.read(view, bytearray(2), 15)


class TestMappings:
    """H20: contents as host memory."""

    def test_h20_an_error_leaves_the_block_although_something_is_mapped(self, device: Device) -> None:
        mappings: list[Mapping] = []

        def fail(buffer: Buffer) -> None:
            mappings.append(buffer.map(timeout=LONG))
            raise KeyError("on its way")

        with device.allocate(100) as buffer, pytest.raises(KeyError, match="on its way"), buffer:
            fail(buffer)
        assert buffer.closed
        with pytest.raises(ClosedError, match="the mapping was closed"):
            len(mappings[0].view)
        mappings[0].close()
        device.queue.wait_idle(LONG)

    @pytest.mark.parametrize("size", [1, 5, 64 * 1024 + 1, (1 << 20) + 1])
    def test_h20_a_mapping_shows_the_contents_and_publishes_writes(self, device: Device, size: int) -> None:
        data = blob(size)
        with device.upload(data) as buffer:
            with buffer.map(timeout=LONG) as mapping:
                assert same(mapping.view, data)
                mapping.view[size // 2] ^= 0xFF
            changed = bytearray(data)
            changed[size // 2] ^= 0xFF
            assert buffer.read(timeout=LONG) == changed

    def test_h20_a_mapping_waits_for_the_first_queue(self, device: Device) -> None:
        with device.upload(bytes(1 << 20)) as buffer:
            device.queue.fill(buffer, b"\x05")
            with buffer.map(Access.READ, timeout=LONG) as mapping:
                assert mapping.view == b"\x05" * (1 << 20)

    def test_h20_a_part_is_mapped(self, device: Device) -> None:
        with device.upload(b"abcdefgh") as buffer:
            with buffer.map(Access.READ_WRITE, 2, 3, timeout=LONG) as mapping:
                assert (mapping.offset, mapping.size, bytes(mapping.view)) == (2, 3, b"cde")
                mapping.view[:] = b"CDE"
            assert bytes(buffer.read(timeout=LONG)) == b"abCDEfgh"

    def test_h20_discard_replaces_the_contents(self, device: Device) -> None:
        with device.upload(b"abcdefgh") as buffer:
            with buffer.map(Access.WRITE | Access.DISCARD, 2, 4, timeout=LONG) as mapping:
                mapping.view[:] = b"1234"
            assert bytes(buffer.read(timeout=LONG)) == b"ab1234gh"

    def test_h20_a_read_mapping_cannot_be_written(self, device: Device) -> None:
        with device.upload(b"abcd") as buffer, buffer.map(Access.READ, timeout=LONG) as mapping:
            assert mapping.view.readonly
            with pytest.raises(TypeError):
                mapping.view[0] = 1

    def test_h20_a_mapping_needs_an_access(self, device: Device) -> None:
        with device.allocate(4) as buffer, pytest.raises(UsageError, match=r"Access\.READ"):
            buffer.map(Access.DISCARD)

    def test_h20_writable_mappings_do_not_overlap(self, device: Device) -> None:
        with device.upload(b"abcdefgh") as buffer:
            with buffer.map(Access.WRITE, 2, 4, timeout=LONG):
                for access in (Access.READ, Access.WRITE, Access.READ_WRITE):
                    with pytest.raises(UsageError, match="overlap a live mapping") as caught:
                        buffer.map(access, 5, 2, timeout=LONG)
                    assert caught.value.code is Status.FAILED_PRECONDITION
                buffer.map(Access.WRITE, 0, 2, timeout=LONG).close()
                buffer.map(Access.READ, 6, 2, timeout=LONG).close()
            buffer.map(Access.WRITE, 2, 4, timeout=LONG).close()

    def test_h20_read_mappings_may_overlap(self, device: Device) -> None:
        with device.upload(b"abcd") as buffer, buffer.map(Access.READ, timeout=LONG) as first:
            with buffer.map(Access.READ, 1, 2, timeout=LONG) as second:
                assert bytes(second.view) == bytes(first.view[1:3])
            with pytest.raises(UsageError, match="overlap"):
                buffer.map(Access.WRITE, 3, 1, timeout=LONG)

    def test_h20_a_mapped_buffer_does_not_close(self, device: Device) -> None:
        buffer = device.upload(b"abcd")
        mapping = buffer.map(timeout=LONG)
        with pytest.raises(UsageError, match="mapped"):
            buffer.close()
        mapping.close()
        mapping.close()
        with pytest.raises(ClosedError, match="map the buffer again"):
            _ = mapping.view
        buffer.close()

    def test_h20_a_mapping_that_runs_out_of_time_is_none(self, device: Device) -> None:
        with device.allocate(8) as buffer:
            gate = hold(device.queue)
            with pytest.raises(Error, match="did not reach"):
                buffer.map(Access.READ, timeout=0.01)
            gate.semaphore.signal(1)
            buffer.map(Access.WRITE, timeout=LONG).close()


def words_of(index: int) -> bytes:
    return index.to_bytes(4, "little")
