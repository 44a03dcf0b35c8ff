"""HAL conformance: recording command buffers (H18, H25). A mistake is found when it is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from remora.errors import ClosedError, Status, UsageError
from remora.hal.command_buffer import MAX_LABEL, MAX_SLOTS, MAX_UPDATE
from remora.hal.records import Slot
from remora.testing.cts.hal_factory import LONG, HalFactory

if TYPE_CHECKING:
    from collections.abc import Callable

    from remora.hal.buffer import Buffer
    from remora.hal.command_buffer import CommandBuffer
    from remora.hal.device import Device
    from remora.hal.executable import Kernel

__all__ = ["TestRecording"]


class Place(NamedTuple):
    """Where a wrong record is tried: a recording with two slots, a buffer of 16 bytes, the kernel `fill_index`."""

    commands: CommandBuffer
    buffer: Buffer
    kernel: Kernel


WRONG_RECORDS: dict[str, tuple[str, Callable[[Place], object]]] = {
    "pattern": ("1, 2 or 4 bytes", lambda p: p.commands.fill(p.buffer, b"abc")),
    "fill of a part": ("whole number", lambda p: p.commands.fill(p.buffer.view(0, 6), b"abcd")),
    "fill of a part of a slot": ("whole number", lambda p: p.commands.fill(Slot(0, 0, 6), b"abcd")),
    "fill alignment": ("multiple of 4 bytes, not 2", lambda p: p.commands.fill(p.buffer.view(2, 4), b"abcd")),
    "fill alignment of a slot": ("multiple of 2 bytes, not 3", lambda p: p.commands.fill(Slot(0, 3), b"ab")),
    "update size": ("9 bytes do not fit into 8", lambda p: p.commands.update(p.buffer.view(8), bytes(9))),
    "update of a slot": ("needs 9 bytes, the slot gives 8", lambda p: p.commands.update(Slot(0, 0, 8), bytes(9))),
    "update limit": (f"up to {MAX_UPDATE} bytes", lambda p: p.commands.update(Slot(0), bytes(MAX_UPDATE + 1))),
    "update of nothing like bytes": ("buffer protocol", lambda p: p.commands.update(p.buffer, 7)),
    "copy from": ("17 bytes do not fit into 16", lambda p: p.commands.copy(p.buffer, Slot(0), 17)),
    "copy to": ("16 bytes do not fit into 8", lambda p: p.commands.copy(p.buffer, p.buffer.view(8))),
    "copy of itself": ("overlap", lambda p: p.commands.copy(p.buffer.view(0, 8), p.buffer.view(7, 8))),
    "copy of an open slot": ("needs `size`", lambda p: p.commands.copy(Slot(0), p.buffer)),
    "no slot": ("no slot 2", lambda p: p.commands.fill(Slot(2))),
    "negative slot": ("no slot -1", lambda p: p.commands.fill(Slot(-1))),
    "negative offset": ("not negative", lambda p: p.commands.fill(Slot(0, -4))),
    "negative size": ("not negative", lambda p: p.commands.fill(Slot(0, 0, -2))),
    "bindings": ("takes 1 bindings", lambda p: p.commands.dispatch(p.kernel, (1, 1, 1), [], (1, 2))),
    "constants": ("takes the constants", lambda p: p.commands.dispatch(p.kernel, (1, 1, 1), [p.buffer], (1,))),
    "grid": ("three whole numbers", lambda p: p.commands.dispatch(p.kernel, (1, 1), [p.buffer], (1, 2))),  # type: ignore[arg-type]
    "grid limit": ("outside 0 to", lambda p: p.commands.dispatch(p.kernel, (1, 1, 1 << 16), [p.buffer], (1, 2))),
    "binding size": ("needs 20 bytes", lambda p: p.commands.dispatch(p.kernel, (1, 1, 1), [p.buffer], (5, 0))),
    "binding slot": ("needs 20 bytes", lambda p: p.commands.dispatch(p.kernel, (1, 1, 1), [Slot(0, 0, 16)], (5, 0))),
    "binding alignment": ("multiple of 4", lambda p: p.commands.dispatch(p.kernel, (1, 1, 1), [p.buffer.view(2, 4)], (1, 0))),
    "binding slot alignment": ("multiple of 4", lambda p: p.commands.dispatch(p.kernel, (1, 1, 1), [Slot(0, 2)], (1, 0))),
    "label without text": ("1 to", lambda p: p.commands.push_label("")),
    "label that is no text": ("UTF-8", lambda p: p.commands.push_label("\ud800")),
    "copy of a slot to itself": ("overlap", lambda p: p.commands.copy(Slot(0, 4), Slot(0), 5)),
    "long label": ("1 to", lambda p: p.commands.push_label("x" * (MAX_LABEL + 1))),
    "label without beginning": ("no label is open", lambda p: p.commands.pop_label()),
}


class TestRecording:
    """H18, H25: a mistake is found when it is recorded, and leaves nothing behind."""

    def test_h18_records_are_numbered(self, factory: HalFactory, device: Device) -> None:
        empty = device.load(factory.vector)["empty"]
        with device.allocate(8) as buffer, device.command_buffer(slots=1, label="numbers") as commands:
            numbers = [
                commands.push_label("first"),
                commands.fill(buffer),
                commands.dispatch(empty, (1, 1, 1), []),
                commands.update(buffer, b"x"),
                commands.copy(buffer.view(0, 4), buffer.view(4)),
                commands.pop_label(),
                commands.fill(Slot(0)),
            ]
            assert numbers == list(range(7))
            assert len(commands) == 7
            assert "numbers" in repr(commands)
            assert "recording" in repr(commands)
        assert "sealed" in repr(commands)

    @pytest.mark.parametrize("wrong", WRONG_RECORDS)
    def test_h25_a_wrong_record_is_refused_and_leaves_nothing(self, factory: HalFactory, device: Device, wrong: str) -> None:
        message, record = WRONG_RECORDS[wrong]
        kernel = device.load(factory.vector)["fill_index"]
        with device.upload(bytes(16)) as buffer, device.allocate(4) as small:
            commands = device.command_buffer(slots=2)
            commands.fill(buffer, b"\x07")
            with pytest.raises(UsageError, match=message):
                record(Place(commands, buffer, kernel))
            assert len(commands) == 1
            commands.seal()
            device.queue.execute(commands, [small, small]).wait(LONG)
            assert bytes(buffer.read(timeout=LONG)) == b"\x07" * 16

    def test_h25_a_dispatch_refused_at_its_last_binding_asks_nothing_of_the_table(
        self, factory: HalFactory, device: Device
    ) -> None:
        add = device.load(factory.vector)["add_i32"]
        with device.allocate(4) as small:
            commands = device.command_buffer(slots=1)
            with pytest.raises(UsageError, match="needs 4000 bytes"):
                commands.dispatch(add, (1, 1, 1), [Slot(0), Slot(0), small], (1000,))
            device.queue.execute(commands.seal(), [small]).wait(LONG)

    def test_h18_a_sealed_one_takes_no_more(self, factory: HalFactory, device: Device) -> None:
        empty = device.load(factory.vector)["empty"]
        with device.allocate(8) as buffer:
            commands = device.command_buffer()
            commands.seal()
            assert commands.seal() is commands
            records: tuple[Callable[[], object], ...] = (
                lambda: commands.fill(buffer),
                lambda: commands.update(buffer, b"x"),
                lambda: commands.copy(buffer.view(0, 4), buffer.view(4)),
                lambda: commands.dispatch(empty, (1, 1, 1), []),
                lambda: commands.push_label("x"),
                commands.pop_label,
                lambda: commands.wait_event(device.event()),
            )
            for record in records:
                with pytest.raises(UsageError, match="sealed") as caught:
                    record()
                assert caught.value.code is Status.FAILED_PRECONDITION

    def test_h18_labels_must_end_before_the_seal(self, device: Device) -> None:
        commands = device.command_buffer()
        commands.push_label("a")
        commands.push_label("b" * MAX_LABEL)
        commands.pop_label()
        with pytest.raises(UsageError, match="1 labels are still open"):
            commands.seal()
        commands.pop_label()
        device.queue.execute(commands.seal()).wait(LONG)

    @pytest.mark.parametrize("slots", [-1, MAX_SLOTS + 1])
    def test_h25_the_number_of_slots_has_limits(self, device: Device, slots: int) -> None:
        with pytest.raises(UsageError, match="binding table"):
            device.command_buffer(slots)

    def test_h25_the_label_of_a_recording_has_limits(self, device: Device) -> None:
        device.command_buffer(label="x" * MAX_LABEL).close()
        with pytest.raises(UsageError, match="label"):
            device.command_buffer(label="x" * (MAX_LABEL + 1))

    def test_h25_things_of_another_device_are_refused(self, factory: HalFactory, device: Device, second: Device) -> None:
        alien = second.load(factory.vector)["empty"]
        fill = device.load(factory.vector)["fill_index"]
        with device.command_buffer() as commands, second.allocate(8) as foreign:
            records: tuple[Callable[[], object], ...] = (
                lambda: commands.fill(foreign),
                lambda: commands.dispatch(alien, (1, 1, 1), []),
                lambda: commands.dispatch(fill, (1, 1, 1), [foreign], (1, 0)),
                lambda: commands.signal_event(second.event()),
            )
            for record in records:
                with pytest.raises(UsageError, match="another device"):
                    record()
        with pytest.raises(UsageError, match="another device"):
            second.queue.execute(commands)

    def test_h25_closed_things_are_refused(self, factory: HalFactory, device: Device) -> None:
        kernels = device.load(factory.vector)
        buffer = device.allocate(8)
        buffer.close()
        kernels.close()
        commands = device.command_buffer()
        records: tuple[Callable[[], object], ...] = (
            lambda: commands.fill(buffer),
            lambda: commands.copy(buffer, buffer),
            lambda: commands.dispatch(kernels["fill_index"], (1, 1, 1), [buffer], (1, 0)),
            lambda: commands.dispatch(kernels["empty"], (1, 1, 1), []),
        )
        for record in records:
            with pytest.raises(ClosedError, match="closed"):
                record()
        assert len(commands) == 0

    def test_h18_an_error_while_recording_closes_it(self, device: Device) -> None:
        commands = device.command_buffer()
        with pytest.raises(KeyError), commands:
            raise KeyError
        with pytest.raises(ClosedError, match="record a new one"):
            device.queue.execute(commands)
