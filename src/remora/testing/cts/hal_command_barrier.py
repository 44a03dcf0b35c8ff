"""HAL conformance: barriers inside recordings (H18)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from remora.errors import UsageError
from remora.hal.records import Patch, Slot
from remora.testing.cts.hal_factory import LONG

if TYPE_CHECKING:
    from remora.hal.device import Device

__all__ = ["TestRecordedBarriers"]


class TestRecordedBarriers:
    """H18: a barrier has a number like any record, and what is behind it sees what is before."""

    @pytest.mark.parametrize("one_shot", [False, True])
    def test_h18_what_is_behind_sees_what_is_before(self, device: Device, one_shot: bool) -> None:
        with device.upload(bytes(64)) as first, device.upload(bytes(64)) as second:
            with device.command_buffer(1, one_shot=one_shot) as commands:
                assert commands.barrier() == 0
                commands.fill(Slot(0), b"ab")
                assert commands.barrier() == 2
                commands.copy(first, second)
                commands.barrier()
                commands.fill(first, b"z")
            device.queue.execute(commands, [first]).wait(LONG)
            assert bytes(second.read(timeout=LONG)) == b"ab" * 32
            assert bytes(first.read(timeout=LONG)) == b"z" * 64
            commands.close()

    def test_h18_nothing_but_barriers(self, device: Device) -> None:
        with device.command_buffer() as commands:
            for _ in range(3):
                commands.barrier()
        assert len(commands) == 3
        device.queue.execute(commands).wait(LONG)
        commands.close()

    def test_h18_a_barrier_is_not_patched(self, device: Device) -> None:
        with device.command_buffer() as commands:
            number = commands.barrier()
        with pytest.raises(UsageError, match="record 0 is no dispatch"):
            device.queue.execute(commands, patches={number: Patch(grid=(1, 1, 1))})
        commands.close()

    def test_h18_a_sealed_recording_takes_no_barrier(self, device: Device) -> None:
        with device.command_buffer() as commands:
            commands.barrier()
        with pytest.raises(UsageError, match="sealed"):
            commands.barrier()
        commands.close()
