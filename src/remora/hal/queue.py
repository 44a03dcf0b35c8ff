"""Queues: where work is submitted (requirements H11, H17).

A queue runs its operations in submission order, each after all before it; several queues of a device run beside each other.
Every operation returns a timepoint on the queue's timeline. `wait` adds timepoints that must be reached first, `signal`
timepoints that are reached afterwards. Submitting does not wait for the device; only a full window makes it wait for room.
When an operation fails the queue has failed: everything behind it ends with the same cause, and the next queue is untouched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, final

from remora.errors import ClosedError, Status, UnsupportedError, UsageError
from remora.hal.buffer import Access, Buffer, BufferView, check_range
from remora.hal.dlpack import host_bytes
from remora.hal.extension import MAX_OPERANDS, MAX_PAYLOAD, check_extension
from remora.hal.indirect import GRID_BYTES, check_grid_place
from remora.hal.late import outcome
from remora.hal.page_table import submit_using, uses_of
from remora.hal.semaphore import Points, Semaphore, Timepoint

if TYPE_CHECKING:
    from remora.hal.command_buffer import CommandBuffer
    from remora.hal.device import Device
    from remora.hal.executable import Constants, Grid, Kernel
    from remora.hal.file import File
    from remora.hal.records import Launch, Patch

__all__ = ["Bindings", "Queue", "Timepoints"]

Bindings: TypeAlias = Sequence[Buffer | BufferView]
Timepoints: TypeAlias = "Timepoint | Iterable[Timepoint]"
_NONE: Points = ()
_NOTHING = memoryview(b"")


class Queue(ABC):
    """An ordered stream of device work. `device.queue` is the first, `device.queues` all of them.

    Example: `done = device.queue.dispatch(add, add.grid_for(n), [x, y, out], (n,)); done.wait(timeout=5)`.
    """

    __slots__ = ("device", "ordinal", "timeline")

    def __init__(self, device: Device, ordinal: int, timeline: Semaphore) -> None:
        self.device = device
        self.ordinal = ordinal
        self.timeline = timeline

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ordinal} of {self.device!r} at {self.timeline.value}>"

    @final
    def dispatch(
        self,
        kernel: Kernel,
        grid: Grid,
        bindings: Bindings,
        constants: Constants = b"",
        *,
        wait: Timepoints = _NONE,
        signal: Timepoints = _NONE,
    ) -> Timepoint:
        """Run `kernel` over `grid` = (x, y, z) workgroups. Raises UsageError when the kernel's contract is not kept."""
        if kernel.executable.device is not self.device:
            raise UsageError(f"{kernel.name} was loaded on another device; load the bundle on this one")
        packed = kernel.pack(constants)
        uses = kernel.check(grid, bindings, packed)
        if wait is not _NONE or signal is not _NONE:
            wait, signal = timepoints(wait), timepoints(signal)
        if uses:
            return submit_using(uses, partial(self._dispatch, kernel, grid, bindings, packed, timepoints(wait), timepoints(signal)))
        return self._dispatch(kernel, grid, bindings, packed, wait, signal)

    @final
    def dispatch_indirect(
        self,
        kernel: Kernel,
        grid: Buffer | BufferView,
        bindings: Bindings,
        constants: Constants = b"",
        *,
        wait: Timepoints = _NONE,
        signal: Timepoints = _NONE,
    ) -> Timepoint:
        """Run `kernel` over the grid that the first 12 bytes of `grid` hold at this operation's turn: x y z as u32 (H17).

        They start at a multiple of 4 bytes. Raises UsageError when the kernel's contract is not kept; a grid that turns out to
        be too large, or not the one that the kernel was compiled for, fails the queue with the same error.
        """
        if kernel.executable.device is not self.device:
            raise UsageError(f"{kernel.name} was loaded on another device; load the bundle on this one")
        packed = kernel.pack(constants)
        uses = kernel.check_operands(bindings, packed)
        check_grid_place(grid)
        points = timepoints(wait), timepoints(signal)
        if self._own(grid) or uses:
            uses = [*uses, *uses_of([(grid, GRID_BYTES, Access.READ)])]
            return submit_using(uses, lambda: self._dispatch_indirect(kernel, grid, bindings, packed, *points))
        return self._dispatch_indirect(kernel, grid, bindings, packed, *points)

    @final
    def fill(
        self,
        buffer: Buffer | BufferView,
        pattern: bytes = b"\0",
        *,
        wait: Timepoints = _NONE,
        signal: Timepoints = _NONE,
    ) -> Timepoint:
        """Repeat a pattern of 1, 2 or 4 bytes over the buffer or view."""
        if len(pattern) not in (1, 2, 4):
            raise UsageError(f"a fill pattern has 1, 2 or 4 bytes, not {len(pattern)}")
        if buffer.size % len(pattern) or buffer.offset % len(pattern):
            raise UsageError(f"{buffer.size} bytes at {buffer.offset} are no whole number of {len(pattern)}-byte patterns")
        if self._own(buffer):
            uses = uses_of([(buffer, buffer.size, Access.WRITE)])
            return submit_using(uses, partial(self._fill, buffer, bytes(pattern), timepoints(wait), timepoints(signal)))
        return self._fill(buffer, bytes(pattern), timepoints(wait), timepoints(signal))

    @final
    def update(
        self,
        buffer: Buffer | BufferView,
        data: Any,
        offset: int = 0,
        *,
        wait: Timepoints = _NONE,
        signal: Timepoints = _NONE,
    ) -> Timepoint:
        """Copy host bytes to `offset`. `data` (buffer protocol or CPU DLPack, contiguous) must not change until it is done."""
        view = host_bytes(data)
        check_range(offset, view.nbytes, buffer.size)
        if self._own(buffer):
            uses = uses_of([(BufferView(buffer.buffer, buffer.offset + offset, view.nbytes), view.nbytes, Access.WRITE)])
            return submit_using(
                uses, partial(self._update, buffer.buffer, buffer.offset + offset, view, timepoints(wait), timepoints(signal))
            )
        return self._update(buffer.buffer, buffer.offset + offset, view, timepoints(wait), timepoints(signal))

    @final
    def read(
        self,
        buffer: Buffer | BufferView,
        into: Any,
        offset: int = 0,
        *,
        wait: Timepoints = _NONE,
        signal: Timepoints = _NONE,
    ) -> Timepoint:
        """Copy `len(into)` bytes from `offset` to host memory (writable, contiguous); `into` is valid when it is done."""
        view = host_bytes(into, writable=True)
        check_range(offset, view.nbytes, buffer.size)
        if self._own(buffer):
            uses = uses_of([(BufferView(buffer.buffer, buffer.offset + offset, view.nbytes), view.nbytes, Access.READ)])
            return submit_using(
                uses, partial(self._read, buffer.buffer, buffer.offset + offset, view, timepoints(wait), timepoints(signal))
            )
        return self._read(buffer.buffer, buffer.offset + offset, view, timepoints(wait), timepoints(signal))

    @final
    def copy(
        self,
        source: Buffer | BufferView,
        target: Buffer | BufferView,
        *,
        wait: Timepoints = _NONE,
        signal: Timepoints = _NONE,
    ) -> Timepoint:
        """Copy all of `source` to the start of `target`, which must be as large. The two ranges must not overlap."""
        if target.size < source.size:
            raise UsageError(f"the target has {target.size} bytes, the source {source.size}", code=Status.OUT_OF_RANGE)
        overlap = source.offset < target.offset + source.size and target.offset < source.offset + source.size
        if source.buffer is target.buffer and overlap and source.size:
            raise UsageError("source and target overlap; copy through another buffer")
        if self._own(source) | self._own(target):
            uses = uses_of([(source, source.size, Access.READ), (target, source.size, Access.WRITE)])
            return submit_using(uses, partial(self._copy, source, target, timepoints(wait), timepoints(signal)))
        return self._copy(source, target, timepoints(wait), timepoints(signal))

    @final
    def read_file(
        self,
        file: File,
        file_offset: int,
        buffer: Buffer | BufferView,
        *,
        wait: Timepoints = _NONE,
        signal: Timepoints = _NONE,
    ) -> Timepoint:
        """Fill the buffer or view with the bytes at `file_offset` of a file (H23).

        A file that ends before fails the queue (UsageError, OUT_OF_RANGE), and so does what the system says (DeviceError).
        """
        file._check(self.device, Access.READ, file_offset, buffer.size)
        virtual = self._own(buffer)
        points = timepoints(wait), timepoints(signal)

        def submit() -> Timepoint:
            return file._lend(lambda: self._read_file(file, file_offset, buffer, *points))

        return submit_using(uses_of([(buffer, buffer.size, Access.WRITE)]), submit) if virtual else submit()

    @final
    def write_file(
        self,
        buffer: Buffer | BufferView,
        file: File,
        file_offset: int = 0,
        *,
        wait: Timepoints = _NONE,
        signal: Timepoints = _NONE,
    ) -> Timepoint:
        """Write all of the buffer or view at `file_offset` of a file, which grows as needed (H23).

        When it is done the system has the bytes; they need not be on the disk yet. What the system says against it fails the
        queue (DeviceError), and some of the bytes may have been written then.
        """
        file._check(self.device, Access.WRITE, file_offset, buffer.size)
        virtual = self._own(buffer)
        points = timepoints(wait), timepoints(signal)

        def submit() -> Timepoint:
            return file._lend(lambda: self._write_file(buffer, file, file_offset, *points))

        return submit_using(uses_of([(buffer, buffer.size, Access.READ)]), submit) if virtual else submit()

    @final
    def execute(
        self,
        commands: CommandBuffer,
        table: Bindings = (),
        patches: Mapping[int, Patch] | None = None,
        *,
        wait: Timepoints = _NONE,
        signal: Timepoints = _NONE,
    ) -> Timepoint:
        """Run a sealed recording as one operation, its slots filled from `table`, dispatches changed by `patches` (H18).

        `patches` are by the numbers that `commands.dispatch` returned. Everything is checked before anything runs. Raises
        UsageError for a table or patch that does not fit, ClosedError when something that a record names was closed.
        """
        if commands.device is not self.device:
            raise UsageError("the command buffer was recorded for another device; record it on this one")
        entries = tuple(table)
        patched, uses = commands.check_execute(entries, patches or {})
        points = timepoints(wait), timepoints(signal)
        commands.take()
        try:
            if uses:
                return submit_using(uses, partial(self._execute, commands, entries, patched, *points))
            return self._execute(commands, entries, patched, *points)
        except BaseException:
            commands.give_back()
            raise

    @final
    def barrier(self, *, wait: Timepoints = _NONE, signal: Timepoints = _NONE) -> Timepoint:
        """No work: the timepoint when everything before it on this queue, and `wait`, is done."""
        return self._barrier(timepoints(wait), timepoints(signal))

    @final
    def allocate(self, size: int, *, wait: Timepoints = _NONE, signal: Timepoints = _NONE) -> tuple[Buffer, Timepoint]:
        """A buffer of `size` bytes whose memory comes at this operation's turn (H17), and the timepoint when it is there.

        Operations behind this one on this queue may name it at once, others once the timepoint is reached. When the memory
        cannot be had this operation fails like any other, and each use of the buffer raises why. Raises OutOfMemoryError when
        no heap could ever have that much.
        """
        buffer = self.device.late_buffer(size)
        try:
            return buffer, self.provide(buffer, wait=wait, signal=signal)
        except BaseException:
            buffer.close()
            raise

    @final
    def provide(self, buffer: Buffer, *, wait: Timepoints = _NONE, signal: Timepoints = _NONE) -> Timepoint:
        """Give a buffer of `device.late_buffer` its memory at this operation's turn: the second half of `allocate`."""
        self._own(buffer)
        if not buffer._late:
            raise UsageError("the buffer has its memory, or a queue provides it", code=Status.FAILED_PRECONDITION)
        wait, signal = timepoints(wait), timepoints(signal)
        buffer._late = False
        try:
            return self._provide(buffer, wait, (*signal, outcome(buffer)))
        except BaseException:
            buffer._late = True
            raise

    @final
    def deallocate(self, buffer: Buffer, *, wait: Timepoints = _NONE, signal: Timepoints = _NONE) -> Timepoint:
        """Give a buffer's memory back at this operation's turn (H17). The buffer, however it was made, is closed at once.

        What was submitted before may still use the memory, on any queue: then it goes when that is done. Raises ClosedError
        when the buffer was closed or deallocated before, UsageError while it is mapped.
        """
        virtual = self._own(buffer)
        if buffer.buffer is not buffer or virtual:
            raise UsageError("this has no memory of its own: deallocate its buffer, or close its reservation")
        if buffer._maps:
            raise UsageError("the buffer is mapped: close the mapping first", code=Status.FAILED_PRECONDITION)
        wait, signal = timepoints(wait), timepoints(signal)
        buffer.failure = ClosedError(f"the buffer of {buffer.size} bytes was deallocated; allocate a new one")
        buffer._closed = buffer._guarded = True
        try:
            return self._deallocate(buffer, wait, signal)
        except BaseException:
            buffer.failure, buffer._closed, buffer._guarded = None, False, False
            raise

    @final
    def extension(
        self,
        namespace: str,
        operation: int,
        payload: Any = b"",
        buffers: Bindings = (),
        *,
        wait: Timepoints = _NONE,
        signal: Timepoints = _NONE,
    ) -> Timepoint:
        """Run an operation of the vendor's own (H17): `device.info.extensions` says which there are.

        What `payload` (up to 64 KiB, copied now) and `buffers` (up to 64) mean is the extension's to say; what it finds wrong with
        them fails the queue. Raises UnsupportedError, which lists what there is, for an unknown namespace or operation.
        """
        check_extension(self.device, namespace, operation)
        data, operands = bytes(host_bytes(payload)), tuple(buffers)
        if len(data) > MAX_PAYLOAD or len(operands) > MAX_OPERANDS:
            raise UsageError(
                f"{len(data)} bytes and {len(operands)} buffers; an extension takes {MAX_PAYLOAD} and {MAX_OPERANDS}: use a buffer",
                code=Status.OUT_OF_RANGE,
            )
        for operand in operands:
            self._own(operand)
        points = timepoints(wait), timepoints(signal)
        uses = uses_of((operand, operand.size, Access.READ_WRITE) for operand in operands)
        return submit_using(uses, lambda: self._extension(namespace, operation, data, operands, *points))

    @final
    def host_call(self, call: Callable[[], object], *, wait: Timepoints = _NONE, signal: Timepoints = _NONE) -> Timepoint:
        """Run `call()` in this process, after everything before it on this queue and before everything behind it (H17, H27).

        It runs on a thread of the queue's own and may submit, close and raise; what it raises fails the queue. While it runs
        the queue stands still, so it must not wait for this queue.
        """
        if not callable(call):
            raise UsageError(f"a host call is a function of no arguments, not {call!r}")
        return self._host_call(call, timepoints(wait), timepoints(signal))

    @final
    def flush(self) -> None:
        """See to it that everything submitted so far is on its way to the device, without waiting for anything."""
        self._flush()

    @final
    def wait_idle(self, timeout: float | None = None) -> None:
        """Block until everything submitted to this queue so far is done."""
        self.barrier().wait(timeout)

    @final
    def keep(self, buffer: Buffer | BufferView, access: Access, *, wait: Timepoints = _NONE) -> Timepoint:
        """No work, but the buffer's memory stays until `wait` is reached: for what uses it beside the queue, in this way."""
        points = timepoints(wait), _NONE
        if self._own(buffer):
            uses = uses_of([(buffer, buffer.size, access)])
            return submit_using(uses, partial(self._update, buffer.buffer, buffer.offset, _NOTHING, *points))
        return self._update(buffer.buffer, buffer.offset, _NOTHING, *points)

    def _own(self, buffer: Buffer | BufferView) -> bool:
        """Check that it is this device's and open; whether its memory is virtual."""
        owner = buffer.buffer
        if owner.device is not self.device:
            raise UsageError("the buffer belongs to another device; copy it through host memory")
        if owner._guarded:
            owner._check_open()
            return True
        return False

    @abstractmethod
    def _dispatch(
        self, kernel: Kernel, grid: Grid, bindings: Bindings, constants: bytes, wait: Points, signal: Points
    ) -> Timepoint: ...

    @abstractmethod
    def _fill(self, buffer: Buffer | BufferView, pattern: bytes, wait: Points, signal: Points) -> Timepoint: ...

    @abstractmethod
    def _update(self, buffer: Buffer, offset: int, data: memoryview, wait: Points, signal: Points) -> Timepoint: ...

    @abstractmethod
    def _read(self, buffer: Buffer, offset: int, into: memoryview, wait: Points, signal: Points) -> Timepoint: ...

    @abstractmethod
    def _copy(self, source: Buffer | BufferView, target: Buffer | BufferView, wait: Points, signal: Points) -> Timepoint: ...

    @abstractmethod
    def _read_file(self, file: File, file_offset: int, target: Buffer | BufferView, wait: Points, signal: Points) -> Timepoint: ...

    @abstractmethod
    def _write_file(self, source: Buffer | BufferView, file: File, file_offset: int, wait: Points, signal: Points) -> Timepoint: ...

    @abstractmethod
    def _execute(
        self,
        commands: CommandBuffer,
        table: tuple[Buffer | BufferView, ...],
        patched: dict[int, Launch],
        wait: Points,
        signal: Points,
    ) -> Timepoint:
        """Driver: run `commands.records` in order, with those in `patched` in place of the recorded ones."""

    @abstractmethod
    def _barrier(self, wait: Points, signal: Points) -> Timepoint: ...

    # A driver without one of these leaves it out.

    def _extension(
        self, namespace: str, operation: int, payload: bytes, buffers: Bindings, wait: Points, signal: Points
    ) -> Timepoint:
        """Driver: run one of the operations that `DeviceInfo.extensions` declares."""
        raise UnsupportedError(f"{self.device.uri} has no extensions")

    def _dispatch_indirect(
        self, kernel: Kernel, grid: Buffer | BufferView, bindings: Bindings, constants: bytes, wait: Points, signal: Points
    ) -> Timepoint:
        raise UnsupportedError(f"{self.device.uri} takes grids from the host only: read the buffer and dispatch")

    def _provide(self, buffer: Buffer, wait: Points, signal: Points) -> Timepoint:
        raise UnsupportedError(f"{self.device.uri} allocates at once only: use device.allocate")

    def _deallocate(self, buffer: Buffer, wait: Points, signal: Points) -> Timepoint:
        """Driver: give the memory back at the operation's turn, or when what uses it is done."""
        raise UnsupportedError(f"{self.device.uri} gives memory back at close() only")

    def _host_call(self, call: Callable[[], object], wait: Points, signal: Points) -> Timepoint:
        raise UnsupportedError(f"{self.device.uri} has no host calls; wait for a timepoint and go on from there")

    def _flush(self) -> None:  # noqa: B027 - most drivers have nothing to send
        """Driver: send what is only written."""


def timepoints(given: Timepoints) -> Points:
    """One timepoint or several, as a tuple. Raises UsageError for anything else."""
    if given == ():
        return ()
    try:
        points = (given,) if isinstance(given, Timepoint) else tuple(given)
    except TypeError:
        points = (given,)  # type: ignore[assignment]  # told below
    for point in points:
        if not isinstance(point, Timepoint):
            raise UsageError(
                f"an operation waits for and signals timepoints, semaphore.at(1) or what another operation returned, not {point!r}"
            )
    return points
