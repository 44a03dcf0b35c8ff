"""What each command of the queue lane does: ids to objects, then the same call of the device's queue that a local program makes.

An operation gets (dispatcher, axis, epoch, body, waits as local timepoints) and returns the timepoint of its end, or raises why it
does not run. The dispatcher's lock is held. `RUN` has them by op.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from remora.base.ids import ResourceType
from remora.errors import UsageError
from remora.hal.buffer import Buffer, BufferView
from remora.hal.indirect import GRID_BYTES
from remora.hal.semaphore import Timepoint
from remora.server import queue_memory
from remora.server.axis import Axis
from remora.wire import commands
from remora.wire.commands import Copy, Dispatch, DispatchIndirect, Fill, Range, Transfer, Update
from remora.wire.execute import Announced, Execute
from remora.wire.extension import EXTENSION, Extend
from remora.wire.file_commands import FILE_READ, FILE_WRITE, FileRange

if TYPE_CHECKING:
    from remora.server.dispatch import Dispatcher

__all__ = ["RUN", "TRANSFERS", "Run"]

Run: TypeAlias = "Callable[[Dispatcher, Axis, int, Any, Waits], Timepoint]"
Waits: TypeAlias = tuple[Timepoint, ...]


def _barrier(_dispatcher: Dispatcher, axis: Axis, _epoch: int, _body: None, wait: Waits) -> Timepoint:
    return axis.queue.barrier(wait=wait)


def _fill(dispatcher: Dispatcher, axis: Axis, _epoch: int, body: Fill, wait: Waits) -> Timepoint:
    target = dispatcher.table.view(body.buffer, body.offset, body.length)
    return axis.queue.fill(target, body.pattern, wait=wait)


def _update(dispatcher: Dispatcher, axis: Axis, _epoch: int, body: Update, wait: Waits) -> Timepoint:
    """Inline data lives in the receive buffer, so the queue gets its own copy (at most 64 KiB)."""
    target = dispatcher.table.view(body.buffer, body.offset, body.length)
    return axis.queue.update(target, bytes(body.data), wait=wait)


def _copy(dispatcher: Dispatcher, axis: Axis, _epoch: int, body: Copy, wait: Waits) -> Timepoint:
    view = dispatcher.table.view
    source = view(body.buffer, body.offset, body.length)
    return axis.queue.copy(source, view(body.target, body.target_offset, body.length), wait=wait)


def _read(dispatcher: Dispatcher, axis: Axis, epoch: int, body: Range, wait: Waits) -> Timepoint:
    if body.length > commands.MAX_INLINE:
        raise UsageError(f"a READ of {body.length} bytes; above {commands.MAX_INLINE} it is a DOWNLOAD")
    into = bytearray(body.length)
    source = dispatcher.table.view(body.buffer, body.offset, body.length)
    point = axis.queue.read(source, into, wait=wait)
    axis.results[epoch] = into
    return point


def _counted(run: Run) -> Run:
    """A transfer, counted by its session's quota from its submission to its end, good or bad."""

    def transfer(dispatcher: Dispatcher, axis: Axis, epoch: int, body: Any, wait: Waits) -> Timepoint:
        transfers = dispatcher.quotas.transfers
        transfers.take()
        try:
            point = run(dispatcher, axis, epoch, body, wait)
        except BaseException:
            transfers.give_back()
            raise
        point.on_done(transfers.give_back)
        return point

    return transfer


def _upload(dispatcher: Dispatcher, axis: Axis, _epoch: int, body: Transfer, wait: Waits) -> Timepoint:
    return dispatcher.transfers.upload(axis.queue, body, wait)


def _download(dispatcher: Dispatcher, axis: Axis, _epoch: int, body: Transfer, wait: Waits) -> Timepoint:
    return dispatcher.transfers.download(axis.queue, body, wait)


def _locate(dispatcher: Dispatcher, axis: Axis, epoch: int, body: Range, wait: Waits) -> Timepoint:
    buffer = dispatcher.table.view(body.buffer, body.offset, body.length)
    point, axis.results[epoch] = dispatcher.sharing.locate(axis.queue, buffer, wait)
    return point


def _dispatch(dispatcher: Dispatcher, axis: Axis, _epoch: int, body: Dispatch, wait: Waits) -> Timepoint:
    executable, kernel, grid, flat, constants = body
    table, fields = dispatcher.table, iter(flat)
    buffers = table.buffers
    bindings: list[Buffer | BufferView] = []
    for buffer, offset, length in zip(fields, fields, fields, strict=True):
        found: Buffer | BufferView | None = buffers.get(buffer)
        if found is None or offset or length != found.size:
            found = table.view(buffer, offset, length)
        bindings.append(found)
    return axis.queue.dispatch(table.kernel(executable, kernel), grid, bindings, constants, wait=wait)


def _dispatch_indirect(dispatcher: Dispatcher, axis: Axis, _epoch: int, body: DispatchIndirect, wait: Waits) -> Timepoint:
    executable, kernel, _, flat, constants = body.dispatch
    table, fields = dispatcher.table, iter(flat)
    bindings = [table.view(*span) for span in zip(fields, fields, fields, strict=True)]
    grid = table.view(body.buffer, body.offset, GRID_BYTES)
    return axis.queue.dispatch_indirect(table.kernel(executable, kernel), grid, bindings, constants, wait=wait)


def _extension(dispatcher: Dispatcher, axis: Axis, _epoch: int, body: Extend, wait: Waits) -> Timepoint:
    buffers = [dispatcher.table.view(*each) for each in body.buffers]
    return axis.queue.extension(body.namespace, body.operation, body.payload, buffers, wait=wait)


def _execute(dispatcher: Dispatcher, axis: Axis, _epoch: int, body: Execute | Announced, wait: Waits) -> Timepoint:
    return dispatcher.command_buffers.run(axis.queue, body, wait)


def _alloca(dispatcher: Dispatcher, axis: Axis, _epoch: int, body: int, wait: Waits) -> Timepoint:
    return queue_memory.provide(dispatcher, axis.queue, dispatcher.table.find(body, ResourceType.BUFFER), wait)


def _dealloca(dispatcher: Dispatcher, axis: Axis, _epoch: int, body: int, wait: Waits) -> Timepoint:
    return queue_memory.deallocate(dispatcher, axis.queue, dispatcher.table.find(body, ResourceType.BUFFER), wait)


def _file_read(dispatcher: Dispatcher, axis: Axis, _epoch: int, body: FileRange, wait: Waits) -> Timepoint:
    return dispatcher.files.run(axis.queue, FILE_READ, body, wait)


def _file_write(dispatcher: Dispatcher, axis: Axis, _epoch: int, body: FileRange, wait: Waits) -> Timepoint:
    return dispatcher.files.run(axis.queue, FILE_WRITE, body, wait)


RUN: Final[dict[int, Run]] = {
    commands.BARRIER: _barrier,
    commands.FILL: _fill,
    commands.UPDATE: _update,
    commands.COPY: _copy,
    commands.READ: _read,
    commands.UPLOAD: _counted(_upload),
    commands.DOWNLOAD: _counted(_download),
    commands.DISPATCH: _dispatch,
    commands.DISPATCH_INDIRECT: _dispatch_indirect,
    EXTENSION: _extension,
    commands.EXECUTE: _execute,
    FILE_READ: _file_read,
    FILE_WRITE: _file_write,
    commands.ALLOCA: _alloca,
    commands.DEALLOCA: _dealloca,
    commands.LOCATE: _locate,
}
TRANSFERS: Final = frozenset((commands.UPLOAD, commands.DOWNLOAD))
