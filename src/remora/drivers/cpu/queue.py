"""The hot path: how each operation is packed, what it is expected to cost, and how it runs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from ctypes import addressof, c_uint32, c_void_p, create_string_buffer
from typing import TYPE_CHECKING, cast

from remora.drivers.cpu._ffi import HostPin, copy_bytes, set_bytes
from remora.drivers.cpu.command_buffer import MAX_WORKGROUPS, NS_PER_BYTE, Recording, Run, block_of
from remora.drivers.cpu.executable import MAX_BINDINGS, MAX_CONSTANTS, Program
from remora.errors import ClosedError, DeviceError, OutOfMemoryError, Status, UsageError
from remora.hal.buffer import Buffer, BufferView
from remora.hal.executable import Grid, Kernel
from remora.hal.host_queue import INLINE_NS, HostQueue
from remora.hal.records import DispatchRecord, EventRecord, name_record
from remora.hal.semaphore import Timepoint

if TYPE_CHECKING:
    from remora.drivers.cpu.buffer import CpuBuffer
    from remora.drivers.cpu.device import CpuDevice
    from remora.drivers.cpu.executable import CpuKernel
    from remora.drivers.cpu.memory import Block
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
        self,
        kernel: Kernel,
        grid: Grid,
        bindings: Sequence[Buffer | BufferView],
        constants: bytes,
        wait: tuple[Timepoint, ...],
        signal: tuple[Timepoint, ...],
    ) -> Timepoint:
        program = cast("CpuKernel", kernel).program
        if program is None:
            raise ClosedError(f"the executable of {kernel.name} was closed; load it again")
        x, y, z = grid
        workgroups = x * y * z
        if workgroups > MAX_WORKGROUPS:
            raise UsageError(f"{kernel.name}: {workgroups} workgroups are more than 2**62", code=Status.OUT_OF_RANGE)
        blocks: list[Block] = []
        numbers: list[int] = []
        sizes: list[int] = []
        for binding in bindings:
            owner: CpuBuffer = binding.buffer  # type: ignore[assignment]  # the queue has checked that it is
            block = owner._block or owner.block
            blocks.append(block)
            numbers.append(block.address + binding.offset)
            sizes.append(binding.size)
        numbers += sizes
        ns_each = program.record.ns_per_workgroup
        cost_ns = ns_each * workgroups if ns_each >= 0 else INLINE_NS
        return self._submit(self._run, (program, x, y, z, constants, numbers, blocks), cost_ns, wait, signal)

    def _run(self, program: Program, x: int, y: int, z: int, constants: bytes, numbers: list[int], blocks: list[Block]) -> None:
        program.pack_into(self._call, 0, program.address, x, y, z, 0, constants, *numbers)
        code = self._run_packed(self._call_address)
        self.dispatches += 1
        if code:
            raise kernel_error(program.name, code)

    def _fill(
        self, buffer: Buffer | BufferView, pattern: bytes, wait: tuple[Timepoint, ...], signal: tuple[Timepoint, ...]
    ) -> Timepoint:
        args = (block_of(buffer), buffer.offset, buffer.size, pattern)
        return self._submit(fill, args, buffer.size * NS_PER_BYTE, wait, signal)

    def _update(
        self, buffer: Buffer, offset: int, data: memoryview, wait: tuple[Timepoint, ...], signal: tuple[Timepoint, ...]
    ) -> Timepoint:
        return self._submit(write, (block_of(buffer), offset, data), data.nbytes * NS_PER_BYTE, wait, signal)

    def _read(
        self, buffer: Buffer, offset: int, into: memoryview, wait: tuple[Timepoint, ...], signal: tuple[Timepoint, ...]
    ) -> Timepoint:
        return self._submit(read, (block_of(buffer), offset, into), into.nbytes * NS_PER_BYTE, wait, signal)

    def _copy(
        self,
        source: Buffer | BufferView,
        target: Buffer | BufferView,
        wait: tuple[Timepoint, ...],
        signal: tuple[Timepoint, ...],
    ) -> Timepoint:
        args = (block_of(source), source.offset, block_of(target), target.offset, source.size)
        return self._submit(copy, args, source.size * NS_PER_BYTE, wait, signal)

    def _execute(
        self,
        commands: CommandBuffer,
        table: tuple[Buffer | BufferView, ...],
        patched: dict[int, DispatchRecord],
        wait: tuple[Timepoint, ...],
        signal: tuple[Timepoint, ...],
    ) -> Timepoint:
        recording: Recording | None = commands.prepared
        if recording is None:
            raise ClosedError("the command buffer was closed meanwhile; record a new one")
        cost_ns = recording.cost_ns(table, patched)
        parts, blocks = recording.bind(self._pool.relocate, table, patched)
        return self._submit(self._play_parts, (recording, parts, blocks), cost_ns, wait, signal)

    def _play_parts(self, recording: Recording, parts: list[Run | tuple[int, EventRecord]], blocks: list[Block]) -> None:
        for part in parts:
            if isinstance(part, Run):
                self._play_run(recording, part)
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

    def _barrier(self, wait: tuple[Timepoint, ...], signal: tuple[Timepoint, ...]) -> Timepoint:
        return self._submit(nothing, (), 0, wait, signal)


def kernel_error(name: str, code: int) -> DeviceError:
    """Why a dispatch failed."""
    if code == NO_LOCAL_MEMORY:
        return OutOfMemoryError(
            f"{name}: no memory for its workgroups' local memory; close buffers, or open cpu with fewer threads"
        )
    return DeviceError(f"kernel {name} failed: a workgroup returned {code}; what the code means is the kernel's to say")


def fill(block: Block, offset: int, size: int, pattern: bytes) -> None:
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


def write(block: Block, offset: int, data: memoryview) -> None:
    """Copy host bytes into a range."""
    size = data.nbytes
    if size <= HOLD_GIL_BYTES:
        block.view[offset : offset + size] = data
    else:
        pin = HostPin(data)
        copy_bytes(block.address + offset, pin.address, size)


def read(block: Block, offset: int, into: memoryview) -> None:
    """Copy a range into host memory."""
    size = into.nbytes
    if size <= HOLD_GIL_BYTES:
        into[:] = block.view[offset : offset + size]
    else:
        pin = HostPin(into)
        copy_bytes(pin.address, block.address + offset, size)


def copy(source: Block, source_offset: int, target: Block, target_offset: int, size: int) -> None:
    """Copy between two ranges that do not overlap."""
    copy_bytes(target.address + target_offset, source.address + source_offset, size)


def nothing() -> None:
    """The work of a barrier."""
