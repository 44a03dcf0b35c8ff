"""The hot path: how each operation is packed, what it is expected to cost, and how it runs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from ctypes import addressof, c_uint32, c_void_p, create_string_buffer
from functools import partial
from typing import TYPE_CHECKING, cast

from remora.drivers.cpu._ffi import HostPin, copy_bytes, set_bytes
from remora.drivers.cpu.command_buffer import MAX_WORKGROUPS, NS_PER_BYTE, Execution, IndirectCall, Part, Recording, Run
from remora.drivers.cpu.executable import Program
from remora.drivers.cpu.exports import MAX_BINDINGS, MAX_CONSTANTS
from remora.drivers.cpu.places import Place, block_of, numbers_of, place
from remora.errors import ClosedError, DeviceError, OutOfMemoryError, Status, UsageError
from remora.hal.buffer import Buffer, BufferView
from remora.hal.executable import Grid, Kernel
from remora.hal.host_bytes import BytesInPlace, HostBytes
from remora.hal.host_queue import INLINE_NS, HostQueue, Step
from remora.hal.indirect import GRID_BYTES, read_grid
from remora.hal.late import NotMadeError
from remora.hal.records import DispatchRecord, Launch, name_record
from remora.hal.semaphore import Points, Timepoint

if TYPE_CHECKING:
    from remora.drivers.cpu.buffer import AnyBlock, CpuBuffer
    from remora.drivers.cpu.device import CpuDevice
    from remora.drivers.cpu.executable import CpuKernel
    from remora.hal.command_buffer import CommandBuffer

__all__ = ["CpuQueue"]

#: Larger copies release the GIL; for smaller ones that costs more than it gives.
HOLD_GIL_BYTES = 16 << 10
#: Longer patterns than one byte are spread by copies of at most this much, which stay in the cache.
FILL_BLOCK = 256 << 10
CALL_BYTES = 24 + MAX_CONSTANTS * 4 + MAX_BINDINGS * 16
#: What pool.c returns when a workgroup's local memory could not be allocated.
NO_LOCAL_MEMORY = -(1 << 31)


class CpuQueue(HostQueue):
    """In-order execution. A dispatch is one C call that packs nothing and allocates nothing.

    A kernel's first dispatch goes to the worker thread, because it may be long; afterwards its measured cost decides.
    """

    __slots__ = ("_call", "_call_address", "_failed", "_failed_address", "_pool", "_run_packed", "dispatches")

    def __init__(self, device: CpuDevice, ordinal: int) -> None:
        super().__init__(device, ordinal)
        self._call = create_string_buffer(CALL_BYTES)  # one operation of a queue runs at a time, so one packed call is enough
        self._call_address = c_void_p(addressof(self._call))
        self._failed = c_uint32()  # the record that failed, for the same reason one is enough
        self._failed_address = c_void_p(addressof(self._failed))
        self._pool = device.pool
        self._run_packed = device.pool.dispatch
        self.dispatches = 0

    def _dispatch(
        self, kernel: Kernel, grid: Grid, bindings: Sequence[Buffer | BufferView], constants: bytes, wait: Points, signal: Points
    ) -> Timepoint:
        program = cast("CpuKernel", kernel).program
        if program is None:
            raise ClosedError(f"the executable of {kernel.name} was closed; load it again")
        x, y, z = grid
        workgroups = x * y * z
        if workgroups > MAX_WORKGROUPS:
            check_workgroups(kernel, x, y, z)
        blocks: list[AnyBlock] = []
        numbers: list[int] = []
        sizes: list[int] = []
        try:
            for binding in bindings:
                owner: CpuBuffer = binding.buffer  # type: ignore[assignment]  # the queue has checked that it is
                block = owner._memory or owner.memory
                blocks.append(block)
                numbers.append(block.address + binding.offset)
                sizes.append(binding.size)
        except NotMadeError:
            args = (program, grid, constants, [place(binding) for binding in bindings])
            return self._submit(self._run_late, args, INLINE_NS, wait, signal)
        numbers += sizes
        ns_each = program.record.ns_per_workgroup
        cost_ns = ns_each * workgroups if ns_each >= 0 else INLINE_NS
        return self._submit(self._run, (program, x, y, z, constants, numbers, blocks), cost_ns, wait, signal)

    def _dispatch_indirect(
        self,
        kernel: Kernel,
        grid: Buffer | BufferView,
        bindings: Sequence[Buffer | BufferView],
        constants: bytes,
        wait: Points,
        signal: Points,
    ) -> Timepoint:
        program = cast("CpuKernel", kernel).program
        if program is None:
            raise ClosedError(f"the executable of {kernel.name} was closed; load it again")
        args = (kernel, program, place(grid), constants, [place(binding) for binding in bindings])
        return self._submit(self._run_indirect, args, INLINE_NS, wait, signal)

    def _run_indirect(self, kernel: Kernel, program: Program, source: Place, constants: bytes, places: list[Place]) -> None:
        grid = read_grid(kernel, source.block.view[source.offset : source.offset + GRID_BYTES])
        check_workgroups(kernel, *grid)
        self._run_late(program, grid, constants, places)

    def _run_late(self, program: Program, grid: Grid, constants: bytes, places: list[Place]) -> None:
        self._run(program, *grid, constants, numbers_of(places), [])

    def _run(self, program: Program, x: int, y: int, z: int, constants: bytes, numbers: list[int], blocks: list[AnyBlock]) -> None:
        program.pack_into(self._call, 0, program.address, x, y, z, 0, constants, *numbers)
        code = self._run_packed(self._call_address)
        self.dispatches += 1
        if code:
            raise kernel_error(program.name, code)

    def _fill(self, buffer: Buffer | BufferView, pattern: bytes, wait: Points, signal: Points) -> Timepoint:
        args = (block_of(buffer), buffer.offset, buffer.size, pattern)
        return self._submit(fill, args, buffer.size * NS_PER_BYTE, wait, signal)

    def _update(self, buffer: Buffer, offset: int, data: memoryview, wait: Points, signal: Points) -> Timepoint:
        return self._submit(write, (block_of(buffer), offset, data), data.nbytes * NS_PER_BYTE, wait, signal)

    def _read(self, buffer: Buffer, offset: int, into: memoryview, wait: Points, signal: Points) -> Timepoint:
        return self._submit(read, (block_of(buffer), offset, into), into.nbytes * NS_PER_BYTE, wait, signal)

    def _copy(self, source: Buffer | BufferView, target: Buffer | BufferView, wait: Points, signal: Points) -> Timepoint:
        args = (block_of(source), source.offset, block_of(target), target.offset, source.size)
        return self._submit(copy, args, source.size * NS_PER_BYTE, wait, signal)

    def _host_bytes(self, buffer: Buffer | BufferView) -> HostBytes:
        return BytesInPlace(partial(block_of(buffer).at, buffer.offset, buffer.size))

    def _execute(
        self,
        commands: CommandBuffer,
        table: tuple[Buffer | BufferView, ...],
        patched: dict[int, Launch],
        wait: Points,
        signal: Points,
    ) -> Timepoint:
        recording: Recording | None = commands.prepared
        if recording is None:
            raise ClosedError("the command buffer was closed meanwhile; record a new one")
        cost_ns = recording.cost_ns(table, patched)
        execution = recording.open(table, patched)
        try:
            parts = execution.bind(self._pool.relocate)
        except NotMadeError:
            return self._submit(self._play_late, (execution,), cost_ns, wait, signal)
        return self._submit(self._play_parts, (execution, parts), cost_ns, wait, signal)

    def _play_late(self, execution: Execution) -> None:
        self._play_parts(execution, execution.bind(self._pool.relocate))

    def _play_parts(self, execution: Execution, parts: list[Part]) -> None:
        recording = execution.recording
        for part in parts:
            if isinstance(part, Run):
                self._play_run(recording, part)
            elif isinstance(part, IndirectCall):
                self._play(recording.records, {part.number: Step(self._run_indirect, part[1:])})
            else:
                self._play(recording.records, {part[0]: self._event_step(part[1])})

    def _play_run(self, recording: Recording, run: Run) -> None:
        code = self._pool.play(run.address, run.bytes, self._failed_address)
        if not code:
            self.dispatches += len(run.calls)
            return
        number = self._failed.value
        self.dispatches += bisect_right(run.calls, number)
        name = cast("DispatchRecord", recording.records[number]).kernel.name
        raise name_record(kernel_error(name, code), recording.records, number)


def check_workgroups(kernel: Kernel, x: int, y: int, z: int) -> None:
    """Raise UsageError for more workgroups than the pool counts."""
    if x * y * z > MAX_WORKGROUPS:
        raise UsageError(f"{kernel.name}: {x * y * z} workgroups are more than 2**62", code=Status.OUT_OF_RANGE)


def kernel_error(name: str, code: int) -> DeviceError:
    """Why a dispatch failed."""
    if code == NO_LOCAL_MEMORY:
        return OutOfMemoryError(
            f"{name}: no memory for its workgroups' local memory; close buffers, or open cpu with fewer threads"
        )
    return DeviceError(f"kernel {name} failed: a workgroup returned {code}; what the code means is the kernel's to say")


def fill(block: AnyBlock, offset: int, size: int, pattern: bytes) -> None:
    """Repeat a pattern over a range, which holds it a whole number of times."""
    address = block.address + offset
    if pattern.count(pattern[0]) == len(pattern):
        set_bytes(address, pattern[0], size)
        return
    if size:
        block.view[offset : offset + len(pattern)] = pattern
    done = len(pattern)
    while done < size:
        step = min(done, size - done, FILL_BLOCK)
        copy_bytes(address + done, address, step)
        done += step


def write(block: AnyBlock, offset: int, data: memoryview) -> None:
    """Copy host bytes into a range."""
    size = data.nbytes
    if size <= HOLD_GIL_BYTES:
        block.view[offset : offset + size] = data
    else:
        pin = HostPin(data)
        copy_bytes(block.address + offset, pin.address, size)


def read(block: AnyBlock, offset: int, into: memoryview) -> None:
    """Copy a range into host memory."""
    size = into.nbytes
    if size <= HOLD_GIL_BYTES:
        into[:] = block.view[offset : offset + size]
    else:
        pin = HostPin(into)
        copy_bytes(pin.address, block.address + offset, size)


def copy(source: AnyBlock, source_offset: int, target: AnyBlock, target_offset: int, size: int) -> None:
    """Copy between two ranges that do not overlap."""
    copy_bytes(target.address + target_offset, source.address + source_offset, size)
