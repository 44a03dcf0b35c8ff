"""HAL conformance: dispatches whose grid is in a buffer (H17)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from remora.errors import ClosedError, Status, UsageError
from remora.testing.cts.hal_factory import LONG, HalFactory, hold, second_queue, words

if TYPE_CHECKING:
    from remora.hal.device import Device
    from remora.hal.executable import Kernel

__all__ = ["TestIndirectDispatch"]


class TestIndirectDispatch:
    """H17: the grid is what the buffer holds when the dispatch runs, and is checked then."""

    @pytest.fixture
    def kernel(self, factory: HalFactory, device: Device) -> Kernel:
        """`fill_index`: one int32 for each element, from a base."""
        return device.load(factory.vector)["fill_index"]

    def test_h17_the_grid_is_read_at_its_turn(self, factory: HalFactory, device: Device, kernel: Kernel) -> None:
        factory.need_kernels()
        count = 1 << 16
        with device.upload(bytes(4 * count)) as out, device.upload(words(9, 0, 0, 0)) as grid:
            gate = hold(device.queue)
            device.queue.dispatch_indirect(kernel, grid.view(4), [out], (count, 1))
            device.queue.update(grid.view(4), words(*kernel.grid_for(count)))
            device.queue.dispatch_indirect(kernel, grid.view(4), [out], (count, 7))
            gate.semaphore.signal(1)
            got = out.read(timeout=LONG).cast("i")
        assert (got[0], got[1], got[-1]) == (7, 8, count + 6)

    def test_h17_an_empty_grid_runs_nothing(self, device: Device, kernel: Kernel) -> None:
        with device.upload(words(-1)) as out, device.upload(words(0, 0, 0)) as grid:
            device.queue.dispatch_indirect(kernel, grid, [out], (1, 7)).wait(LONG)
            assert bytes(out.read(timeout=LONG)) == words(-1)

    def test_h17_with_memory_of_the_queue(self, factory: HalFactory, device: Device, kernel: Kernel) -> None:
        factory.need_kernels()
        queue, into = device.queue, bytearray(16)
        gate = hold(queue)
        grid, out = queue.allocate(12)[0], queue.allocate(16)[0]
        queue.update(grid, words(1, 1, 1))
        queue.dispatch_indirect(kernel, grid, [out], (4, 3))
        done = queue.read(out, into)
        queue.deallocate(grid)
        out.close()
        gate.semaphore.signal(1)
        done.wait(LONG)
        assert into == words(3, 4, 5, 6)

    def test_h17_it_waits_and_signals(self, device: Device, kernel: Kernel) -> None:
        gate, after = device.semaphore(), device.semaphore()
        with device.upload(words(1, 1, 1)) as grid, device.allocate(4) as out:
            done = device.queue.dispatch_indirect(kernel, grid, [out], (1, 3), wait=gate.at(1), signal=after.at(4))
            before = device.statistics().dispatches
            gate.signal(1)
            after.wait(4, LONG)
            done.wait(LONG)
            assert device.statistics().dispatches == before + 1

    @pytest.mark.parametrize("grid", [(1, 1, 1 << 16), (0xFFFF_FFFF, 0xFFFF_FFFF, 0xFFFF_FFFF)])
    def test_h17_a_grid_that_is_too_large_fails_its_queue(self, device: Device, kernel: Kernel, grid: tuple[int, int, int]) -> None:
        other = second_queue(device)
        with device.upload(words(*grid)) as place, device.upload(words(-1)) as out:
            failing = device.queue.dispatch_indirect(kernel, place, [out], (1, 7))
            with pytest.raises(UsageError, match=r"fill_index: the grid .* is outside 0 to") as caught:
                failing.wait(LONG)
            assert caught.value.code is Status.OUT_OF_RANGE
            with pytest.raises(UsageError, match="is outside 0 to"):
                device.queue.barrier()
            into = bytearray(4)
            other.read(out, into).wait(LONG)
            assert into == words(-1)

    def test_h17_what_is_known_before_is_refused_at_once(self, device: Device, second: Device, kernel: Kernel) -> None:
        queue = device.queue
        with device.upload(words(1, 1, 1, 1)) as grid, device.allocate(4) as out, second.allocate(12) as foreign:
            with pytest.raises(UsageError, match="a grid has 12 bytes, three u32; this has 8") as caught:
                queue.dispatch_indirect(kernel, grid.view(8), [out], (1, 0))
            assert caught.value.code is Status.OUT_OF_RANGE
            with pytest.raises(UsageError, match="multiple of 4 bytes, not 2"):
                queue.dispatch_indirect(kernel, grid.view(2), [out], (1, 0))
            with pytest.raises(UsageError, match="another device"):
                queue.dispatch_indirect(kernel, foreign, [out], (1, 0))
            with pytest.raises(UsageError, match="takes 1 bindings"):
                queue.dispatch_indirect(kernel, grid, [], (1, 0))
            with pytest.raises(UsageError, match="needs 8 bytes"):
                queue.dispatch_indirect(kernel, grid, [out], (2, 0))
            with pytest.raises(UsageError, match="takes the constants"):
                queue.dispatch_indirect(kernel, grid, [out], (2,))
            queue.wait_idle(LONG)
        with pytest.raises(ClosedError), device.allocate(4) as out:
            queue.dispatch_indirect(kernel, grid, [out], (1, 0))
