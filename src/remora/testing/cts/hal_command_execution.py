"""HAL conformance: executing command buffers (H18). Records run in order, again and again, under tables that fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from remora.errors import ClosedError, Error, UsageError
from remora.hal.command_buffer import MAX_UPDATE
from remora.hal.records import Slot
from remora.testing.cts.hal_factory import LONG, HalFactory, blob, hold, second_queue, words

if TYPE_CHECKING:
    from remora.hal.command_buffer import CommandBuffer
    from remora.hal.device import Device

__all__ = ["TestBindingTables", "TestExecutions"]


class TestExecutions:
    """H18: records run in order, again and again, as one operation of the queue."""

    def test_h18_an_empty_recording_is_done_at_once(self, device: Device) -> None:
        with device.command_buffer() as commands:
            pass
        executed = device.queue.execute(commands)
        executed.wait(LONG)
        assert executed.done

    @pytest.mark.parametrize("one_shot", [False, True])
    def test_h18_every_record_sees_those_before(self, device: Device, one_shot: bool) -> None:
        with device.upload(bytes(12)) as first, device.upload(bytes(12)) as second:
            with device.command_buffer(slots=1, one_shot=one_shot) as commands:
                commands.fill(first, b"abcd")
                commands.copy(first, Slot(0))
                commands.update(Slot(0, 4), b"XY")
                commands.copy(Slot(0, 4), first, 3)
                commands.fill(Slot(0, 8, 2), b"!")
                commands.fill(Slot(0, 11), b"?")
            device.queue.execute(commands, [second])
            assert bytes(first.read(timeout=LONG)) == b"XYcdabcdabcd"
            assert bytes(second.read(timeout=LONG)) == b"abcdXYcd!!c?"

    def test_h18_kernels_see_records_and_records_see_kernels(self, factory: HalFactory, device: Device) -> None:
        factory.need_kernels()
        kernels = device.load(factory.vector)
        add, fill = kernels["add_i32"], kernels["fill_index"]
        with device.allocate(16) as x, device.allocate(16) as total:
            with device.command_buffer(slots=2) as commands:
                commands.dispatch(fill, (1, 1, 1), [Slot(0)], (4, 10))
                commands.fill(Slot(1), b"\0")
                for _ in range(5):
                    commands.dispatch(add, (1, 1, 1), [Slot(0), Slot(1), Slot(1)], (4,))
                commands.copy(Slot(1, 4, 4), Slot(0, 8), 4)
            device.queue.execute(commands, [x, total])
            assert bytes(x.read(timeout=LONG)) == words(10, 11, 55, 13)
            assert bytes(total.read(timeout=LONG)) == words(50, 55, 60, 65)

    def test_h18_an_update_is_taken_when_it_is_recorded(self, device: Device) -> None:
        data = bytearray(b"abcd")
        with device.upload(bytes(4)) as buffer:
            with device.command_buffer() as commands:
                commands.update(buffer, data)
            data[:] = b"wxyz"
            device.queue.execute(commands)
            assert bytes(buffer.read(timeout=LONG)) == b"abcd"

    @pytest.mark.parametrize("size", [0, 1, 4095, MAX_UPDATE - 1, MAX_UPDATE])
    def test_h18_updates_of_all_sizes(self, device: Device, size: int) -> None:
        data = blob(size)
        with device.upload(bytes(size + 2)) as buffer:
            with device.command_buffer(slots=1) as commands:
                commands.update(Slot(0, 1), data)
            device.queue.execute(commands, [buffer])
            assert bytes(buffer.read(timeout=LONG)) == b"\0" + data + b"\0"

    @pytest.mark.parametrize("pattern", [b"\x07", b"ab", b"wxyz"])
    @pytest.mark.parametrize("count", [0, 1, 3, 50_001])
    def test_h18_fills_of_all_sizes(self, device: Device, pattern: bytes, count: int) -> None:
        size = count * len(pattern)
        with device.upload(bytes(size + 8)) as buffer, device.upload(bytes(size)) as whole:
            with device.command_buffer(slots=2) as commands:
                commands.fill(buffer.view(4, size), pattern)
                commands.fill(Slot(1), pattern)
            device.queue.execute(commands, [buffer, whole])
            assert bytes(buffer.read(timeout=LONG)) == bytes(4) + pattern * count + bytes(4)
            assert bytes(whole.read(timeout=LONG)) == pattern * count

    def test_h18_one_recording_many_tables(self, factory: HalFactory, device: Device) -> None:
        fill = device.load(factory.vector)["fill_index"]
        with device.command_buffer(slots=1) as commands:
            commands.fill(Slot(0), b"\xff")
            commands.dispatch(fill, (1, 1, 1), [Slot(0, 4, 8)], (2, 5))
        buffers = [device.upload(bytes(16)) for _ in range(50)]
        for buffer in buffers:
            device.queue.execute(commands, [buffer])
        middle = words(5, 6) if factory.executes else b"\xff" * 8
        for buffer in buffers:
            assert bytes(buffer.read(timeout=LONG)) == b"\xff" * 4 + middle + b"\xff" * 4

    def test_h18_one_recording_on_several_queues_at_once(self, device: Device) -> None:
        with device.command_buffer(slots=2) as commands:
            for index in range(100):
                commands.update(Slot(0, index), bytes([index]))
            commands.copy(Slot(0), Slot(1), 100)
        pairs = [[device.upload(bytes(100)), device.upload(bytes(100))] for _ in range(40)]
        done = [device.queues[index % len(device.queues)].execute(commands, pair) for index, pair in enumerate(pairs)]
        for point in done:
            point.wait(LONG)
        for first, second in pairs:
            assert bytes(first.read(timeout=LONG)) == bytes(second.read(timeout=LONG)) == bytes(range(100))

    def test_h18_a_table_takes_views(self, device: Device) -> None:
        with device.command_buffer(slots=2) as commands:
            commands.fill(Slot(1, 4), b"abcd")
            commands.copy(Slot(1, 2, 6), Slot(0, 1))
        with device.upload(bytes(32)) as buffer:
            device.queue.execute(commands, [buffer.view(0, 8), buffer.view(16, 12)])
            expected = bytes(1) + bytes(2) + b"abcd" + bytes(9) + bytes(4) + b"abcdabcd" + bytes(4)
            assert bytes(buffer.read(timeout=LONG)) == expected

    def test_h18_one_execution_is_one_operation(self, factory: HalFactory, device: Device) -> None:
        empty = device.load(factory.vector)["empty"]
        with device.command_buffer() as commands:
            for _ in range(30):
                commands.dispatch(empty, (1, 1, 1), [])
        before = device.queue.barrier()
        signal = device.semaphore()
        gate = hold(device.queue)
        done = device.queue.execute(commands, signal=signal.at(3))
        assert done.value - before.value == 2
        assert signal.value == 0
        gate.semaphore.signal(1)
        signal.wait(3, LONG)
        done.wait(LONG)
        assert device.statistics().dispatches == 30

    def test_h18_waits_come_first(self, device: Device) -> None:
        gate = device.semaphore()
        with device.upload(b"abcd") as buffer:
            with device.command_buffer() as commands:
                commands.fill(buffer, b"x")
            late = second_queue(device).execute(commands, wait=gate.at(1))
            assert bytes(buffer.read(timeout=LONG)) == b"abcd"
            gate.signal(1)
            late.wait(LONG)
            assert bytes(buffer.read(timeout=LONG)) == b"xxxx"

    def test_h18_ten_thousand_records(self, factory: HalFactory, device: Device) -> None:
        fill = device.load(factory.vector)["fill_index"]
        count = 2_500
        with device.upload(bytes(4 * count)) as buffer, device.upload(bytes(4 * count)) as other:
            with device.command_buffer(slots=1) as commands:
                for index in range(count):
                    commands.update(Slot(0, 4 * index), words(index))
                    commands.dispatch(fill, (1, 1, 1), [Slot(0, 4 * index, 4)], (1, index))
                    commands.copy(Slot(0, 4 * index), other.view(4 * (count - 1 - index)), 4)
                    commands.fill(Slot(0, 4 * index, 2), b"\xee")
            assert len(commands) == 10_000
            for _ in range(2):
                device.queue.execute(commands, [buffer])
            assert bytes(other.read(timeout=LONG)) == words(*reversed(range(count)))
            expected = b"".join(b"\xee\xee" + words(index)[2:] for index in range(count))
            assert bytes(buffer.read(timeout=LONG)) == expected

    def test_h18_labels_change_nothing(self, device: Device) -> None:
        with device.upload(bytes(4)) as buffer:
            with device.command_buffer(label="step 1") as commands:
                commands.push_label("outer é")
                commands.push_label("inner")
                commands.fill(buffer, b"x")
                commands.pop_label()
                commands.push_label("inner")
                commands.pop_label()
                commands.pop_label()
            device.queue.execute(commands)
            assert bytes(buffer.read(timeout=LONG)) == b"xxxx"


class TestBindingTables:
    """H18, H25: a table that does not fit is refused whole."""

    @pytest.fixture
    def commands(self, factory: HalFactory, device: Device) -> CommandBuffer:
        """Writes to slot 0 first; needs 16 bytes of slot 0, 12 of slot 1 and a whole number of words of slot 2."""
        fill = device.load(factory.vector)["fill_index"]
        with device.command_buffer(slots=3) as commands:
            commands.fill(Slot(0, 0, 8), b"x")
            commands.dispatch(fill, (1, 1, 1), [Slot(0, 8)], (2, 0))
            commands.copy(Slot(0, 0, 8), Slot(1, 4))
            commands.fill(Slot(2, 4), b"abcd")
        return commands

    def refused(self, device: Device, commands: CommandBuffer, table: list[Any], message: str, error: type[Error]) -> None:
        """An execution raises, submits nothing and touches nothing; the queue goes on."""
        before = device.queue.barrier()
        with pytest.raises(error, match=message):
            device.queue.execute(commands, table)
        after = device.queue.barrier()
        after.wait(LONG)
        assert after.value - before.value == 1
        for entry in table:
            if entry.buffer.device is device and not entry.buffer.closed:
                assert not any(entry.buffer.read(timeout=LONG))

    @pytest.mark.parametrize("count", [0, 2, 4])
    def test_h25_a_table_of_another_length(self, device: Device, commands: CommandBuffer, count: int) -> None:
        table = [device.upload(bytes(16)) for _ in range(count)]
        self.refused(device, commands, table, f"{count} entries, the command buffer 3 slots", UsageError)

    @pytest.mark.parametrize(("slot", "size"), [(0, 15), (1, 11), (2, 3), (0, 0)])
    def test_h25_an_entry_that_is_too_small(self, device: Device, commands: CommandBuffer, slot: int, size: int) -> None:
        table: list[Any] = [device.upload(bytes(16)) for _ in range(3)]
        for entry in (device.upload(bytes(size)), device.upload(bytes(16)).view(0, size)):
            table[slot] = entry
            self.refused(device, commands, table, rf"slot {slot} needs \d+ bytes, got {size}", UsageError)

    def test_h25_an_entry_at_a_wrong_place(self, device: Device, commands: CommandBuffer) -> None:
        table: list[Any] = [device.upload(bytes(24)).view(2), device.upload(bytes(16)), device.upload(bytes(16))]
        self.refused(device, commands, table, "slot 0 must start at a multiple of 4 bytes, not 2", UsageError)

    def test_h25_an_entry_that_a_pattern_does_not_fit(self, device: Device, commands: CommandBuffer) -> None:
        table: list[Any] = [device.upload(bytes(16)), device.upload(bytes(16)), device.upload(bytes(10))]
        self.refused(device, commands, table, "slot 2: a fill of 6 bytes", UsageError)

    def test_h25_entries_that_overlap_in_a_copy(self, device: Device, commands: CommandBuffer) -> None:
        buffer = device.upload(bytes(64))
        table: list[Any] = [buffer.view(0, 16), buffer.view(0, 16), device.upload(bytes(16))]
        self.refused(device, commands, table, "record 2, a copy: source and target overlap", UsageError)
        device.queue.execute(commands, [buffer.view(0, 16), buffer.view(16, 16), buffer.view(32, 8)]).wait(LONG)

    def test_h25_an_entry_that_was_closed(self, device: Device, commands: CommandBuffer) -> None:
        table: list[Any] = [device.upload(bytes(16)) for _ in range(3)]
        table[1].close()
        self.refused(device, commands, table, "closed", ClosedError)

    def test_h25_an_entry_of_another_device(self, device: Device, second: Device, commands: CommandBuffer) -> None:
        table: list[Any] = [device.upload(bytes(16)), second.upload(bytes(16)), device.upload(bytes(16))]
        self.refused(device, commands, table, "another device", UsageError)

    def test_h18_a_table_that_just_fits(self, device: Device, commands: CommandBuffer) -> None:
        table = [device.upload(bytes(16)), device.upload(bytes(12)), device.upload(bytes(4))]
        device.queue.execute(commands, table)
        assert bytes(table[1].read(timeout=LONG)) == bytes(4) + b"x" * 8
