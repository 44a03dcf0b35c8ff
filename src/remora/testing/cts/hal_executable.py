"""HAL conformance: loading code, dispatching it, and the contract of kernels (H17, H19)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from remora.errors import ClosedError, Error, NotFoundError, Status, UsageError
from remora.hal.bundle import Bundle
from remora.hal.executable import GridRule
from remora.hal.target import Target
from remora.testing.cts.hal_factory import LONG, HalFactory, blob, hold, second_queue, slow, words

if TYPE_CHECKING:
    from remora.hal.device import Device

__all__ = ["TestContracts", "TestDispatch", "TestLoading"]

ELEMENTS = 16_384 * 3 + 5


class TestLoading:
    """H19: the artifact that fits, and nothing else."""

    def test_h19_an_executable_is_a_mapping_of_kernels(self, factory: HalFactory, device: Device) -> None:
        kernels = device.load(factory.vector)
        assert list(kernels) == [info.name for info in factory.vector.kernels]
        assert len(kernels) == len(factory.vector.kernels)
        assert "add_i32" in kernels
        assert "nothing" not in kernels
        assert kernels["add_i32"].info == factory.vector.kernels[list(kernels).index("add_i32")]
        assert kernels.target in device.targets

    def test_h19_the_first_target_that_fits_is_taken(self, factory: HalFactory, device: Device) -> None:
        assert device.load(factory.vector).target == next(t for t in device.targets if t in factory.vector.targets)

    def test_h19_a_missing_kernel_is_named_with_what_is_there(self, factory: HalFactory, device: Device) -> None:
        kernels = device.load(factory.vector)
        with pytest.raises(NotFoundError, match=r"no kernel 'nothing'.*add_i32") as caught:
            kernels["nothing"]
        assert isinstance(caught.value, LookupError)

    def test_h19_no_artifact_that_fits_lists_both_sides(self, factory: HalFactory, device: Device) -> None:
        bundle = Bundle.from_parts("alien", factory.vector.kernels, {Target("alien", "one"): b"?"})
        with pytest.raises(NotFoundError, match=rf"{re.escape(str(device.targets[0]))}.*alien:one"):
            device.load(bundle)

    def test_h19_an_artifact_for_another_target_is_refused(self, factory: HalFactory, device: Device) -> None:
        with pytest.raises(UsageError, match="does not take alien:one"):
            device.load_artifact(Target("alien", "one"), b"?", factory.vector.kernels)

    @pytest.mark.parametrize("size", [0, 1, 1000, 3 << 20])
    def test_h19_garbage_is_refused_and_the_device_goes_on(self, factory: HalFactory, device: Device, size: int) -> None:
        if not factory.checks_artifacts:
            pytest.skip("this device takes any artifact (HalFactory.checks_artifacts)")
        with pytest.raises(UsageError, match="artifact"):
            device.load_artifact(device.targets[0], blob(size), factory.vector.kernels)
        device.queue.barrier().wait(LONG)
        device.load(factory.vector)

    def test_h19_a_kernel_that_the_artifact_lacks(self, factory: HalFactory, device: Device) -> None:
        if not factory.checks_artifacts:
            pytest.skip("this device takes any artifact (HalFactory.checks_artifacts)")
        target, artifact = factory.vector.select(device.targets)
        infos = [replace(factory.vector.kernels[0], name="gone", export="gone")]
        with pytest.raises(NotFoundError, match=r"'gone'.*add_i32"):
            device.load_artifact(target, artifact, infos)

    def test_h19_a_kernel_may_have_another_name_than_its_export(self, factory: HalFactory, device: Device) -> None:
        target, artifact = factory.vector.select(device.targets)
        info = next(info for info in factory.vector.kernels if info.name == "fill_index")
        kernels = device.load_artifact(target, artifact, [replace(info, name="renamed", export=info.export or info.name)])
        with device.upload(bytes(8)) as buffer:
            device.queue.dispatch(kernels["renamed"], (1, 1, 1), [buffer], (2, 7)).wait(LONG)
            assert bytes(buffer.read(timeout=LONG)) == (words(7, 8) if factory.executes else bytes(8))

    def test_h19_loaded_twice_are_two_executables(self, factory: HalFactory, device: Device) -> None:
        first, second = device.load(factory.vector), device.load(factory.vector)
        device.queue.dispatch(first["empty"], (1, 1, 1), []).wait(LONG)
        first.close()
        first.close()
        device.queue.dispatch(second["empty"], (1, 1, 1), []).wait(LONG)
        with pytest.raises(ClosedError):
            device.queue.dispatch(first["empty"], (1, 1, 1), [])

    def test_h19_a_closed_executable_says_so(self, factory: HalFactory, device: Device) -> None:
        kernels = device.load(factory.vector)
        empty = kernels["empty"]
        kernels.close()
        with pytest.raises(ClosedError, match="load it again"):
            device.queue.dispatch(empty, (1, 1, 1), [])
        device.queue.barrier().wait(LONG)

    def test_h19_code_outlives_close_until_it_is_done(self, factory: HalFactory, device: Device) -> None:
        kernels = device.load(factory.vector)
        gate = hold(device.queue)
        with device.allocate(4 * ELEMENTS) as out:
            fill = kernels["fill_index"]
            late = device.queue.dispatch(fill, fill.grid_for(ELEMENTS), [out], (ELEMENTS, 3))
            kernels.close()
            gate.semaphore.signal(1)
            late.wait(LONG)
            if factory.executes:
                assert bytes(out.read(4 * ELEMENTS - 4, timeout=LONG)) == words(ELEMENTS + 2)

    def test_h19_a_kernel_of_another_device_is_a_usage_error(self, factory: HalFactory, device: Device, second: Device) -> None:
        empty = second.load(factory.vector)["empty"]
        with pytest.raises(UsageError, match="loaded on another device"):
            device.queue.dispatch(empty, (1, 1, 1), [])


class TestDispatch:
    """H17: grids, bindings, constants."""

    def test_h17_bindings_and_constants_reach_the_kernel(self, factory: HalFactory, device: Device) -> None:
        factory.need_kernels()
        add = device.load(factory.vector)["add_i32"]
        count = 1000
        a, b = words(*range(count)), words(*range(5, 5 + 3 * count, 3))
        with device.upload(a) as x, device.upload(b) as y, device.allocate(4 * count) as out:
            device.queue.dispatch(add, add.grid_for(count), [x, y, out], (count,)).wait(LONG)
            assert bytes(out.read(timeout=LONG)) == words(*(4 * index + 5 for index in range(count)))

    def test_h17_every_workgroup_runs(self, factory: HalFactory, device: Device) -> None:
        factory.need_kernels()
        fill = device.load(factory.vector)["fill_index"]
        count = 16_384 * 40 + 1
        with device.allocate(4 * count) as out:
            device.queue.dispatch(fill, fill.grid_for(count), [out], (count, 0)).wait(LONG)
            numbers = out.read(timeout=LONG).cast("I")
            assert all(numbers[at] == at for at in (*range(0, count, 1021), count - 1))

    def test_h17_views_are_bindings(self, factory: HalFactory, device: Device) -> None:
        factory.need_kernels()
        fill = device.load(factory.vector)["fill_index"]
        with device.upload(bytes(48)) as out:
            for offset in (4, 12, 40):
                device.queue.dispatch(fill, (1, 1, 1), [out.view(offset, 8)], (2, offset))
            assert bytes(out.read(timeout=LONG)) == words(0, 4, 5, 12, 13, 0, 0, 0, 0, 0, 40, 41)

    def test_h17_constants_keep_their_types(self, factory: HalFactory, device: Device) -> None:
        factory.need_kernels()
        saxpy = device.load(factory.vector)["saxpy_f32"]
        with device.upload(bytes.fromhex("0000803f000000c0")) as x, device.upload(bytes.fromhex("0000003f0000003f")) as y:
            device.queue.dispatch(saxpy, (1, 1, 1), [x, y], (2, 1.5)).wait(LONG)
            assert bytes(y.read(timeout=LONG)) == bytes.fromhex("00000040000020c0")

    def test_h17_packed_constants_are_taken(self, factory: HalFactory, device: Device) -> None:
        fill = device.load(factory.vector)["fill_index"]
        with device.upload(bytes(8)) as out:
            device.queue.dispatch(fill, (1, 1, 1), [out], words(2, 0xFFFFFFFF)).wait(LONG)
            assert bytes(out.read(timeout=LONG)) == (words(-1, 0) if factory.executes else bytes(8))

    @pytest.mark.parametrize("grid", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (0, 0, 0)])
    def test_h17_a_grid_without_workgroups_does_nothing(
        self, factory: HalFactory, device: Device, grid: tuple[int, int, int]
    ) -> None:
        fill = device.load(factory.vector)["fill_index"]
        with device.upload(bytes(8)) as out:
            device.queue.dispatch(fill, grid, [out], (2, 9)).wait(LONG)
            assert bytes(out.read(timeout=LONG)) == bytes(8)

    def test_h17_kernels_run_in_order_after_each_other(self, factory: HalFactory, device: Device) -> None:
        factory.need_kernels()
        add = device.load(factory.vector)["add_i32"]
        with device.upload(words(1)) as one, device.upload(words(0)) as total:
            for _ in range(300):
                device.queue.dispatch(add, (1, 1, 1), [one, total, total], (1,))
            assert bytes(total.read(timeout=LONG)) == words(300)

    def test_h17_buffers_may_be_closed_behind_a_dispatch(self, factory: HalFactory, device: Device) -> None:
        factory.need_kernels()
        fill = device.load(factory.vector)["fill_index"]
        with device.allocate(4 * ELEMENTS) as kept:
            gate = hold(device.queue)
            with device.allocate(4 * ELEMENTS) as passing:
                device.queue.dispatch(fill, fill.grid_for(ELEMENTS), [passing], (ELEMENTS, 11))
                device.queue.copy(passing, kept)
            gate.semaphore.signal(1)
            assert bytes(kept.read(4 * ELEMENTS - 4, timeout=LONG)) == words(ELEMENTS + 10)

    def test_h11_a_long_kernel_does_not_hold_up_another_queue(self, factory: HalFactory, device: Device) -> None:
        factory.need_kernels()
        mix, other = device.load(factory.vector)["mix_u32"], second_queue(device)
        with device.allocate(4) as buffer:

            def overtakes() -> bool:
                busy = [slow(mix, device.queue) for _ in range(20)][-1]
                other.fill(buffer, b"x").wait(LONG)
                overtook = not busy.done
                busy.wait(LONG)
                return overtook

            assert any(overtakes() for _ in range(10)), "the other queue was never done before the long kernels were"


class TestContracts:
    """H19: what the manifest says of a kernel is checked before anything is sent or run."""

    def test_h19_the_number_of_bindings(self, factory: HalFactory, device: Device) -> None:
        add = device.load(factory.vector)["add_i32"]
        with device.allocate(16) as buffer:
            for count in (0, 2, 4):
                with pytest.raises(UsageError, match=rf"add_i32 takes 3 bindings \(a, b, out\), got {count}"):
                    device.queue.dispatch(add, (1, 1, 1), [buffer] * count, (4,))

    def test_h19_the_size_of_a_binding(self, factory: HalFactory, device: Device) -> None:
        add = device.load(factory.vector)["add_i32"]
        with device.allocate(16) as large, device.allocate(15) as small:
            for bindings, name in (((small, large, large), "a"), ((large, large, large.view(4)), "out")):
                with pytest.raises(UsageError, match=rf"\({name}\) needs 16 bytes") as caught:
                    device.queue.dispatch(add, (1, 1, 1), bindings, (4,))
                assert caught.value.code is Status.OUT_OF_RANGE

    def test_h19_the_alignment_of_a_binding(self, factory: HalFactory, device: Device) -> None:
        fill = device.load(factory.vector)["fill_index"]
        with device.allocate(32) as buffer, pytest.raises(UsageError, match="multiple of 4 bytes, not 6"):
            device.queue.dispatch(fill, (1, 1, 1), [buffer.view(6, 8)], (2, 0))

    @pytest.mark.parametrize("constants", [(), (1,), (1, 2, 3), (1, -1), (1, 1 << 32), (1, "x"), (1, 1.5), b"", bytes(7), bytes(9)])
    def test_h19_the_constants(self, factory: HalFactory, device: Device, constants: tuple[int, ...] | bytes) -> None:
        fill = device.load(factory.vector)["fill_index"]
        with device.allocate(8) as buffer, pytest.raises(UsageError, match="fill_index takes"):
            device.queue.dispatch(fill, (1, 1, 1), [buffer], constants)

    @pytest.mark.parametrize("grid", [(-1, 1, 1), (1 << 32, 1, 1), (1, 1, 1 << 16)])
    def test_h19_the_limits_of_a_grid(self, factory: HalFactory, device: Device, grid: tuple[int, int, int]) -> None:
        empty = device.load(factory.vector)["empty"]
        with pytest.raises(UsageError, match="outside 0 to"):
            device.queue.dispatch(empty, grid, [])

    @pytest.mark.parametrize("grid", [(1, 1), (1, 1, 1, 1), 1, ("a", 1, 1), (1.5, 1, 1)])
    def test_h19_the_shape_of_a_grid(self, factory: HalFactory, device: Device, grid: tuple[int, int, int]) -> None:
        empty = device.load(factory.vector)["empty"]
        with pytest.raises(UsageError, match="three whole numbers"):
            device.queue.dispatch(empty, grid, [])

    def test_h19_a_grid_that_was_compiled_in(self, factory: HalFactory, device: Device) -> None:
        target, artifact = factory.vector.select(device.targets)
        info = next(info for info in factory.vector.kernels if info.name == "empty")
        fixed = replace(info, export=info.export or info.name, grid=GridRule(fixed=(2, 1, 1)))
        empty = device.load_artifact(target, artifact, [fixed])["empty"]
        assert empty.grid_for(1_000_000) == (2, 1, 1)
        device.queue.dispatch(empty, (2, 1, 1), []).wait(LONG)
        with pytest.raises(UsageError, match="compiled for the grid"):
            device.queue.dispatch(empty, (1, 1, 1), [])

    def test_h19_a_closed_binding(self, factory: HalFactory, device: Device) -> None:
        fill = device.load(factory.vector)["fill_index"]
        buffer = device.allocate(8)
        buffer.close()
        with pytest.raises(ClosedError, match="closed"):
            device.queue.dispatch(fill, (1, 1, 1), [buffer], (2, 0))

    def test_h19_a_binding_of_another_device(self, factory: HalFactory, device: Device, second: Device) -> None:
        fill = device.load(factory.vector)["fill_index"]
        with second.allocate(8) as foreign, pytest.raises(UsageError, match="another device"):
            device.queue.dispatch(fill, (1, 1, 1), [foreign], (2, 0))

    def test_h19_a_refused_dispatch_leaves_no_trace(self, factory: HalFactory, device: Device) -> None:
        fill = device.load(factory.vector)["fill_index"]
        before = device.queue.barrier()
        with device.upload(bytes(8)) as buffer:
            for _ in range(50):
                with pytest.raises(Error):
                    device.queue.dispatch(fill, (1, 1, 1), [buffer], (3, 0))
            after = device.queue.barrier()
            after.wait(LONG)
            assert after.value - before.value <= 2
            assert device.statistics().dispatches == 0
