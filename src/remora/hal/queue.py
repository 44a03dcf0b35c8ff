"""Queues: where work is submitted (requirements H11, H17).

A queue runs its operations in submission order, each after all before it; several queues of a device run beside each other.
Every operation returns a timepoint on the queue's timeline. `wait` adds timepoints that must be reached first, `signal`
timepoints that are reached afterwards. Submitting does not wait for the device; only a full window makes it wait for room.
When an operation fails the queue has failed: everything behind it ends with the same cause, and the next queue is untouched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, final

from remora.errors import Status, UsageError
from remora.hal.buffer import Buffer, BufferView, check_range
from remora.hal.dlpack import host_bytes
from remora.hal.semaphore import Semaphore, Timepoint

if TYPE_CHECKING:
    from remora.hal.command_buffer import CommandBuffer
    from remora.hal.device import Device
    from remora.hal.executable import Constants, Grid, Kernel
    from remora.hal.records import DispatchRecord, Patch

__all__ = ["Bindings", "Queue", "Timepoints"]

Bindings: TypeAlias = Sequence[Buffer | BufferView]
Timepoints: TypeAlias = "Timepoint | Iterable[Timepoint]"
_NONE: tuple[Timepoint, ...] = ()


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
        kernel.check(grid, bindings, packed)
        if wait is not _NONE or signal is not _NONE:
            wait, signal = timepoints(wait), timepoints(signal)
        return self._dispatch(kernel, grid, bindings, packed, wait, signal)

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
        self._own(buffer)
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
        self._own(buffer)
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
        self._own(buffer)
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
        self._own(source)
        self._own(target)
        return self._copy(source, target, timepoints(wait), timepoints(signal))

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
        patched = commands.check_execute(entries, patches or {})
        wait, signal = timepoints(wait), timepoints(signal)
        commands.take()
        try:
            return self._execute(commands, entries, patched, wait, signal)
        except BaseException:
            commands.give_back()
            raise

    @final
    def barrier(self, *, wait: Timepoints = _NONE, signal: Timepoints = _NONE) -> Timepoint:
        """No work: the timepoint when everything before it on this queue, and `wait`, is done."""
        return self._barrier(timepoints(wait), timepoints(signal))

    @final
    def wait_idle(self, timeout: float | None = None) -> None:
        """Block until everything submitted to this queue so far is done."""
        self.barrier().wait(timeout)

    def _own(self, buffer: Buffer | BufferView) -> None:
        owner = buffer.buffer
        if owner.device is not self.device:
            raise UsageError("the buffer belongs to another device; copy it through host memory")
        if owner._closed:
            owner._check_open()

    @abstractmethod
    def _dispatch(
        self,
        kernel: Kernel,
        grid: Grid,
        bindings: Bindings,
        constants: bytes,
        wait: tuple[Timepoint, ...],
        signal: tuple[Timepoint, ...],
    ) -> Timepoint: ...

    @abstractmethod
    def _fill(
        self, buffer: Buffer | BufferView, pattern: bytes, wait: tuple[Timepoint, ...], signal: tuple[Timepoint, ...]
    ) -> Timepoint: ...

    @abstractmethod
    def _update(
        self, buffer: Buffer, offset: int, data: memoryview, wait: tuple[Timepoint, ...], signal: tuple[Timepoint, ...]
    ) -> Timepoint: ...

    @abstractmethod
    def _read(
        self, buffer: Buffer, offset: int, into: memoryview, wait: tuple[Timepoint, ...], signal: tuple[Timepoint, ...]
    ) -> Timepoint: ...

    @abstractmethod
    def _copy(
        self,
        source: Buffer | BufferView,
        target: Buffer | BufferView,
        wait: tuple[Timepoint, ...],
        signal: tuple[Timepoint, ...],
    ) -> Timepoint: ...

    @abstractmethod
    def _execute(
        self,
        commands: CommandBuffer,
        table: tuple[Buffer | BufferView, ...],
        patched: dict[int, DispatchRecord],
        wait: tuple[Timepoint, ...],
        signal: tuple[Timepoint, ...],
    ) -> Timepoint:
        """Driver: run `commands.records` in order, with those in `patched` in place of the recorded ones."""

    @abstractmethod
    def _barrier(self, wait: tuple[Timepoint, ...], signal: tuple[Timepoint, ...]) -> Timepoint: ...


def timepoints(given: Timepoints) -> tuple[Timepoint, ...]:
    """One timepoint or several, as a tuple."""
    if type(given) is tuple:
        return given
    if isinstance(given, Timepoint):
        return (given,)
    return tuple(given)
