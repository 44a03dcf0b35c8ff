"""HAL conformance: address ranges, physical memory, and what is mapped where (H22)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from remora.errors import ClosedError, OutOfMemoryError, Status, UnsupportedError, UsageError
from remora.hal.buffer import Access
from remora.hal.records import Patch, Slot
from remora.hal.virtual_memory import MAX_PLACEMENTS, Placement
from remora.testing.cts.compare import same
from remora.testing.cts.hal_factory import LONG, HalFactory, blob, hold, words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from remora.hal.device import Device
    from remora.hal.virtual_memory import Reservation

__all__ = ["TestPageRefusals", "TestPages", "TestPagesInFlight", "TestPagesInUse", "page", "space"]

PAGES = 16


@pytest.fixture
def page(device: Device) -> int:
    """The page size in bytes; skips the test on a device without virtual memory."""
    if not device.info.page_size:
        pytest.skip("this device has no virtual memory (DeviceInfo.page_size)")
    return device.info.page_size


@pytest.fixture
def space(device: Device, page: int) -> Iterator[Reservation]:
    """16 pages of addresses."""
    with device.reserve(PAGES * page) as reservation:
        yield reservation


def refused(call: Callable[[], Any], match: str, code: Status = Status.INVALID_ARGUMENT) -> None:
    """The call is the caller's mistake."""
    with pytest.raises(UsageError, match=match) as caught:
        call()
    assert caught.value.code is code


def free(space: Reservation, offset: int, size: int) -> None:
    """These bytes cannot be used."""
    refused(partial(space.device.queue.fill, space.view(offset, size)), "not mapped", Status.FAILED_PRECONDITION)


class TestPages:
    """H22: reserve, allocate, map, unmap, protect."""

    def test_h22_a_device_without_it_says_unavailable(self, device: Device) -> None:
        if device.info.page_size:
            pytest.skip("this device has virtual memory")
        for make in (device.reserve, device.physical):
            with pytest.raises(UnsupportedError, match="no virtual memory") as caught:
                make(4096)
            assert caught.value.code is Status.UNAVAILABLE

    def test_h22_mapped_pages_hold_what_is_written(self, device: Device, page: int, space: Reservation) -> None:
        data = blob(2 * page)
        with device.physical(2 * page) as memory:
            space.map(4 * page, memory)
            space.buffer.write(data, 4 * page, timeout=LONG)
            assert same(space.buffer.read(4 * page, 2 * page, timeout=LONG), data)
            assert ([span[:2] for span in space.spans], memory.mapped) == ([(4 * page, 2 * page)], True)
            space.unmap(4 * page, 2 * page)
            assert (space.spans, memory.mapped) == ((), False)
            free(space, 4 * page, 4)

    def test_h22_memory_keeps_its_contents_while_nothing_maps_it(self, device: Device, page: int, space: Reservation) -> None:
        with device.physical(page) as memory:
            space.map(0, memory)
            space.buffer.write(b"kept", 5, timeout=LONG)
            space.unmap(0, page)
            space.map(7 * page, memory)
            assert bytes(space.buffer.read(7 * page + 5, 4, timeout=LONG)) == b"kept"

    def test_h22_the_same_memory_at_two_places(self, device: Device, page: int, space: Reservation) -> None:
        with device.reserve(page) as other, device.physical(2 * page) as memory:
            space.map(0, memory)
            space.map(8 * page, memory, page, page)
            other.map(0, memory, page, page)
            device.queue.fill(space.view(page, page), b"\x07").wait(LONG)
            assert bytes(space.buffer.read(8 * page, page, timeout=LONG)) == b"\x07" * page
            device.queue.copy(space.view(0, 8), other.view(16, 8)).wait(LONG)
            assert space.buffer.read(page + 16, 8, timeout=LONG) == space.buffer.read(0, 8, timeout=LONG)

    def test_h22_a_range_grows_in_place(self, device: Device, page: int, space: Reservation) -> None:
        chunks = []
        for number in range(PAGES):
            chunks.append(device.physical(page))
            space.map(number * page, chunks[-1])
            device.queue.fill(space.view(number * page, page), bytes([number])).wait(LONG)
        expected = b"".join(bytes([number]) * page for number in range(PAGES))
        assert same(space.buffer.read(timeout=LONG), expected)
        space.unmap(0, PAGES * page // 2)
        assert same(space.buffer.read(PAGES * page // 2, timeout=LONG), expected[PAGES * page // 2 :])
        for chunk in chunks[: PAGES // 2]:
            chunk.close()

    def test_h22_several_ranges_are_mapped_at_once(self, device: Device, page: int, space: Reservation) -> None:
        with device.physical(3 * page) as memory:
            space.map_all(Placement(2 * number * page, memory, (2 - number) * page, page) for number in range(3))
            for number in range(3):
                space.buffer.write(bytes([number]), 2 * number * page, timeout=LONG)
            space.map(8 * page, memory)
            assert [space.buffer.read((8 + number) * page, 1, timeout=LONG)[0] for number in range(3)] == [2, 1, 0]

    def test_h22_protection_is_by_page(self, device: Device, page: int, space: Reservation) -> None:
        with device.physical(4 * page) as memory:
            space.map(0, memory)
            space.buffer.write(bytes(4 * page), timeout=LONG)
            space.protect(page, page, Access.READ)
            space.protect(2 * page, page, Access(0))
            fill = device.queue.fill
            for offset, size in ((page, 4), (page - 4, 8), (0, 4 * page)):
                refused(partial(fill, space.view(offset, size)), "allow reading, not writing", Status.PERMISSION_DENIED)
            refused(partial(space.buffer.read, 2 * page, 1), "allow nothing, not reading", Status.PERMISSION_DENIED)
            assert bytes(space.buffer.read(page, 4, timeout=LONG)) == bytes(4)
            fill(space.view(3 * page, page), b"\1").wait(LONG)
            space.protect(0, 4 * page, Access.READ_WRITE)
            assert len(space.spans) == 1
            fill(space.view(0, 4 * page), b"\2").wait(LONG)

    def test_h22_memory_is_counted_and_comes_back(self, device: Device, page: int) -> None:
        before = device.statistics()
        space, memory = device.reserve(PAGES * page), device.physical(4 * page)
        assert device.statistics().bytes_allocated == before.bytes_allocated + 4 * page
        space.map(0, memory)
        space.clear()
        space.close()
        memory.close()
        space.close()
        memory.close()
        assert (space.closed, memory.closed) == (True, True)
        after = device.statistics()
        assert (after.buffers, after.bytes_allocated) == (before.buffers, before.bytes_allocated)

    def test_h22_leaving_with_gives_up_what_is_mapped(self, device: Device, page: int) -> None:
        before = device.statistics().bytes_allocated
        with device.reserve(4 * page) as space, device.physical(page) as memory:
            space.map(0, memory)
        assert space.closed
        assert memory.closed
        assert device.statistics().bytes_allocated == before
        with pytest.raises(ClosedError):
            device.queue.fill(space.view(0, 4))
        with pytest.raises(ClosedError):
            space.map(page, memory)

    def test_h22_memory_can_be_closed_after_a_reservation_was_given_up(self, device: Device, page: int) -> None:
        memory, busy = device.physical(page), device.physical(page)
        with device.reserve(2 * page) as space:
            space.map(0, memory)
        memory.close()
        with device.reserve(2 * page) as space:
            space.map(0, busy)
            gate = hold(device.queue)
            late = device.queue.fill(space.view(0, page), b"\1")
        busy.close()
        gate.semaphore.signal(1)
        late.wait(LONG)


class TestPageRefusals:
    """H22: a mistake is told before anything changes."""

    def test_h22_sizes_are_whole_pages(self, device: Device, page: int) -> None:
        for size in (0, -page, 1, page - 1, page + 1):
            for make in (device.reserve, device.physical):
                refused(partial(make, size), f"multiple of {page} bytes")
        for make in (device.reserve, device.physical):
            with pytest.raises(OutOfMemoryError):
                make(1 << 63)

    def test_h22_ranges_are_whole_pages_inside(self, device: Device, page: int, space: Reservation) -> None:
        with device.physical(2 * page) as memory:
            for offset, start, length in ((1, 0, page), (0, 1, page), (0, 0, page - 1), (0, 0, 0), (0, 0, -page)):
                refused(partial(space.map, offset, memory, start, length), "whole pages")
            for offset, start, length in ((PAGES * page, 0, page), (-page, 0, page), (0, page, 2 * page), (0, -page, page)):
                refused(partial(space.map, offset, memory, start, length), "not inside", Status.OUT_OF_RANGE)
            for change in (space.unmap, partial(space.protect, access=Access.READ)):
                refused(partial(change, 0, 1), "whole pages")
                refused(partial(change, 0, (PAGES + 1) * page), "not inside", Status.OUT_OF_RANGE)
        assert not space.spans

    def test_h22_pages_are_mapped_once(self, device: Device, page: int, space: Reservation) -> None:
        with device.physical(4 * page) as memory:
            space.map(2 * page, memory)
            for offset, length in ((2 * page, page), (0, 3 * page), (5 * page, 2 * page)):
                refused(partial(space.map, offset, memory, 0, length), "are mapped", Status.FAILED_PRECONDITION)
            twice = [Placement(8 * page, memory, 0, 2 * page), Placement(9 * page, memory, 0, page)]
            refused(partial(space.map_all, twice), "given twice")
            assert [span[:2] for span in space.spans] == [(2 * page, 4 * page)]

    def test_h22_a_bad_range_among_several_maps_none(self, device: Device, page: int, space: Reservation) -> None:
        with device.physical(4 * page) as memory:
            good = [Placement(number * page, memory, number * page, page) for number in range(3)]
            refused(partial(space.map_all, [*good, Placement(3 * page, memory, 4 * page, page)]), "not inside", Status.OUT_OF_RANGE)
            refused(partial(space.map_all, []), "1 to 4096 ranges")
            refused(partial(space.map_all, good[:1] * (MAX_PLACEMENTS + 1)), "not 4097")
            assert not space.spans
            assert not memory.mapped
            free(space, 0, 4)
            space.map_all(good)

    def test_h22_what_is_not_mapped_is_not_unmapped_or_protected(self, device: Device, page: int, space: Reservation) -> None:
        with device.physical(2 * page) as memory:
            space.map(page, memory)
            for offset, length in ((0, page), (0, 2 * page), (2 * page, 2 * page), (5 * page, page)):
                for change in (space.unmap, partial(space.protect, access=Access.READ)):
                    refused(partial(change, offset, length), "not mapped", Status.FAILED_PRECONDITION)
            device.queue.fill(space.view(page, 2 * page)).wait(LONG)
            for access in (Access.WRITE, Access.DISCARD, Access.READ | Access.DISCARD):
                refused(partial(space.protect, page, page, access), r"Access\.READ_WRITE, Access\.READ or")

    def test_h22_nothing_closes_while_it_is_mapped(self, device: Device, page: int, space: Reservation) -> None:
        memory = device.physical(page)
        space.map(3 * page, memory)
        for close in (space.close, memory.close, space.buffer.close):
            refused(close, "mapped", Status.FAILED_PRECONDITION)
        assert not space.closed
        assert not memory.closed
        space.buffer.write(b"x", 3 * page, timeout=LONG)
        space.unmap(3 * page, page)
        memory.close()
        with pytest.raises(ClosedError, match="closed"):
            space.map(0, memory)
        space.close()
        for call in (partial(space.unmap, 0, page), partial(space.protect, 0, page, Access.READ), space.buffer.read):
            with pytest.raises(ClosedError, match="closed"):
                call()

    def test_h22_memory_of_another_device_is_refused(self, device: Device, page: int, second: Device, space: Reservation) -> None:
        with second.physical(page) as foreign:
            refused(partial(space.map, 0, foreign), "another device")

    def test_h22_a_closed_device_says_so(self, factory: HalFactory) -> None:
        with factory.open() as device:
            if not device.info.page_size:
                pytest.skip("this device has no virtual memory (DeviceInfo.page_size)")
            page = device.info.page_size
            space, memory = device.reserve(page), device.physical(page)
            space.map(0, memory)
        calls = (
            partial(device.reserve, page),
            partial(device.physical, page),
            partial(space.unmap, 0, page),
            partial(space.map, 0, memory),
        )
        for call in calls:
            with pytest.raises(ClosedError, match="closed"):
                call()
        space.close()
        memory.close()


class TestPagesInUse:
    """H22: a reservation is used like a buffer."""

    def test_h22_operations_reach_only_what_is_mapped(self, device: Device, page: int, space: Reservation) -> None:
        queue = device.queue
        with device.physical(2 * page) as memory, device.allocate(page) as buffer:
            space.map(page, memory)
            for offset, size in ((0, 4), (page - 4, 8), (3 * page - 4, 8), (5 * page, 4)):
                free(space, offset, size)
                view = space.view(offset, size)
                for call in (
                    partial(queue.update, view, bytes(size)),
                    partial(queue.read, view, bytearray(size)),
                    partial(queue.copy, view, buffer),
                    partial(queue.copy, buffer.view(0, size), view),
                    partial(space.buffer.map, Access.READ, offset, size),
                    partial(space.buffer.read, offset, size),
                    partial(space.buffer.write, bytes(size), offset),
                ):
                    refused(call, "not mapped", Status.FAILED_PRECONDITION)
            queue.fill(space.view(0, 0)).wait(LONG)
            queue.update(space, b"in", 3 * page - 2).wait(LONG)
            assert bytes(space.buffer.read(3 * page - 2, 2, timeout=LONG)) == b"in"

    @pytest.mark.parametrize("kib", [4, 160, 1600, 24 << 10])
    def test_h22_transfers_of_every_size(self, device: Device, page: int, kib: int) -> None:
        pages = -(-(kib << 10) // page)
        data = blob(pages * page - 3)
        with device.reserve(2 * pages * page) as space, device.physical(pages * page) as memory:
            space.map(pages * page, memory)
            space.buffer.write(data, pages * page + 3, timeout=LONG)
            assert same(space.buffer.read(pages * page + 3, timeout=LONG), data)
            for size in (len(data) + 1, pages * page):
                refused(partial(space.buffer.read, pages * page - 1, size), "not mapped", Status.FAILED_PRECONDITION)
                refused(partial(space.buffer.write, bytes(size), pages * page - 1), "not mapped", Status.FAILED_PRECONDITION)
            with space.buffer.map(Access.READ_WRITE, pages * page + 3, len(data), timeout=LONG) as mapping:
                assert same(mapping.view, data)
                mapping.view[-1] ^= 0xFF
            assert space.buffer.read(timeout=LONG, offset=2 * pages * page - 1)[0] == data[-1] ^ 0xFF

    def test_h22_h23_files_are_read_into_mapped_pages(self, device: Device, page: int, space: Reservation, tmp_path: Path) -> None:
        path, data = tmp_path / "data", blob(2 * page)
        path.write_bytes(data)
        with device.physical(2 * page) as memory, device.open_file(path, "r+") as file:
            space.map(page, memory)
            read, write = device.queue.read_file, device.queue.write_file
            refused(partial(read, file, 0, space.view(0, 2 * page)), "not mapped", Status.FAILED_PRECONDITION)
            refused(partial(write, space.view(2 * page, 2 * page), file), "not mapped", Status.FAILED_PRECONDITION)
            gate = hold(device.queue)
            read(file, 0, space.view(page, 2 * page))
            done = write(space.view(page, 5), file, 2 * page)
            refused(partial(space.unmap, 2 * page, page), "in flight", Status.FAILED_PRECONDITION)
            gate.semaphore.signal(1)
            done.wait(LONG)
            assert same(space.buffer.read(page, 2 * page, timeout=LONG), data)
            space.protect(page, 2 * page, Access.READ)
            refused(partial(read, file, 0, space.view(page, 4)), "not writing", Status.PERMISSION_DENIED)
            write(space.view(page, 5), file).wait(LONG)
        assert same(path.read_bytes(), data + data[:5])

    def test_h22_kernels_read_and_write_mapped_pages(
        self, factory: HalFactory, device: Device, page: int, space: Reservation
    ) -> None:
        factory.need_kernels()
        kernels = device.load(factory.vector)
        add, count = kernels["add_i32"], page // 2
        with device.physical(6 * page) as memory:
            space.map(0, memory, 0, 2 * page)
            space.map(4 * page, memory, 2 * page, 2 * page)
            space.map(8 * page, memory, 4 * page, 2 * page)
            views = [space.view(offset * page, 2 * page) for offset in (0, 4, 8)]
            device.queue.update(views[0], words(*range(count)))
            device.queue.update(views[1], words(*range(1, count + 1)))
            device.queue.dispatch(add, add.grid_for(count), views, (count,)).wait(LONG)
            assert same(space.buffer.read(8 * page, 2 * page, timeout=LONG), words(*range(1, 2 * count + 1, 2)))

    def test_h22_a_binding_is_wholly_mapped_and_may_be_used_so(
        self, factory: HalFactory, device: Device, page: int, space: Reservation
    ) -> None:
        add = device.load(factory.vector)["add_i32"]
        with device.physical(2 * page) as memory, device.allocate(2 * page) as plain:
            space.map(page, memory)
            whole, over = space.view(page, 2 * page), space.view(2 * page, 2 * page)
            run = partial(device.queue.dispatch, add, add.grid_for(1))
            for bindings in ([over, plain, plain], [plain, over, plain], [plain, whole, over]):
                refused(partial(run, bindings, (1,)), "not mapped", Status.FAILED_PRECONDITION)
            space.protect(2 * page, page, Access.READ)
            run([whole, whole, plain], (1,)).wait(LONG)
            refused(partial(run, [plain, plain, whole], (1,)), "not writing", Status.PERMISSION_DENIED)
            run([plain, plain, space.view(page, page)], (1,)).wait(LONG)

    def test_h22_recordings_are_checked_at_each_execution(self, device: Device, page: int, space: Reservation) -> None:
        with device.command_buffer(1) as commands:
            commands.fill(space.view(page, 8), b"\5")
            commands.copy(space.view(page, 4), Slot(0), 4)
        execute = partial(device.queue.execute, commands, [space.view(2 * page, 4)])
        refused(execute, f"bytes {page} to {page + 8} .* not mapped", Status.FAILED_PRECONDITION)
        with device.physical(page) as memory, device.physical(page) as other:
            space.map(page, memory)
            refused(execute, "not mapped", Status.FAILED_PRECONDITION)
            space.map(2 * page, other)
            execute().wait(LONG)
            assert bytes(space.buffer.read(2 * page, 4, timeout=LONG)) == b"\5" * 4
            space.protect(2 * page, page, Access.READ)
            refused(execute, "not writing", Status.PERMISSION_DENIED)
            space.unmap(2 * page, page)
            space.map(2 * page, memory)
            execute().wait(LONG)
            space.clear()
            refused(execute, "not mapped", Status.FAILED_PRECONDITION)

    def test_h22_a_patched_binding_is_checked(self, factory: HalFactory, device: Device, page: int, space: Reservation) -> None:
        add = device.load(factory.vector)["add_i32"]
        with device.physical(page) as memory, device.allocate(page) as plain:
            with device.command_buffer() as commands:
                number = commands.dispatch(add, add.grid_for(1), [plain, plain, plain], (1,))
            patches = {number: Patch(bindings={2: space.view(0, page)})}
            refused(partial(device.queue.execute, commands, (), patches), "not mapped", Status.FAILED_PRECONDITION)
            space.map(0, memory)
            device.queue.execute(commands, (), patches).wait(LONG)

    def test_h22_a_recorded_grid_is_checked_at_each_execution(
        self, factory: HalFactory, device: Device, page: int, space: Reservation
    ) -> None:
        empty = device.load(factory.vector)["empty"]
        with device.command_buffer(1) as commands:
            commands.dispatch_indirect(empty, space.view(page, 16), [])
            commands.dispatch_indirect(empty, Slot(0), [])
        execute = partial(device.queue.execute, commands, [space.view(2 * page, 64)])
        refused(execute, f"bytes {page} to {page + 12} .* not mapped", Status.FAILED_PRECONDITION)
        with device.physical(page) as memory, device.physical(page) as other:
            space.map(page, memory)
            refused(execute, f"bytes {2 * page} to {2 * page + 12} .* not mapped", Status.FAILED_PRECONDITION)
            space.map(2 * page, other)
            device.queue.fill(space.view(page, 2 * page)).wait(LONG)
            space.protect(2 * page, page, Access.READ)
            execute().wait(LONG)
            space.protect(page, page, Access(0))
            refused(execute, "not reading", Status.PERMISSION_DENIED)
            space.clear()


class TestPagesInFlight:
    """H22: pages stay while an operation in flight uses them."""

    def test_h22_pages_in_use_are_not_changed(self, device: Device, page: int, space: Reservation) -> None:
        with device.physical(4 * page) as memory:
            space.map(0, memory)
            gate = hold(device.queue)
            late = device.queue.fill(space.view(page, page), b"\7")
            changes = (
                partial(space.unmap, page, page),
                partial(space.unmap, 0, 4 * page),
                partial(space.protect, page, page, Access.READ),
            )
            for change in (*changes, space.clear):
                refused(change, "in flight", Status.FAILED_PRECONDITION)
            refused(space.close, "mapped", Status.FAILED_PRECONDITION)
            space.unmap(3 * page, page)
            space.protect(2 * page, page, Access.READ)
            gate.semaphore.signal(1)
            late.wait(LONG)
            assert bytes(space.buffer.read(page, page, timeout=LONG)) == b"\7" * page
            changes[2]()
            changes[0]()

    def test_h22_every_kind_of_operation_holds_its_pages(self, factory: HalFactory, device: Device, page: int) -> None:
        add, size = device.load(factory.vector)["add_i32"], 64 * page
        with device.allocate(size) as plain, device.reserve(size) as space, device.physical(size) as memory:
            space.map(0, memory)
            with device.command_buffer() as commands:
                commands.fill(space, b"\1")
            into, small = bytearray(size), bytearray(4)
            for submit in (
                partial(device.queue.update, space, bytes(size)),
                partial(device.queue.update, space, b"four"),
                partial(device.queue.read, space, into),
                partial(device.queue.read, space, small),
                partial(device.queue.copy, space, plain),
                partial(device.queue.copy, plain, space),
                partial(device.queue.dispatch, add, add.grid_for(1), [plain, space, plain], (1,)),
                partial(device.queue.execute, commands),
            ):
                gate = hold(device.queue)
                done = submit()
                refused(partial(space.unmap, 0, page), "in flight", Status.FAILED_PRECONDITION)
                gate.semaphore.signal(1)
                done.wait(LONG)
                space.unmap(0, page)
                space.map(0, memory, 0, page)

    def test_h22_pages_of_a_host_mapping_are_not_changed(self, device: Device, page: int, space: Reservation) -> None:
        with device.physical(4 * page) as memory:
            space.map(0, memory)
            with space.buffer.map(Access.READ_WRITE, page + 1, 2, timeout=LONG) as mapping:
                refused(partial(space.unmap, page, page), "mapped by the host", Status.FAILED_PRECONDITION)
                refused(partial(space.protect, 0, 2 * page, Access.READ), "mapped by the host", Status.FAILED_PRECONDITION)
                space.unmap(0, page)
                mapping.view[:] = b"ok"
            assert bytes(space.buffer.read(page + 1, 2, timeout=LONG)) == b"ok"
            space.unmap(page, page)

    def test_h22_a_failed_operation_holds_nothing(self, device: Device, page: int, space: Reservation) -> None:
        with device.physical(page) as memory:
            space.map(0, memory)
            semaphore = device.semaphore()
            queue = device.queues[-1]
            late = queue.fill(space.view(0, page), wait=semaphore.at(1))
            refused(partial(space.unmap, 0, page), "in flight", Status.FAILED_PRECONDITION)
            semaphore.fail(UsageError("given up"))
            with pytest.raises(UsageError, match="given up"):
                late.wait(LONG)
            space.unmap(0, page)

    def test_h22_what_is_given_up_in_flight_stays_until_it_is_done(self, device: Device, page: int) -> None:
        with device.reserve(2 * page) as other, device.physical(page) as memory:
            other.map(page, memory)
            other.buffer.write(bytes(page), page, timeout=LONG)
            with device.reserve(2 * page) as space:
                space.map(0, memory)
                gate = hold(device.queue)
                late = device.queue.fill(space.view(0, page), b"\6")
            del space
            gate.semaphore.signal(1)
            late.wait(LONG)
            assert bytes(other.buffer.read(page, page, timeout=LONG)) == b"\6" * page
