"""HAL conformance: recorded dispatches whose grid is in a buffer (H17, H18)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from remora.errors import ClosedError, Error, Status, UsageError
from remora.hal.records import Patch, Slot
from remora.testing.cts.hal_factory import LONG, HalFactory, hold, second_queue, words

if TYPE_CHECKING:
    from remora.hal.device import Device
    from remora.hal.executable import Kernel

__all__ = ["TestRecordedIndirectDispatch"]

#: More than one workgroup of `fill_index` does.
MANY = 1 << 16


class TestRecordedIndirectDispatch:
    """H17, H18: the grid is what the buffer holds at the record's turn, and is checked then."""

    @pytest.fixture
    def kernel(self, factory: HalFactory, device: Device) -> Kernel:
        """`fill_index`: one int32 for each element, from a base."""
        return device.load(factory.vector)["fill_index"]

    @pytest.mark.parametrize("one_shot", [False, True])
    def test_h18_the_grid_is_read_at_its_turn(self, factory: HalFactory, device: Device, kernel: Kernel, one_shot: bool) -> None:
        """Records before it write its grid, records behind it write the next one's."""
        factory.need_kernels()
        with device.upload(words(9, 0, 0, 0)) as grid, device.upload(bytes(4 * MANY)) as out:
            with device.command_buffer(slots=2, one_shot=one_shot) as commands:
                commands.update(Slot(0, 4), words(1, 1, 1))
                commands.dispatch_indirect(kernel, Slot(0, 4), [Slot(1)], (MANY, 5))
                commands.copy(Slot(1, 0, 4), Slot(1, 4), 4)
                commands.update(grid.view(4), words(*kernel.grid_for(MANY)))
                commands.dispatch_indirect(kernel, grid.view(4), [Slot(1, 8)], (MANY - 2, 7))
                commands.update(Slot(0, 4, 12), words(0, 1, 1))
                commands.dispatch_indirect(kernel, Slot(0, 4, 12), [out], (MANY, 9))
            device.queue.execute(commands, [grid, out])
            got = out.read(timeout=LONG).cast("i")
            assert (got[0], got[1], got[2], got[-1]) == (5, 5, 7, 7 + MANY - 3)
            assert bytes(grid.read(timeout=LONG)) == words(9, 0, 1, 1)

    def test_h18_each_execution_reads_its_own_grid(self, factory: HalFactory, device: Device, kernel: Kernel) -> None:
        factory.need_kernels()
        with device.upload(words(0, 0, 0)) as empty, device.upload(words(1, 1, 1)) as full, device.upload(words(-1)) as out:
            with device.command_buffer(slots=1) as commands:
                commands.dispatch_indirect(kernel, Slot(0), [out], (1, 3))
            device.queue.execute(commands, [empty])
            assert bytes(out.read(timeout=LONG)) == words(-1)
            device.queue.execute(commands, [full])
            assert bytes(out.read(timeout=LONG)) == words(3)
            device.queue.fill(out)
            device.queue.update(full, words(1, 0, 1))
            device.queue.execute(commands, [full])
            assert bytes(out.read(timeout=LONG)) == words(0)

    def test_h18_it_is_counted_among_other_dispatches(self, device: Device, kernel: Kernel) -> None:
        event = device.event()
        with device.upload(words(1, 1, 1)) as grid, device.allocate(64) as out:
            with device.command_buffer() as commands:
                for turn in range(5):
                    commands.push_label("step")
                    commands.dispatch(kernel, (1, 1, 1), [out], (16, turn))
                    commands.dispatch_indirect(kernel, grid, [out], (16, turn))
                    commands.pop_label()
                commands.signal_event(event)
                commands.dispatch_indirect(kernel, grid, [out], (16, 0))
            before = device.statistics().dispatches
            device.queue.execute(commands).wait(LONG)
            assert device.statistics().dispatches == before + 11
            assert event.query()

    def test_h18_constants_and_bindings_are_patched(self, factory: HalFactory, device: Device, kernel: Kernel) -> None:
        factory.need_kernels()
        with device.upload(words(1, 1, 1)) as grid, device.upload(bytes(8)) as out, device.upload(bytes(8)) as other:
            with device.command_buffer(slots=1) as commands:
                commands.dispatch(kernel, (1, 1, 1), [out], (2, 1))
                number = commands.dispatch_indirect(kernel, grid, [Slot(0)], (1, 5))
            device.queue.execute(commands, [out], {number: Patch(constants=(2, 8))})
            assert bytes(out.read(timeout=LONG)) == words(8, 9)
            device.queue.execute(commands, [out], {number: Patch(bindings={0: other.view(4)})})
            assert bytes(out.read(timeout=LONG)) == words(1, 2)
            assert bytes(other.read(timeout=LONG)) == words(0, 5)
            patches = {number: Patch(constants=(1, 7), bindings={0: Slot(0, 4)}), number - 1: Patch(constants=(2, 3))}
            device.queue.execute(commands, [other], patches)
            assert bytes(out.read(timeout=LONG)) == words(3, 4)
            assert bytes(other.read(timeout=LONG)) == words(0, 7)
            device.queue.execute(commands, [out])
            assert bytes(out.read(timeout=LONG)) == words(5, 2)

    @pytest.mark.parametrize(
        ("patch", "message"),
        [
            (Patch(grid=(1, 1, 1)), "record 1: the grid of fill_index is what its buffer holds"),
            (Patch(constants=(3, 0)), "needs 12 bytes, got 8"),
            (Patch(constants=(1,)), "takes the constants"),
            (Patch(bindings={1: Slot(0)}), "has no binding 1"),
            (Patch(bindings={0: Slot(1)}), "no slot 1"),
            (Patch(constants=(1, 0), bindings={0: Slot(0, 2)}), "multiple of 4"),
        ],
    )
    def test_h25_a_patch_that_does_not_fit(self, device: Device, kernel: Kernel, patch: Patch, message: str) -> None:
        with device.upload(words(1, 1, 1)) as grid, device.upload(bytes(8)) as out:
            with device.command_buffer(slots=1) as commands:
                commands.fill(out, b"x")
                number = commands.dispatch_indirect(kernel, grid, [Slot(0)], (2, 0))
            with pytest.raises(UsageError, match=message):
                device.queue.execute(commands, [out], {number: patch})
            assert bytes(out.read(timeout=LONG)) == bytes(8)

    def test_h25_what_is_known_before_is_refused_when_it_is_recorded(self, device: Device, second: Device, kernel: Kernel) -> None:
        with device.upload(words(1, 1, 1, 1)) as grid, device.upload(bytes(4)) as out, second.allocate(12) as foreign:
            closed = device.allocate(12)
            closed.close()
            commands = device.command_buffer(slots=1)
            commands.fill(out, b"\7")
            wrong: tuple[tuple[str, Any, list[Any], tuple[int, ...]], ...] = (
                ("a grid has 12 bytes, three u32; this has 8", grid.view(8), [out], (1, 0)),
                ("multiple of 4 bytes, not 2", grid.view(2), [out], (1, 0)),
                ("another device", foreign, [out], (1, 0)),
                ("closed", closed, [out], (1, 0)),
                ("the grid: there is no slot 1", Slot(1), [out], (1, 0)),
                ("the grid: needs 12 bytes, the slot gives 8", Slot(0, 0, 8), [out], (1, 0)),
                ("the grid: must start at a multiple of 4 bytes", Slot(0, 1), [out], (1, 0)),
                ("takes 1 bindings", grid, [], (1, 0)),
                ("needs 8 bytes", grid, [out], (2, 0)),
                ("needs 8 bytes", grid, [Slot(0, 0, 4)], (2, 0)),
                ("takes the constants", grid, [out], (2,)),
            )
            for message, place, bindings, constants in wrong:
                with pytest.raises(Error, match=message):
                    commands.dispatch_indirect(kernel, place, bindings, constants)
            assert len(commands) == 1
            device.queue.execute(commands.seal(), [device.allocate(0)]).wait(LONG)
            assert bytes(out.read(timeout=LONG)) == b"\7" * 4
            with pytest.raises(UsageError, match="sealed"):
                commands.dispatch_indirect(kernel, grid, [out], (1, 0))

    def test_h25_a_table_must_hold_the_grid(self, device: Device, kernel: Kernel) -> None:
        """Nothing of the recording runs."""
        with device.upload(words(1, 1, 1, 1, 1)) as grid, device.upload(bytes(4)) as out:
            with device.command_buffer(slots=1) as commands:
                commands.fill(out, b"x")
                commands.dispatch_indirect(kernel, Slot(0, 4), [out], (1, 0))
            for entry, message in ((grid.view(8), "slot 0 needs 16 bytes, got 12"), (grid.view(2), "multiple of 4 bytes, not 2")):
                with pytest.raises(UsageError, match=message):
                    device.queue.execute(commands, [entry])
            assert bytes(out.read(timeout=LONG)) == bytes(4)
            grid.close()
            with pytest.raises(ClosedError):
                device.queue.execute(commands, [grid])

    def test_h18_a_recorded_grid_that_was_closed_is_named(self, device: Device, kernel: Kernel) -> None:
        with device.upload(bytes(4)) as out:
            grid = device.upload(words(1, 1, 1))
            with device.command_buffer() as commands:
                commands.fill(out, b"x")
                commands.dispatch_indirect(kernel, grid, [out], (1, 0))
            grid.close()
            with pytest.raises(ClosedError, match="record 1 names"):
                device.queue.execute(commands)
            assert bytes(out.read(timeout=LONG)) == bytes(4)

    @pytest.mark.parametrize("one_shot", [False, True])
    @pytest.mark.parametrize("grid", [(1, 1, 1 << 16), (0xFFFF_FFFF, 0xFFFF_FFFF, 0xFFFF_FFFF)])
    def test_h17_a_grid_that_is_too_large_fails_its_queue(
        self, device: Device, kernel: Kernel, grid: tuple[int, int, int], one_shot: bool
    ) -> None:
        """The records before it have run, those behind it do not, and the record is named."""
        other = second_queue(device)
        with device.upload(words(*grid)) as place, device.upload(bytes(8)) as out:
            with device.command_buffer(one_shot=one_shot) as commands:
                commands.fill(out.view(0, 4), b"x")
                commands.push_label("layer 3")
                number = commands.dispatch_indirect(kernel, place, [out], (1, 7))
                commands.pop_label()
                commands.fill(out.view(4), b"y")
            failing = device.queue.execute(commands)
            with pytest.raises(
                UsageError, match=rf"record {number} \(layer 3\): fill_index: the grid .* is outside 0 to"
            ) as caught:
                failing.wait(LONG)
            assert caught.value.code is Status.OUT_OF_RANGE
            with pytest.raises(UsageError, match="is outside 0 to"):
                device.queue.barrier()
            into = bytearray(8)
            other.read(out, into).wait(LONG)
            assert into == b"xxxx" + bytes(4)

    def test_h18_executions_outlive_everything_they_use(self, factory: HalFactory, device: Device) -> None:
        factory.need_kernels()
        kernels = device.load(factory.vector)
        grid, entry, out, patched = (device.upload(words(1, 1, 1)) for _ in range(4))
        with device.upload(bytes(8)) as kept:
            commands = device.command_buffer(slots=1)
            number = commands.dispatch_indirect(kernels["fill_index"], Slot(0), [out], (2, 5))
            commands.dispatch_indirect(kernels["fill_index"], grid, [kept], (2, 3))
            commands.copy(out, kept.view(4), 4)
            commands.seal()
            gate = hold(device.queue)
            done = device.queue.execute(commands, [entry], {number: Patch(bindings={0: patched})})
            closing: tuple[Any, ...] = (commands, grid, entry, out, patched, kernels)
            for thing in closing:
                thing.close()
            others = [device.allocate(12) for _ in range(20)]
            for other in others:  # zeros where freed memory would be
                device.queues[-1].fill(other)
            gate.semaphore.signal(1)
            done.wait(LONG)
            assert bytes(kept.read(timeout=LONG)) == words(3, 1)

    def test_h17_with_memory_of_the_queue(self, factory: HalFactory, device: Device, kernel: Kernel) -> None:
        """Grid and binding have no memory when it is recorded, and none when it is executed."""
        factory.need_kernels()
        queue, into = device.queue, bytearray(16)
        gate = hold(queue)
        grid, out = queue.allocate(12)[0], queue.allocate(16)[0]
        with device.command_buffer(slots=1) as commands:
            commands.update(grid, words(1, 1, 1))
            commands.dispatch_indirect(kernel, grid, [Slot(0)], (4, 3))
            commands.dispatch_indirect(kernel, grid, [out], (2, 7))
        queue.execute(commands, [out])
        done = queue.read(out, into)
        gate.semaphore.signal(1)
        done.wait(LONG)
        assert into == words(7, 8, 5, 6)
