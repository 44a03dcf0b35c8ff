"""Bringing the bytes of a shared allocation from one engine's memory to another's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remora.graph.lane import HOST
from remora.graph.uses import READ_WRITE, Use

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remora.graph.region import SharedUses
    from remora.graph.scheduler import Scheduler
    from remora.graph.storage import Storage
    from remora.hal.buffer import Buffer, BufferView
    from remora.hal.queue import Queue
    from remora.hal.semaphore import Timepoint

__all__ = ["Staging", "move"]

#: Bytes that go through host memory at once where neither engine's memory is the host's.
PIECE = 16 << 20


class Staging:
    """A host run that makes one engine's memory current. It does nothing when it is already."""

    __slots__ = ("_engine", "_scheduler", "_storage", "lane")
    by_host = True
    shared: SharedUses = ()

    def __init__(self, scheduler: Scheduler, storage: Storage, engine: int) -> None:
        self.lane = HOST
        self._scheduler = scheduler
        self._storage = storage
        self._engine = engine

    def uses(self, table: Sequence[BufferView], keys: Sequence[Use]) -> Sequence[Use]:
        """All of it, so that nothing else is at work there meanwhile."""
        return (Use(self._storage.key, 0, self._storage.size, READ_WRITE),)

    def launch(self, queue: Queue, wait: tuple[Timepoint, ...], table: Sequence[BufferView]) -> Timepoint:
        raise AssertionError("staging runs on the host")

    def run(self) -> None:
        """Move the bytes; what the devices raise passes through."""
        storage = self._storage
        with self._scheduler.lock:
            if self._engine in storage.current:
                return
            source = storage.replicas[min(storage.current)]
        move(source, storage.replicas[self._engine])
        with self._scheduler.lock:
            storage.current.add(self._engine)
            self._scheduler.counters.staged += storage.size

    def close(self) -> None:
        """Nothing to do."""


def move(source: Buffer | BufferView, target: Buffer | BufferView) -> None:
    """Copy between buffers of two devices, by one copy where the memory of one of them is the host's. Blocks."""
    near, far = target.buffer.host_memory(), source.buffer.host_memory()
    reader, writer = source.buffer.device.queue, target.buffer.device.queue
    if near is not None:
        reader.read(source, near[target.offset : target.offset + source.size]).wait()
        return
    if far is not None:
        writer.update(target, far[source.offset : source.offset + source.size]).wait()
        return
    block = memoryview(bytearray(min(PIECE, source.size)))
    for offset in range(0, source.size, PIECE):
        piece = block[: min(PIECE, source.size - offset)]
        reader.read(source, piece, offset).wait()
        writer.update(target, piece, offset).wait()
