"""HAL conformance: patches, lifetimes and failures of command buffers (H18, H26)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from remora.errors import ClosedError, DeviceError, Error, UsageError
from remora.hal.records import Patch, Slot
from remora.testing.cts.hal_factory import LONG, HalFactory, hold, second_queue, words

if TYPE_CHECKING:
    from remora.hal.device import Device

__all__ = ["TestFailedRecordings", "TestLifeOfRecordings", "TestPatches"]


class TestPatches:
    """H18: grids, constants and bindings of recorded dispatches are changed for one execution."""

    def test_h18_constants_of_one_execution(self, factory: HalFactory, device: Device) -> None:
        factory.need_kernels()
        fill = device.load(factory.vector)["fill_index"]
        with device.upload(bytes(12)) as buffer:
            with device.command_buffer() as commands:
                commands.fill(buffer)
                number = commands.dispatch(fill, (1, 1, 1), [buffer], (3, 5))
            for patches, expected in (
                ({number: Patch(constants=(2, 9))}, words(9, 10, 0)),
                ({number: Patch(constants=words(1, 7))}, words(7, 0, 0)),
                ({number: Patch()}, words(5, 6, 7)),
                ({}, words(5, 6, 7)),
                (None, words(5, 6, 7)),
            ):
                device.queue.execute(commands, patches=patches)
                assert bytes(buffer.read(timeout=LONG)) == expected

    def test_h18_a_grid_of_one_execution(self, factory: HalFactory, device: Device) -> None:
        factory.need_kernels()
        fill = device.load(factory.vector)["fill_index"]
        count = 16_384 * 2
        with device.allocate(4 * count) as buffer:
            with device.command_buffer() as commands:
                commands.fill(buffer)
                number = commands.dispatch(fill, (1, 1, 1), [buffer], (count, 1))
            for grid, last in (((2, 1, 1), count), ((1, 1, 1), 0), ((0, 1, 1), 0)):
                device.queue.execute(commands, patches={number: Patch(grid=grid)})
                assert bytes(buffer.read(4 * (count - 1), timeout=LONG)) == words(last)
            device.queue.execute(commands)
            assert bytes(buffer.read(4 * (count - 1), timeout=LONG)) == words(0)
            assert bytes(buffer.read(0, 8, timeout=LONG)) == words(1, 2)

    def test_h18_bindings_of_one_execution(self, factory: HalFactory, device: Device) -> None:
        factory.need_kernels()
        add = device.load(factory.vector)["add_i32"]
        with device.upload(words(1, 2)) as x, device.upload(words(10, 20)) as y, device.upload(bytes(16)) as out:
            with device.command_buffer(slots=2) as commands:
                number = commands.dispatch(add, (1, 1, 1), [x, Slot(0), Slot(1)], (2,))
            device.queue.execute(commands, [x, out], {number: Patch(bindings={1: y, 2: out.view(8)})})
            assert bytes(out.read(timeout=LONG)) == words(0, 0, 11, 22)
            device.queue.execute(commands, [x, out])
            assert bytes(out.read(timeout=LONG)) == words(2, 4, 11, 22)
            device.queue.execute(commands, [x, out], {number: Patch(constants=(1,), bindings={0: y})})
            assert bytes(out.read(timeout=LONG)) == words(11, 4, 11, 22)
            device.queue.execute(commands, [y, out], {number: Patch(bindings={0: Slot(0), 2: Slot(1, 8)})})
            assert bytes(out.read(timeout=LONG)) == words(11, 4, 20, 40)

    def test_h18_many_patches_at_once(self, factory: HalFactory, device: Device) -> None:
        factory.need_kernels()
        fill = device.load(factory.vector)["fill_index"]
        count = 300
        with device.upload(bytes(4 * count)) as buffer:
            with device.command_buffer(slots=1) as commands:
                numbers = [commands.dispatch(fill, (1, 1, 1), [Slot(0, 4 * at, 4)], (1, 0)) for at in range(count)]
            patches = {number: Patch(constants=(1, number)) for number in numbers[::3]}
            device.queue.execute(commands, [buffer], patches)
            assert bytes(buffer.read(timeout=LONG)) == words(*(number if at % 3 == 0 else 0 for at, number in enumerate(numbers)))

    @pytest.mark.parametrize(
        ("number", "patch", "message"),
        [
            (-1, Patch(), "record -1 is no dispatch"),
            (0, Patch(), "record 0 is no dispatch"),
            (2, Patch(), "record 2 is no dispatch"),
            (1, Patch(grid=(1, 1, 1 << 16)), "outside 0 to"),
            (1, Patch(grid=(1, 1)), "three whole numbers"),  # type: ignore[arg-type]
            (1, Patch(constants=(1,)), "takes the constants"),
            (1, Patch(constants=b"1"), "takes 8 bytes"),
            (1, Patch(constants=(3, 0)), "needs 12 bytes, got 8"),
        ],
    )
    def test_h25_a_patch_that_does_not_fit(
        self, factory: HalFactory, device: Device, number: int, patch: Patch, message: str
    ) -> None:
        fill = device.load(factory.vector)["fill_index"]
        with device.upload(bytes(8)) as buffer:
            with device.command_buffer(slots=1) as commands:
                commands.fill(buffer, b"x")
                commands.dispatch(fill, (1, 1, 1), [Slot(0)], (2, 0))
            with pytest.raises(UsageError, match=message):
                device.queue.execute(commands, [buffer], {number: patch})
            assert bytes(buffer.read(timeout=LONG)) == bytes(8)

    def test_h25_a_patched_binding_that_does_not_fit(self, factory: HalFactory, device: Device, second: Device) -> None:
        fill = device.load(factory.vector)["fill_index"]
        closed = device.allocate(8)
        closed.close()
        with device.upload(bytes(16)) as buffer, second.allocate(8) as foreign:
            with device.command_buffer() as commands:
                commands.fill(buffer, b"x")
                number = commands.dispatch(fill, (1, 1, 1), [buffer], (2, 0))
            for index, binding, message in (
                (1, buffer, "has no binding 1"),
                (-1, buffer, "has no binding -1"),
                (0, buffer.view(0, 7), "needs 8 bytes, got 7"),
                (0, buffer.view(2, 8), "multiple of 4"),
                (0, foreign, "another device"),
                (0, closed, "closed"),
                (0, Slot(0), "no slot 0"),
            ):
                with pytest.raises(Error, match=message):
                    device.queue.execute(commands, patches={number: Patch(bindings={index: binding})})
            assert bytes(buffer.read(timeout=LONG)) == bytes(16)


class TestLifeOfRecordings:
    """H18, H27: who may close what, and when."""

    def test_h18_it_must_be_sealed(self, device: Device) -> None:
        with pytest.raises(UsageError, match="seal"):
            device.queue.execute(device.command_buffer())

    def test_h18_one_shot_is_executed_once(self, device: Device) -> None:
        with device.upload(bytes(4)) as buffer:
            with device.command_buffer(slots=1, one_shot=True) as commands:
                commands.fill(Slot(0), b"x")
            with pytest.raises(UsageError, match="0 entries"):
                device.queue.execute(commands)
            device.queue.execute(commands, [buffer]).wait(LONG)
            with pytest.raises(UsageError, match="one-shot"):
                device.queue.execute(commands, [buffer])
            assert bytes(buffer.read(timeout=LONG)) == b"xxxx"

    def test_h18_after_close_it_is_refused(self, device: Device) -> None:
        with device.allocate(4) as buffer:
            commands = device.command_buffer()
            commands.fill(buffer)
            commands.seal()
            commands.close()
            commands.close()
            for call in (lambda: device.queue.execute(commands), lambda: commands.fill(buffer), commands.seal):
                with pytest.raises(ClosedError, match="record a new one"):
                    call()

    def test_h18_it_may_be_closed_unsealed(self, device: Device) -> None:
        commands = device.command_buffer()
        commands.close()
        with pytest.raises(ClosedError):
            commands.seal()

    def test_h18_executions_outlive_everything_they_use(self, factory: HalFactory, device: Device) -> None:
        kernels = device.load(factory.vector)
        with device.upload(bytes(8)) as kept:
            recorded, entry, patched = device.upload(bytes(8)), device.upload(bytes(8)), device.upload(bytes(8))
            commands = device.command_buffer(slots=1)
            commands.update(recorded, b"recorded")
            commands.copy(recorded, Slot(0))
            number = commands.dispatch(kernels["fill_index"], (1, 1, 1), [Slot(0)], (2, 0))
            commands.copy(Slot(0), kept, 8)
            commands.seal()
            gate = hold(device.queue)
            late = device.queue.execute(commands, [entry], {number: Patch(bindings={0: patched})})
            for thing in (commands, recorded, entry, patched, kernels):
                thing.close()
            gate.semaphore.signal(1)
            late.wait(LONG)
            assert bytes(kept.read(timeout=LONG)) == b"recorded"

    def test_h18_dropped_buffers_live_on_in_the_recording(self, device: Device) -> None:
        with device.upload(bytes(8)) as kept:
            with device.command_buffer() as commands:
                hidden = device.upload(b"abcdefgh")
                commands.copy(hidden, kept)
                del hidden
            others = [device.upload(bytes(8)) for _ in range(20)]
            device.queue.execute(commands)
            assert bytes(kept.read(timeout=LONG)) == b"abcdefgh"
            assert len(others) == 20

    def test_h18_a_recorded_buffer_that_was_closed_is_named(self, device: Device) -> None:
        with device.upload(b"abcd") as buffer, device.allocate(4) as gone:
            with device.command_buffer() as commands:
                commands.fill(buffer, b"x")
                commands.fill(gone.view(0, 2), b"x")
                commands.fill(gone, b"x")
            device.queue.execute(commands).wait(LONG)
            device.queue.fill(buffer, b"y")
            gone.close()
            for _ in range(2):
                with pytest.raises(ClosedError, match="record 1 names"):
                    device.queue.execute(commands)
            assert bytes(buffer.read(timeout=LONG)) == b"yyyy"

    def test_h18_a_recorded_executable_that_was_closed_is_named(self, factory: HalFactory, device: Device) -> None:
        kernels, other = device.load(factory.vector), device.load(factory.vector)
        with device.upload(b"abcd") as buffer:
            with device.command_buffer() as commands:
                commands.fill(buffer, b"x")
                commands.dispatch(other["empty"], (1, 1, 1), [])
                commands.dispatch(kernels["empty"], (1, 1, 1), [])
            kernels.close()
            with pytest.raises(ClosedError, match="record 2 names"):
                device.queue.execute(commands)
            assert bytes(buffer.read(timeout=LONG)) == b"abcd"

    def test_h27_a_closed_device_takes_no_recording(self, device: Device) -> None:
        open_one = device.command_buffer()
        sealed = device.command_buffer().seal()
        queue = device.queue
        device.close()
        for call in (device.command_buffer, device.event, open_one.seal, lambda: queue.execute(sealed)):
            with pytest.raises(ClosedError):
                call()
        open_one.close()
        sealed.close()

    def test_h05_a_failed_queue_refuses_it(self, device: Device) -> None:
        gate = device.semaphore()
        late = device.queue.barrier(wait=gate.at(1))
        gate.fail(DeviceError("the pump is broken"))
        with pytest.raises(DeviceError, match="the pump is broken"):
            late.wait(LONG)
        commands = device.command_buffer(one_shot=True).seal()
        with pytest.raises(DeviceError, match="the pump is broken"):
            device.queue.execute(commands)
        second_queue(device).execute(commands).wait(LONG)  # the refusal has not used it up


class TestFailedRecordings:
    """H26: a kernel that fails inside a recording fails the operation, and is named."""

    def test_h26_the_record_its_labels_and_the_kernel_are_named(self, factory: HalFactory, device: Device) -> None:
        fail = device.load(factory.need_faults())["fail"]
        with device.upload(bytes(8)) as buffer:
            with device.command_buffer(slots=1) as commands:
                commands.push_label("layer 3")
                commands.push_label("other")
                commands.pop_label()
                commands.push_label("matmul")
                commands.fill(Slot(0, 0, 4), b"x")
                number = commands.dispatch(fail, (1, 1, 1), [], (0,))
                commands.fill(Slot(0, 4, 4), b"y")
                commands.pop_label()
                commands.pop_label()
            other = second_queue(device)
            failing = device.queue.execute(commands, [buffer], {number: Patch(constants=(7,))})
            dependent = other.barrier(wait=failing)
            pattern = rf"record {number} \(layer 3/matmul\):.*fail.*7"
            with pytest.raises(DeviceError, match=pattern) as caught:
                failing.wait(LONG)
            assert caught.value.origin
            with pytest.raises(DeviceError, match=pattern):
                dependent.wait(LONG)
            with pytest.raises(DeviceError, match=pattern):
                device.queue.execute(commands, [buffer])

    def test_h26_what_came_before_stays_and_nothing_behind_runs(self, factory: HalFactory, device: Device) -> None:
        fail = device.load(factory.need_faults())["fail"]
        other = second_queue(device)
        with device.upload(bytes(8)) as buffer:
            with device.command_buffer() as commands:
                commands.fill(buffer.view(0, 4), b"x")
                commands.dispatch(fail, (1, 1, 1), [], (0,))
                commands.dispatch(fail, (1, 1, 1), [], (-3,))
                commands.fill(buffer.view(4, 4), b"y")
            with pytest.raises(DeviceError, match=r"record 2:.*fail.*-3"):
                device.queue.execute(commands).wait(LONG)
            into = bytearray(8)
            other.read(buffer, into).wait(LONG)
            assert into == b"xxxx" + bytes(4)
