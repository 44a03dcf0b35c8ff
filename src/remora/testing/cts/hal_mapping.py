"""HAL conformance: host and device look at the same memory while it is mapped: flush, invalidate, and what is refused (H20)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from remora.errors import ClosedError, DeadlineError, Status, UsageError
from remora.hal.buffer import Access
from remora.testing.cts.compare import same
from remora.testing.cts.hal_factory import LONG, blob, hold

if TYPE_CHECKING:
    from remora.hal.device import Device

__all__ = ["TestLiveMappings"]

SIZES = (8, 100_000)


class TestLiveMappings:
    """H20: a mapping is flushed and invalidated by ranges; afterwards both sides see the same."""

    @pytest.mark.parametrize("size", SIZES)
    def test_h20_flush_publishes_while_the_mapping_stays(self, device: Device, size: int) -> None:
        data = blob(size)
        with device.upload(bytes(size)) as buffer, device.allocate(size) as other:
            with buffer.map(Access.READ_WRITE, timeout=LONG) as mapping:
                mapping.view[:] = data
                mapping.flush(timeout=LONG)
                device.queue.copy(buffer, other)
                assert same(other.read(timeout=LONG), data)
                mapping.view[0] ^= 0xFF
            assert buffer.read(0, 1, timeout=LONG)[0] == data[0] ^ 0xFF

    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("access", [Access.READ, Access.READ_WRITE])
    def test_h20_invalidate_shows_what_the_device_has_written(self, device: Device, access: Access, size: int) -> None:
        with device.upload(bytes(size)) as buffer:
            with buffer.map(access, timeout=LONG) as mapping:
                assert not any(mapping.view)
                device.queue.fill(buffer, b"\5")
                mapping.invalidate(timeout=LONG)
                assert mapping.view == b"\5" * size
                assert mapping.view.readonly == (access is Access.READ)
            assert buffer.read(timeout=LONG) == b"\5" * size

    def test_h20_a_part_is_counted_from_the_start_of_the_mapping(self, device: Device) -> None:
        with device.upload(b"abcdefgh") as buffer, buffer.map(Access.READ_WRITE, 2, 4, timeout=LONG) as mapping:
            mapping.view[1:3] = b"12"
            mapping.flush(1, 2, timeout=LONG)
            assert bytes(buffer.read(timeout=LONG)) == b"abc12fgh"
            device.queue.fill(buffer.view(5, 3), b"x").wait(LONG)
            mapping.invalidate(3, timeout=LONG)
            assert bytes(mapping.view) == b"c12x"

    def test_h20_a_discarding_mapping_is_flushed(self, device: Device) -> None:
        with device.upload(b"abcdefgh") as buffer, buffer.map(Access.WRITE | Access.DISCARD, 4, 4, timeout=LONG) as mapping:
            mapping.view[:] = b"1234"
            mapping.flush(timeout=LONG)
            assert bytes(buffer.read(timeout=LONG)) == b"abcd1234"
            mapping.view[:] = b"5678"
            mapping.flush(2, 2, timeout=LONG)
            assert bytes(buffer.read(6, 2, timeout=LONG)) == b"78"

    def test_h20_invalidate_waits_for_the_first_queue(self, device: Device) -> None:
        with device.upload(bytes(8)) as buffer, buffer.map(Access.READ, timeout=LONG) as mapping:
            gate = hold(device.queue)
            device.queue.fill(buffer, b"\7")
            with pytest.raises(DeadlineError):
                mapping.invalidate(timeout=0.01)
            gate.semaphore.signal(1)
            mapping.invalidate(timeout=LONG)
            assert bytes(mapping.view) == b"\7" * 8

    @pytest.mark.parametrize(("offset", "size"), [(-1, 2), (0, 5), (4, 1), (5, 0), (2, -1)])
    def test_h20_a_part_outside_the_mapping_is_refused(self, device: Device, offset: int, size: int) -> None:
        with device.upload(b"abcdefgh") as buffer, buffer.map(Access.READ_WRITE, 2, 4, timeout=LONG) as mapping:
            for call in (mapping.flush, mapping.invalidate):
                with pytest.raises(UsageError, match="not inside 4 bytes") as caught:
                    call(offset, size, timeout=LONG)
                assert caught.value.code is Status.OUT_OF_RANGE
            mapping.flush(4, 0, timeout=LONG)
            mapping.invalidate(4, timeout=LONG)

    def test_h20_what_the_access_does_not_allow_is_refused(self, device: Device) -> None:
        with device.upload(b"abcd") as buffer:
            with buffer.map(Access.READ, timeout=LONG) as mapping, pytest.raises(UsageError, match=r"no Access\.WRITE") as caught:
                mapping.flush(timeout=LONG)
            assert caught.value.code is Status.FAILED_PRECONDITION
            with (
                buffer.map(Access.WRITE | Access.DISCARD, timeout=LONG) as mapping,
                pytest.raises(UsageError, match=r"no Access\.READ"),
            ):
                mapping.invalidate(timeout=LONG)

    def test_h20_a_closed_mapping_says_so(self, device: Device) -> None:
        with device.upload(b"abcd") as buffer:
            mapping = buffer.map(timeout=LONG)
            mapping.close()
            for call in (mapping.flush, mapping.invalidate, mapping.tensor):
                with pytest.raises(ClosedError, match="map the buffer again"):
                    call()

    def test_h20_an_access_that_is_none_is_refused(self, device: Device) -> None:
        with device.upload(b"abcd") as buffer:
            for access in (Access(0), Access.DISCARD, Access(8), Access.READ | Access(16)):
                with pytest.raises(UsageError, match=r"Access\.READ, Access\.WRITE or both"):
                    buffer.map(access, timeout=LONG)
            with pytest.raises(UsageError, match=r"DISCARD goes with Access\.WRITE"):
                buffer.map(Access.READ | Access.DISCARD, timeout=LONG)
            buffer.map(timeout=LONG).close()

    def test_h20_a_refused_mapping_leaves_nothing(self, device: Device) -> None:
        buffer = device.upload(b"abcdefgh")
        with buffer.map(Access.WRITE, 0, 4, timeout=LONG):
            for call in (
                partial(buffer.map, Access.READ, 3, 2, timeout=LONG),
                partial(buffer.map, Access.READ, 8, 1, timeout=LONG),
                partial(buffer.map, Access.DISCARD, timeout=LONG),
            ):
                with pytest.raises(UsageError):
                    call()
        buffer.close()
