"""A queue: a stream, and a number in pinned memory that the GPU writes behind each operation.

Bytes between host memory and the GPU go through pinned pieces: one is lent to an operation until the GPU has done it. What waits
for the stream (transfers above 64 KiB, files, indirect grids, events) runs on the queue's worker, everything else on the thread
that submits it. A recording is walked, record by record, as one operation.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from remora.drivers.hip._ffi import NOT_READY
from remora.drivers.hip.buffer import Place, place, places
from remora.drivers.hip.memory import COHERENT, SLOT_BYTES, PinnedPool, Slot
from remora.drivers.hip.program import Program, check_grid, program_of
from remora.drivers.hip.stream import Stream
from remora.errors import DeviceLostError, Error
from remora.hal.host_bytes import BytesInPieces, HostBytes
from remora.hal.host_queue import INLINE_NS, Step
from remora.hal.indirect import GRID_BYTES, read_grid
from remora.hal.records import CopyRecord, DispatchRecord, FillRecord, IndirectRecord, UpdateRecord, resolve
from remora.hal.stream_queue import StreamQueue

if TYPE_CHECKING:
    from remora.drivers.hip.device import HipDevice
    from remora.hal.buffer import Buffer, BufferView
    from remora.hal.executable import Grid, Kernel
    from remora.hal.semaphore import Points, Timepoint

__all__ = ["HipQueue"]

#: How long a thread takes to begin a recorded dispatch, in nanoseconds.
NS_PER_LAUNCH: Final = 5_000


class HipQueue(StreamQueue):
    """In-order execution on one stream."""

    __slots__ = ("_lent", "_marks", "_marks_address", "_pinned", "_runtime", "_stream")

    def __init__(self, device: HipDevice, ordinal: int) -> None:
        super().__init__(device, ordinal)
        self._runtime = device.runtime
        self._pinned = PinnedPool(device.runtime)
        self._stream = Stream(device.runtime)
        self._lent: list[tuple[Slot, memoryview | None]] = []  # of the operation that is begun now
        self._marks_address = self._runtime.made("hipHostMalloc", 8, COHERENT)
        self._marks = ctypes.c_uint64.from_address(self._marks_address)
        self._marks.value = 0

    @property
    def dispatches(self) -> int:
        """Kernels begun so far."""
        return self._stream.dispatches

    def destroy(self) -> None:
        """Give the stream back; the queue is closed."""
        self._stream.destroy()
        self._marks = ctypes.c_uint64(self._marks.value)
        self._runtime.raw["hipHostFree"](self._marks_address)
        self._pinned.close()

    # -- StreamQueue ----------------------------------------------------------------------------------------------------------

    def _start(self, work: Callable[..., None], args: tuple[Any, ...], value: int) -> None:
        self._runtime.enter()
        self._lent = []
        super()._start(work, args, value)
        if self._lent:
            self._after = partial(self._hand_out, self._lent)

    def _mark(self, value: int) -> None:
        self._stream.mark(self._marks_address, value)

    def _marked(self) -> int:
        return self._marks.value

    def _fault(self) -> Error | None:
        code = self._stream.query()
        return self._runtime.failure(code, "the GPU") if code and code != NOT_READY else None

    def _synchronize(self) -> Error | None:
        code = self._stream.synchronize()
        return self._runtime.failure(code, "the GPU") if code else None

    # -- dispatches -----------------------------------------------------------------------------------------------------------

    def _dispatch(
        self, kernel: Kernel, grid: Grid, bindings: Sequence[Buffer | BufferView], constants: bytes, wait: Points, signal: Points
    ) -> Timepoint:
        check_grid(kernel, grid)
        return self._submit(self._launch, (program_of(kernel), grid, constants, places(bindings)), 0, wait, signal)

    def _dispatch_indirect(
        self,
        kernel: Kernel,
        grid: Buffer | BufferView,
        bindings: Sequence[Buffer | BufferView],
        constants: bytes,
        wait: Points,
        signal: Points,
    ) -> Timepoint:
        args = (kernel, program_of(kernel), place(grid), constants, places(bindings))
        return self._submit(self._launch_indirect, args, INLINE_NS, wait, signal)

    def _launch(self, program: Program, grid: Grid, constants: bytes, bindings: Sequence[Place]) -> None:
        self._stream.launch(program, grid, constants, [binding.address for binding in bindings])

    def _launch_indirect(
        self, kernel: Kernel, program: Program, source: Place, constants: bytes, bindings: Sequence[Place]
    ) -> None:
        words = memoryview(bytearray(GRID_BYTES))
        self._fetch(source, 0, words)
        grid = read_grid(kernel, words)
        check_grid(kernel, grid)
        self._launch(program, grid, constants, bindings)

    # -- transfers ------------------------------------------------------------------------------------------------------------

    def _fill(self, buffer: Buffer | BufferView, pattern: bytes, wait: Points, signal: Points) -> Timepoint:
        return self._submit(self._run_fill, (place(buffer), pattern), 0, wait, signal)

    def _run_fill(self, target: Place, pattern: bytes) -> None:
        self._stream.fill(target.address, target.size, pattern)

    def _copy(self, source: Buffer | BufferView, target: Buffer | BufferView, wait: Points, signal: Points) -> Timepoint:
        return self._submit(self._run_copy, (place(source), place(target), source.size), 0, wait, signal)

    def _run_copy(self, source: Place, target: Place, size: int) -> None:
        self._stream.copy(source.address, target.address, size)

    def _update(self, buffer: Buffer, offset: int, data: memoryview, wait: Points, signal: Points) -> Timepoint:
        target = place(buffer)._replace(offset=offset)
        return self._submit(self._write, (target, 0, data), cost_of(data.nbytes), wait, signal)

    def _read(self, buffer: Buffer, offset: int, into: memoryview, wait: Points, signal: Points) -> Timepoint:
        source = place(buffer)._replace(offset=offset)
        return self._submit(self._run_read, (source, 0, into), cost_of(into.nbytes), wait, signal)

    def _write(self, target: Place, start: int, data: memoryview) -> None:
        """Host bytes to a place in a range. They may change when this returns."""
        for at in range(0, data.nbytes, SLOT_BYTES):
            piece = data[at : at + SLOT_BYTES]
            slot = self._slot(None)
            slot.view[: piece.nbytes] = piece
            self._stream.write(target.address + start + at, slot.address, piece.nbytes)

    def _run_read(self, source: Place, start: int, into: memoryview) -> None:
        """Bytes from a place in a range, which are there when the operation is done."""
        for at in range(0, into.nbytes, SLOT_BYTES):
            piece = into[at : at + SLOT_BYTES]
            slot = self._slot(piece)
            self._stream.read(slot.address, source.address + start + at, piece.nbytes)

    def _fetch(self, source: Place, start: int, into: memoryview) -> None:
        """Bytes from a place in a range, now, after everything that was begun."""
        self._run_read(source, start, into)
        self._finish()

    def _slot(self, into: memoryview | None) -> Slot:
        """A pinned piece for the operation that is begun now; where its bytes go once they are there, if anywhere."""
        slot = self._pinned.take()
        if slot is None:
            self._finish()
            self.drain()  # what other operations in flight have borrowed
            slot = self._pinned.take()
        if slot is None:  # the device failed meanwhile
            raise DeviceLostError("the GPU did not give back pinned memory; close the device and open it again")
        self._lent.append((slot, into))
        return slot

    def _finish(self) -> None:
        """Wait for the stream, and hand out what this operation has read so far."""
        fault = self._synchronize()
        if fault is not None:
            raise fault
        self._hand_out(self._lent)

    def _hand_out(self, lent: list[tuple[Slot, memoryview | None]]) -> None:
        for slot, into in lent:
            if into is not None:
                into[:] = slot.view[: into.nbytes]
            self._pinned.give_back(slot)
        lent.clear()

    def _host_bytes(self, buffer: Buffer | BufferView) -> HostBytes:
        there = place(buffer)
        return BytesInPieces(there.size, partial(self._fetch, there), partial(self._write, there))

    # -- recordings -----------------------------------------------------------------------------------------------------------

    def _step(self, record: DispatchRecord | FillRecord | UpdateRecord | CopyRecord, table: Sequence[Buffer | BufferView]) -> Step:
        if isinstance(record, DispatchRecord):
            check_grid(record.kernel, record.grid)
            bindings = places([resolve(binding, table) for binding in record.bindings])
            return Step(self._launch, (program_of(record.kernel), record.grid, record.constants, bindings), NS_PER_LAUNCH)
        target = place(resolve(record.target, table))
        if isinstance(record, FillRecord):
            return Step(self._run_fill, (target, record.pattern))
        if isinstance(record, UpdateRecord):
            return Step(self._write, (target, 0, memoryview(record.data)), cost_of(len(record.data)))
        return Step(self._run_copy, (place(resolve(record.source, table)), target, record.size))

    def _indirect_step(self, record: IndirectRecord, table: Sequence[Buffer | BufferView]) -> Step:
        kernel, bindings = record.kernel, places([resolve(binding, table) for binding in record.bindings])
        args = (kernel, program_of(kernel), place(resolve(record.grid, table)), record.constants, bindings)
        return Step(self._launch_indirect, args, INLINE_NS)


def cost_of(size: int) -> float:
    """How long a transfer keeps the thread that begins it, in nanoseconds: more than one piece may wait for the stream."""
    return 0 if size <= SLOT_BYTES else INLINE_NS
