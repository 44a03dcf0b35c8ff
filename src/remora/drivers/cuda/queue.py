"""A queue: a stream, and a number in pinned memory that the GPU writes behind each operation.

What the host can put into the stream without waiting runs on the submitting thread; what waits for the stream (large transfers
from and to pageable memory, files, indirect grids, events) on the queue's worker.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from remora.drivers.cuda._ffi import call, driver, failure
from remora.drivers.cuda.buffer import CudaMemory, block_of
from remora.drivers.cuda.command_buffer import copy, fill, launch, step_of
from remora.drivers.cuda.ferry import Ferry, needs_ferry
from remora.drivers.cuda.memory import SLOT_BYTES
from remora.drivers.cuda.places import Launching, Place, check_grid, place, places, program_of
from remora.drivers.cuda.stream import Stream
from remora.errors import Error
from remora.hal.host_bytes import BytesInPieces, HostBytes
from remora.hal.host_queue import INLINE_NS, Step
from remora.hal.indirect import GRID_BYTES, read_grid
from remora.hal.late import NotMadeError
from remora.hal.records import CopyRecord, DispatchRecord, FillRecord, IndirectRecord, Launch, UpdateRecord, resolve
from remora.hal.stream_queue import StreamQueue

if TYPE_CHECKING:
    from remora.drivers.cuda.command_buffer import Changes, Recording
    from remora.drivers.cuda.device import CudaDevice
    from remora.drivers.cuda.executable import Program
    from remora.drivers.cuda.memory import Slot
    from remora.hal.buffer import Buffer, BufferView
    from remora.hal.command_buffer import CommandBuffer
    from remora.hal.executable import Grid, Kernel
    from remora.hal.semaphore import Points, Timepoint

__all__ = ["CudaQueue", "Place"]

#: Pageable host memory above this is copied by the worker: the copy waits for the stream.
INLINE_BYTES = 64 << 10


class CudaQueue(StreamQueue):
    """In-order execution on one stream."""

    __slots__ = ("_context", "_ferry", "_marks", "_marks_address", "_pinned", "_stream")

    def __init__(self, device: CudaDevice, ordinal: int) -> None:
        super().__init__(device, ordinal)
        self._context = device.context
        self._pinned = device.pinned
        self._ferry = Ferry(f"queue {ordinal}")
        self._marks_address = int(call(driver.cuMemHostAlloc, 8, 0))
        try:
            self._stream = Stream()
        except BaseException:
            driver.cuMemFreeHost(self._marks_address)
            raise
        self._marks = ctypes.c_uint64.from_address(self._marks_address)
        self._marks.value = 0

    @property
    def dispatches(self) -> int:
        """Kernels begun so far."""
        return self._stream.dispatches

    def destroy(self) -> None:
        """Give the stream back; the queue is closed."""
        self._ferry.close()
        self._stream.destroy()
        self._marks = ctypes.c_uint64(self._marks.value)
        driver.cuMemFreeHost(self._marks_address)

    # -- StreamQueue ----------------------------------------------------------------------------------------------------------

    def _start(self, work: Callable[..., None], args: tuple[Any, ...], value: int) -> None:
        self._context.enter()
        super()._start(work, args, value)

    def _mark(self, value: int) -> None:
        (code,) = driver.cuStreamWriteValue64(self._stream.handle, self._marks_address, value, 0)
        if code:
            raise failure(code, "cuStreamWriteValue64")

    def _marked(self) -> int:
        return self._marks.value

    def _fault(self) -> Error | None:
        return self._ask(driver.cuStreamQuery)

    def _synchronize(self) -> Error | None:
        return self._ask(driver.cuStreamSynchronize)

    def _ask(self, question: Callable[..., Any]) -> Error | None:
        """Why the stream will do nothing more, if it has failed."""
        try:
            self._context.enter()
        except Error as error:  # it was lost before this thread made it its own
            return error
        (code,) = question(self._stream.handle)
        return failure(code, "the GPU") if code and code != driver.CUresult.CUDA_ERROR_NOT_READY else None

    # -- dispatches -----------------------------------------------------------------------------------------------------------

    def _dispatch(
        self, kernel: Kernel, grid: Grid, bindings: Sequence[Buffer | BufferView], constants: bytes, wait: Points, signal: Points
    ) -> Timepoint:
        program = program_of(kernel)
        check_grid(kernel, grid)
        blocks: list[CudaMemory] = []
        addresses: list[int] = []
        try:
            for binding in bindings:
                block = block_of(binding)
                blocks.append(block)
                addresses.append(block.address + binding.offset)
        except NotMadeError:
            return self._submit(launch, (self._stream, Launching(program, grid, constants, places(bindings))), 0, wait, signal)
        return self._submit(self._launch_at, (program, grid, constants, addresses, blocks), 0, wait, signal)

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

    def _launch_at(
        self, program: Program, grid: Grid, constants: bytes, addresses: Sequence[int], blocks: Sequence[CudaMemory]
    ) -> None:
        self._stream.launch(program, grid, constants, addresses)

    def _launch_indirect(self, kernel: Kernel, program: Program, source: Place, constants: bytes, bindings: list[Place]) -> None:
        words = memoryview(bytearray(GRID_BYTES))
        self._fetch(words, source.address)
        grid = read_grid(kernel, words)
        check_grid(kernel, grid)
        launch(self._stream, Launching(program, grid, constants, bindings))

    def _get(self, into: memoryview, address: int) -> None:
        """Bytes of the GPU's memory, after everything that was begun; pageable ones are there when this returns."""
        if needs_ferry(into):
            self._ferry.down(self._stream, into, address)
        else:
            self._stream.read(into, address, into.nbytes)

    def _fetch(self, into: memoryview, address: int) -> None:
        """Bytes of the GPU's memory, after everything that was begun: they are there when this returns."""
        self._get(into, address)
        fault = self._synchronize()
        if fault is not None:
            raise fault

    # -- transfers ------------------------------------------------------------------------------------------------------------

    def _fill(self, buffer: Buffer | BufferView, pattern: bytes, wait: Points, signal: Points) -> Timepoint:
        return self._submit(fill, (self._stream, place(buffer), pattern), 0, wait, signal)

    def _update(self, buffer: Buffer, offset: int, data: memoryview, wait: Points, signal: Points) -> Timepoint:
        target = Place(block_of(buffer), offset, data.nbytes)
        return self._submit(self._run_write, (target, data), cost_of(data.nbytes), wait, signal)

    def _run_write(self, target: Place, data: memoryview) -> None:
        self._put(target.address, data)

    def _put(self, address: int, data: memoryview) -> None:
        """Host bytes into the GPU's memory; pageable ones may change when this returns."""
        if needs_ferry(data):
            self._ferry.up(self._stream, address, data)
        else:
            self._stream.write(address, data, data.nbytes)

    def _read(self, buffer: Buffer, offset: int, into: memoryview, wait: Points, signal: Points) -> Timepoint:
        source = Place(block_of(buffer), offset, into.nbytes)
        return self._submit(self._run_read, (source, into), cost_of(into.nbytes), wait, signal)

    def _run_read(self, source: Place, into: memoryview) -> None:
        """Through pinned memory when it is small: then nothing waits for the stream."""
        slot = self._pinned.take() if 0 < source.size <= SLOT_BYTES else None
        if slot is None:
            self._get(into, source.address)
        else:
            self._stream.read(slot.address, source.address, source.size)
            self._after = partial(self._hand_out, into, slot)

    def _hand_out(self, into: memoryview, slot: Slot) -> None:
        into[:] = slot.view[: into.nbytes]
        self._pinned.give_back(slot)

    def _copy(self, source: Buffer | BufferView, target: Buffer | BufferView, wait: Points, signal: Points) -> Timepoint:
        return self._submit(copy, (self._stream, place(source), place(target), source.size), 0, wait, signal)

    def _host_bytes(self, buffer: Buffer | BufferView) -> HostBytes:
        there = place(buffer)
        return BytesInPieces(
            there.size,
            lambda start, into: self._fetch(into, there.address + start),
            lambda start, data: self._put(there.address + start, data),
        )

    # -- recordings -----------------------------------------------------------------------------------------------------------

    def _execute(
        self,
        commands: CommandBuffer,
        table: tuple[Buffer | BufferView, ...],
        patched: dict[int, Launch],
        wait: Points,
        signal: Points,
    ) -> Timepoint:
        recording: Recording | None = commands.prepared
        changes = None if recording is None or self.device._profile is not None else recording.changes(table, patched)
        if recording is None or changes is None:
            return super()._execute(commands, table, patched, wait, signal)
        return self._submit(self._run_graph, (recording, changes), 0, wait, signal)

    def _run_graph(self, recording: Recording, changes: Changes) -> None:
        recording.launch(self._stream, changes)

    def _step(self, record: DispatchRecord | FillRecord | UpdateRecord | CopyRecord, table: Sequence[Buffer | BufferView]) -> Step:
        return step_of(self._stream, record, table)

    def _indirect_step(self, record: IndirectRecord, table: Sequence[Buffer | BufferView]) -> Step:
        kernel, bindings = record.kernel, places([resolve(binding, table) for binding in record.bindings])
        args = (kernel, program_of(kernel), place(resolve(record.grid, table)), record.constants, bindings)
        return Step(self._launch_indirect, args, INLINE_NS)


def cost_of(size: int) -> float:
    """How long a transfer of pageable memory keeps the thread that begins it, in nanoseconds: above INLINE_BYTES, too long."""
    return 0 if size <= INLINE_BYTES else INLINE_NS
