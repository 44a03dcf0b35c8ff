"""Command buffers of one session: uploaded ones, one-shot ones, and their executions (H18).

The whole stream is read and recorded through the device's own `command_buffer()`, which checks every record, before anything of it
can run: a bad record refuses all, with its number. What is recorded holds the objects that it names, so releases are safe.

An upload travels on the control lane and may overtake the ALLOCATE of a buffer that it names, on the queue lane: then it is held
until that is there. An EXECUTE may overtake the upload: then it is parked, like any command whose resource is being made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from remora.base.ids import ResourceType
from remora.errors import BusyError, Error, PeerError, UsageError
from remora.hal.buffer import Buffer
from remora.hal.command_buffer import CommandBuffer
from remora.hal.device import Device
from remora.hal.executable import Kernel
from remora.hal.queue import Queue
from remora.hal.records import Binding, Patch, Slot
from remora.hal.semaphore import Timepoint
from remora.server.stored import Stored
from remora.session.state import Lane
from remora.wire.command_buffer import (
    OPEN,
    SIGNAL_EVENT,
    WAIT_EVENT,
    Recorded,
    RecordedBarrier,
    RecordedCopy,
    RecordedDispatch,
    RecordedEvent,
    RecordedFill,
    RecordedIndirect,
    RecordedLabel,
    RecordedUpdate,
    Ref,
    decode_stream,
)
from remora.wire.command_buffer_calls import MAX_STREAM, CommandBufferUpload
from remora.wire.execute import Announced, Execute, read_payload

if TYPE_CHECKING:
    from remora.server.dispatch import Dispatcher

__all__ = ["CommandBuffers"]

Find: TypeAlias = Callable[[int, ResourceType], Any]


class _Upload(NamedTuple):
    """A recording that is read, and waits for what it names."""

    request: int
    body: CommandBufferUpload
    stored: Stored
    records: list[Recorded]


class CommandBuffers:
    """Part of the dispatcher, whose lock guards it."""

    def __init__(self, dispatcher: Dispatcher, devices: Sequence[Device]) -> None:
        self._dispatcher = dispatcher
        self._table = dispatcher.table
        self._there: Mapping[int, CommandBuffer] = dispatcher.table.of(ResourceType.COMMAND_BUFFER)
        self._devices = devices
        self.held: list[_Upload] = []
        self._stored: dict[int, Stored] = {}  # of what is in the table, by identity
        self._payloads: dict[int, Execute | Error | None] = {}  # of EXECUTEs, by transfer; None while it is on its way

    # -- uploads --------------------------------------------------------------------------------------------------------------

    def upload(self, request: int, body: CommandBufferUpload) -> None:
        """Keep a recording under its provisional id, once its bytes and what they name are here; answers the request."""
        dispatcher = self._dispatcher
        with dispatcher.lock:
            self._table.announce(body.resource, ResourceType.COMMAND_BUFFER)
        try:
            stored = Stored(dispatcher.quotas, body.size)
        except Error as error:
            if body.transfer_id:
                dispatcher.link.bulk.abort(body.transfer_id, error)
            dispatcher.refuse(request, body.resource, error)
            return
        dispatcher.arrivals.receive(
            body.size, body.stream, body.transfer_id, lambda data, error: self._uploaded(request, body, stored, data, error)
        )

    def _uploaded(self, request: int, body: CommandBufferUpload, stored: Stored, data: memoryview, error: Error | None) -> None:
        try:
            if error is not None:
                raise error
            upload = _Upload(request, body, stored, read_stream(data))
        except Error as failure:
            self._refuse(request, body, stored, failure)
            return
        with self._dispatcher.lock:
            hold = any(self._table.coming(name) for name, _ in names_of(upload.records))
            crowded = hold and sum(other.body.size for other in self.held) + body.size > MAX_STREAM
            if hold and not crowded:
                self.held.append(upload)
                return
        if crowded:
            error = BusyError(f"{MAX_STREAM:,} bytes of recordings wait for buffers that were not asked for yet")
            self._refuse(request, body, stored, error)
        else:
            self._make(upload)

    def _refuse(self, request: int, body: CommandBufferUpload, stored: Stored, error: Error) -> None:
        stored.let_go()
        self._dispatcher.refuse(request, body.resource, error)

    def retry(self) -> None:
        """Something was made: look at the uploads that wait. The dispatcher's lock is held."""
        held, self.held = self.held, []
        for upload in held:
            if any(self._table.coming(name) for name, _ in names_of(upload.records)):
                self.held.append(upload)
            else:
                self._make(upload)

    def _make(self, upload: _Upload) -> None:
        request, body, stored, records = upload
        try:
            if body.device >= len(self._devices):
                raise UsageError(f"there is no device {body.device}; the server has {len(self._devices)}")
            find = self._snapshot(records)
            commands = record_all(self._devices[body.device].command_buffer(body.slots), records, find)
        except Error as failure:
            self._refuse(request, body, stored, failure)
            return
        name = id(commands)
        self._stored[name] = stored
        self._dispatcher.quotas.bill(commands, lambda: self._stored.pop(name).let_go())
        self._dispatcher.grant(request, body.resource, ResourceType.COMMAND_BUFFER, commands)

    def _snapshot(self, records: list[Recorded]) -> Find:
        """What the records name, looked up at once, so that the recording itself needs no lock."""
        things: dict[tuple[int, ResourceType], Any] = {}
        with self._dispatcher.lock:
            for name, kind in names_of(records):
                try:
                    things[name, kind] = self._dispatcher.table.find(name, kind)
                except Error as error:
                    things[name, kind] = error

        def find(name: int, kind: ResourceType) -> Any:
            thing = things[name, kind]
            if isinstance(thing, Error):
                raise thing.copy()
            return thing

        return find

    # -- executions -----------------------------------------------------------------------------------------------------------

    def expect(self, body: Announced) -> None:
        """The payload of an EXECUTE comes over bulk; until it is here, `must_wait` says so. The dispatcher's lock is held."""
        if body.transfer_id in self._payloads:
            raise PeerError(f"the transfer {body.transfer_id} is on its way already")
        self._payloads[body.transfer_id] = None
        try:
            self._dispatcher.arrivals.receive(
                body.size, b"", body.transfer_id, lambda data, error: self._payload_arrived(body, data, error)
            )
        except Error as error:
            self._payloads[body.transfer_id] = error

    def _payload_arrived(self, body: Announced, data: memoryview, error: Error | None) -> None:
        link = self._dispatcher.link
        try:
            payload = read_payload(body, data) if error is None else error
            with self._dispatcher.lock:
                self._payloads[body.transfer_id] = payload
                self._dispatcher.unpark()
        except PeerError as wrong:
            link.fail(wrong)
            return
        link.flush(Lane.QUEUE)

    def must_wait(self, body: Execute | Announced) -> bool:
        """Whether an EXECUTE, or what it names, is not all here."""
        if type(body) is Announced:
            payload = self._payloads[body.transfer_id]
            return payload is None or (not isinstance(payload, Error) and self.must_wait(payload))
        assert type(body) is Execute
        if body.command_buffer:
            return body.command_buffer not in self._there and self._table.coming(body.command_buffer)
        if not self._table.pending:
            return False
        try:
            return any(name in self._table.pending for name, _ in names_of(decode_stream(body.stream)))
        except PeerError:
            return False  # running it says what is wrong

    def run(self, queue: Queue, body: Execute | Announced, wait: tuple[Timepoint, ...]) -> Timepoint:
        """Execute. Raises why nothing of it runs."""
        if type(body) is Announced:
            payload = self._payloads.pop(body.transfer_id)
            if isinstance(payload, Error):
                raise payload.copy()
            assert payload is not None
            body = payload
        assert type(body) is Execute
        view = self._dispatcher.table.view
        table = [view(*entry) for entry in body.table]
        patches = {
            patch.record: Patch(patch.grid, patch.constants, {at: view(*where) for at, *where in patch.bindings})
            for patch in body.patches
        }
        if body.command_buffer:
            commands: CommandBuffer = self._dispatcher.table.find(body.command_buffer, ResourceType.COMMAND_BUFFER)
            point = queue.execute(commands, table, patches, wait=wait)
            self._stored[id(commands)].executed(point)
            return point
        fresh = queue.device.command_buffer(len(table), one_shot=True)
        commands = record_all(fresh, read_stream(body.stream), self._dispatcher.table.find)
        try:
            return queue.execute(commands, table, patches, wait=wait)
        finally:
            commands.close()


def read_stream(data: memoryview) -> list[Recorded]:
    """The records of a stream. Raises UsageError that names the record for one that breaks a rule of the wire."""
    try:
        return decode_stream(data)
    except PeerError as error:
        raise UsageError(error.message) from error


def names_of(records: list[Recorded]) -> Iterator[tuple[int, ResourceType]]:
    """The ids that records name, and what each has to be."""
    for record in records:
        match record:
            case RecordedDispatch() | RecordedIndirect():
                yield record.executable, ResourceType.EXECUTABLE
            case RecordedEvent():
                yield record.event, ResourceType.EVENT
        for ref in _refs_of(record):
            if ref.buffer:
                yield ref.buffer, ResourceType.BUFFER


def _refs_of(record: Recorded) -> tuple[Ref, ...]:
    match record:
        case RecordedDispatch():
            return record.bindings
        case RecordedIndirect():
            return record.grid, *record.bindings
        case RecordedFill() | RecordedUpdate():
            return (record.target,)
        case RecordedCopy():
            return record.source, record.target
    return ()


def record_all(commands: CommandBuffer, records: list[Recorded], find: Find) -> CommandBuffer:
    """Record a whole stream and seal it. Raises UsageError with the number of the first bad record; then all is forgotten."""
    number = 0
    try:
        for number, record in enumerate(records):  # noqa: B007 - its last value names the record
            _RECORD[type(record)](commands, record, find)
    except Error as error:
        commands.close()
        raise UsageError(f"record {number}: {error.message}") from error
    try:
        return commands.seal()
    except Error:
        commands.close()
        raise


def _binding(ref: Ref, find: Find) -> Binding:
    if not ref.buffer:
        return Slot(ref.slot, ref.offset, -1 if ref.length == OPEN else ref.length)
    buffer: Buffer = find(ref.buffer, ResourceType.BUFFER)
    return buffer if ref.offset == 0 and ref.length == buffer.size else buffer.view(ref.offset, ref.length)


def _record_dispatch(commands: CommandBuffer, record: RecordedDispatch, find: Find) -> None:
    bindings = [_binding(ref, find) for ref in record.bindings]
    commands.dispatch(_kernel(record, find), record.grid, bindings, record.constants)


def _record_indirect(commands: CommandBuffer, record: RecordedIndirect, find: Find) -> None:
    bindings = [_binding(ref, find) for ref in record.bindings]
    commands.dispatch_indirect(_kernel(record, find), _binding(record.grid, find), bindings, record.constants)


def _kernel(record: RecordedDispatch | RecordedIndirect, find: Find) -> Kernel:
    kernels: tuple[Kernel, ...] = find(record.executable, ResourceType.EXECUTABLE).ordered
    if record.kernel >= len(kernels):
        raise UsageError(f"there is no kernel {record.kernel}; the executable has {len(kernels)}")
    return kernels[record.kernel]


def _record_fill(commands: CommandBuffer, record: RecordedFill, find: Find) -> None:
    commands.fill(_binding(record.target, find), record.pattern)


def _record_update(commands: CommandBuffer, record: RecordedUpdate, find: Find) -> None:
    commands.update(_binding(record.target, find), record.data)


def _record_copy(commands: CommandBuffer, record: RecordedCopy, find: Find) -> None:
    commands.copy(_binding(record.source, find), _binding(record.target, find), record.size)


def _record_barrier(commands: CommandBuffer, _record: RecordedBarrier, _find: Find) -> None:
    commands.barrier()


def _record_event(commands: CommandBuffer, record: RecordedEvent, find: Find) -> None:
    event = find(record.event, ResourceType.EVENT)
    if record.kind == SIGNAL_EVENT:
        commands.signal_event(event)
    elif record.kind == WAIT_EVENT:
        commands.wait_event(event)
    else:
        commands.reset_event(event)


def _record_label(commands: CommandBuffer, record: RecordedLabel, _find: Find) -> None:
    if record.text:
        commands.push_label(record.text)
    else:
        commands.pop_label()


_RECORD: dict[type, Callable[[CommandBuffer, Any, Find], None]] = {
    RecordedDispatch: _record_dispatch,
    RecordedIndirect: _record_indirect,
    RecordedFill: _record_fill,
    RecordedUpdate: _record_update,
    RecordedCopy: _record_copy,
    RecordedEvent: _record_event,
    RecordedBarrier: _record_barrier,
    RecordedLabel: _record_label,
}
