"""A whole job: two arrays there, one kernel, one array back. Beside it plain sockets, and the same kernel on a local device."""

from __future__ import annotations

from contextlib import ExitStack, closing

import remora
from remora import samples
from remora.bench.context import CARRIERS, MIB, Bench
from remora.bench.floors import RawMemory, RawStream
from remora.bench.measure import Subject, alternate, paired_ratio, whole
from remora.bench.processes import children
from remora.bench.report import Row, Target

__all__ = ["Job", "end_to_end"]

#: To plain sockets, and in milliseconds.
TCP, SHM = Target(1.15, of="ratio"), Target(50)


class Job:
    """Two arrays of `size` bytes of float32 up, their sum down. Everything is queued at once, with one wait. `close()` it."""

    def __init__(self, uri: str, size: int) -> None:
        self._device = remora.open(uri)
        self._kernel = self._device.load(samples.load("vector"))["saxpy_f32"]
        self._count = size // 4
        self._left, self._right, self._sum = bytearray(size), bytearray(size), bytearray(size)
        self._buffers = self._device.upload(self._left), self._device.upload(self._right)

    def run(self) -> None:
        """All of it."""
        left, right = self._buffers
        queue = self._device.queue
        queue.update(left, self._left)
        queue.update(right, self._right)
        self._add()
        queue.read(right, self._sum).wait()

    def run_by(self, raw: RawStream | RawMemory) -> None:
        """The same bytes through plain sockets, and the kernel where this job's device is."""
        raw.upload()
        raw.upload()
        self._add().wait()
        raw.download()

    def _add(self) -> remora.Timepoint:
        return self._device.queue.dispatch(self._kernel, self._kernel.grid_for(self._count), self._buffers, (self._count, 1.0))

    def close(self) -> None:
        """Close the device."""
        self._device.close()


def end_to_end(bench: Bench) -> list[Row]:
    """On each carrier, 2 x 64 MiB up and 64 MiB down."""
    size, rounds = bench.pick(4, 64) * MIB, bench.pick(3, 11)
    rows: list[Row] = []
    step = bench.steps(len(CARRIERS))
    for carrier in CARRIERS:
        with ExitStack() as stack:
            ours, here = (stack.enter_context(closing(Job(uri, size))) for uri in (bench.uri(carrier), "cpu"))
            session = children(bench.server.pid)[-1]
            raw = stack.enter_context(closing(bench.raw_stream(carrier, size)))
            subjects = [
                Subject("raw", whole(lambda _, raw=raw, here=here: here.run_by(raw)), bench.floor.pid),  # type: ignore[misc]
                Subject("ours", whole(lambda _, ours=ours: ours.run()), session),  # type: ignore[misc]
            ]
            floor, mine = alternate(subjects, rounds, 1, lambda: None)
        values = mine.detail()["p50_us"] / 1e3, floor.detail()["p50_us"] / 1e3, paired_ratio(mine, floor)
        target = {"tcp": TCP, "shm": SHM}.get(carrier)
        name = f"{carrier}: upload 2 x {size // MIB} MiB, add, download"
        rows.append(Row(name, "ms", *values, target, {"ours": mine.detail(), "floor": floor.detail()}))
        step()
    return rows
