"""HAL conformance: random operations on buffers against bytearrays (H17, H20)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remora.errors import UsageError
from remora.hal.buffer import Access
from remora.testing.cts.compare import same
from remora.testing.cts.hal_factory import LONG

if TYPE_CHECKING:
    from remora.hal.buffer import Buffer
    from remora.hal.device import Device
    from remora.hal.semaphore import Timepoint

__all__ = ["TestRandomOperations"]

#: Bytes of each buffer; the second is larger than any inline transfer.
BUFFER_BYTES = (257, 150_000)
KINDS = ("fill", "update", "read", "copy", "map", "renew", "settle")


class Model:
    """Buffers on the device beside bytearrays that ought to hold the same. Each operation may go to another queue."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.buffers: list[Buffer] = [device.upload(bytes(size)) for size in BUFFER_BYTES]
        self.oracle = [bytearray(size) for size in BUFFER_BYTES]
        self.reads: list[tuple[bytearray, bytes]] = []
        self.last: Timepoint = device.queue.barrier()

    def step(self, kind: str, which: int, queue: int, spans: tuple[int, int, int], seed: int) -> None:
        """One operation on a range that `spans` picks."""
        size = BUFFER_BYTES[which]
        offset = spans[0] % size
        length = min(spans[1], size - offset)
        on: Any = self.device.queues[queue % len(self.device.queues)]
        getattr(self, f"_{kind}")(on, which, offset, length, spans[2], seed)

    def _fill(self, on: Any, which: int, offset: int, length: int, other: int, seed: int) -> None:
        width = (1, 2, 4)[seed % 3]
        offset, length = offset // width * width, length // width * width
        pattern = bytes((seed + index) & 0xFF for index in range(width))
        self.last = on.fill(self.buffers[which].view(offset, length), pattern, wait=self.last)
        self.oracle[which][offset : offset + length] = pattern * (length // width)

    def _update(self, on: Any, which: int, offset: int, length: int, other: int, seed: int) -> None:
        data = bytes([seed & 0xFF, seed >> 8 & 0xFF, 7]) * (length // 3 + 1)
        self.last = on.update(self.buffers[which], data[:length], offset, wait=self.last)
        self.oracle[which][offset : offset + length] = data[:length]

    def _read(self, on: Any, which: int, offset: int, length: int, other: int, seed: int) -> None:
        into = bytearray(length)
        self.last = on.read(self.buffers[which].view(offset), into, wait=self.last)
        self.reads.append((into, bytes(self.oracle[which][offset : offset + length])))

    def _copy(self, on: Any, which: int, offset: int, length: int, other: int, seed: int) -> None:
        to = seed % 2
        start = other % BUFFER_BYTES[to]
        length = min(length, BUFFER_BYTES[to] - start)
        source, target = self.buffers[which].view(offset, length), self.buffers[to].view(start, length)
        if to == which and length and offset < start + length and start < offset + length:
            with pytest.raises(UsageError, match="overlap"):
                on.copy(source, target, wait=self.last)
            return
        self.last = on.copy(source, target, wait=self.last)
        self.oracle[to][start : start + length] = self.oracle[which][offset : offset + length]

    def _map(self, on: Any, which: int, offset: int, length: int, other: int, seed: int) -> None:
        self.last.wait(LONG)
        with self.buffers[which].map(Access.READ_WRITE, offset, length, timeout=LONG) as mapping:
            assert mapping.view == self.oracle[which][offset : offset + length]
            if length:
                mapping.view[length - 1] = self.oracle[which][offset + length - 1] = seed & 0xFF

    def _renew(self, on: Any, which: int, offset: int, length: int, other: int, seed: int) -> None:
        """The buffer is closed behind what is in flight; a fresh one takes its place."""
        self.buffers[which].close()
        self.buffers[which] = self.device.allocate(BUFFER_BYTES[which])
        self.last = on.fill(self.buffers[which], b"\0", wait=self.last)
        self.oracle[which][:] = bytes(BUFFER_BYTES[which])

    def _settle(self, *unused: Any) -> None:
        self.last.wait(LONG)
        for into, expected in self.reads:
            assert same(into, expected)
        self.reads.clear()

    def finish(self) -> None:
        """Everything is done and the same on both sides."""
        self._settle()
        for buffer, expected in zip(self.buffers, self.oracle, strict=True):
            assert same(buffer.read(timeout=LONG), expected)
            buffer.close()


#: One device serves all examples, and the class runs once for each driver.
UNCHECKED = (HealthCheck.function_scoped_fixture, HealthCheck.differing_executors, HealthCheck.too_slow)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.integers(0, 1),
        st.integers(0, 3),
        st.tuples(st.integers(0, 1 << 18), st.integers(0, 1 << 18) | st.integers(0, 300), st.integers(0, 1 << 18)),
        st.integers(0, 0xFFFF),
    ),
    max_size=40,
)


class TestRandomOperations:
    """H17, H20: whatever is done to buffers on whichever queues, they hold what a bytearray would."""

    @settings(max_examples=40, deadline=None, suppress_health_check=UNCHECKED, database=None)
    @given(steps=STEPS)
    def test_h20_buffers_hold_what_bytearrays_would(self, device: Device, steps: list[Any]) -> None:
        model = Model(device)
        for step in steps:
            model.step(*step)
        model.finish()
