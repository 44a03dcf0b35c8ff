"""Recordings on their way to the server (H18).

A reusable one is uploaded at `seal` and replayed by its id, a one-shot one travels in its execution.

`seal` does not wait: what a recording can do wrong was checked when it was recorded. If the server refuses it all the same,
executions that were submitted before the answer fail with its reason, and later ones raise it.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from remora.errors import Error, Status, UsageError
from remora.hal.buffer import Buffer, BufferView
from remora.hal.command_buffer import CommandBuffer
from remora.hal.records import (
    BarrierRecord,
    Binding,
    CopyRecord,
    DispatchRecord,
    EventAction,
    EventRecord,
    FillRecord,
    IndirectRecord,
    LabelRecord,
    Launch,
    Record,
    Slot,
    UpdateRecord,
    count_dispatches,
    resolve,
)
from remora.wire.command_buffer import (
    MAX_RECORDS,
    OPEN,
    RESET_EVENT,
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
    encode_stream,
)
from remora.wire.execute import Changed, Span

if TYPE_CHECKING:
    from remora.drivers.remote.host import RemoteHost

__all__ = ["RemoteCommandBuffer", "changes", "span"]


class RemoteCommandBuffer:
    """What `CommandBuffer.prepared` is here. `resource` is its id on the server; 0 when `stream` goes along with the execution."""

    __slots__ = ("_answered", "_closed", "_host", "_lock", "dispatches", "failure", "resource", "stream")

    def __init__(self, host: RemoteHost, device: int, commands: CommandBuffer) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._answered, self._closed = False, True  # nothing to forget yet
        self.dispatches = count_dispatches(commands.records)
        self.failure: Error | None = None
        self.resource = 0
        self.stream = encode_records(commands.records)
        if not commands.one_shot:
            self._closed = False
            self.resource = host.upload(device, commands.slots, self.stream, self.answered)
            self.stream = b""

    def check(self) -> None:
        """Raise why the server refused it, if it is known to have."""
        if self.failure is not None:
            raise self.failure.copy()

    def answered(self, answer: Any) -> None:
        """The server has it, or has refused it."""
        if isinstance(answer, Error):
            self.failure = answer
        with self._lock:
            self._answered = True
            forget = self._closed
        if forget:
            self._host.forget(self.resource)

    def close(self) -> None:
        """Let the server forget it. A release must not overtake the upload, so it waits for the answer. Safe to repeat."""
        with self._lock:
            forget = self._answered and not self._closed
            self._closed = True
        if forget:
            self._host.forget(self.resource)

    def __del__(self) -> None:
        self.close()


def span(buffer: Buffer | BufferView) -> Span:
    """A buffer or view as the wire names it."""
    return buffer.buffer.resource, buffer.offset, buffer.size  # type: ignore[attr-defined]


def changes(commands: CommandBuffer, patched: Mapping[int, Launch], table: Sequence[Buffer | BufferView]) -> list[Changed]:
    """What patched records have other than the recorded ones, in ascending order."""
    found = []
    for number in sorted(patched):
        old, new = commands.records[number], patched[number]
        assert isinstance(old, DispatchRecord | IndirectRecord)
        found.append(
            Changed(
                number,
                new.grid if isinstance(new, DispatchRecord) and new.grid != old.grid else None,
                new.constants if new.constants != old.constants else None,
                tuple(
                    (position, *span(resolve(binding, table)))
                    for position, binding in enumerate(new.bindings)
                    if binding is not old.bindings[position]
                ),
            )
        )
    return found


# -- records to the wire ------------------------------------------------------------------------------------------------------


def encode_records(records: Sequence[Record]) -> bytes:
    """The stream of a recording. Raises UsageError for a slot's range that no buffer could have, and for too many records."""
    if len(records) > MAX_RECORDS:
        raise UsageError(f"a recording of {len(records)} records, the limit is {MAX_RECORDS}: record several command buffers")
    try:
        return encode_stream([_TRANSLATE[type(record)](record) for record in records])
    except struct.error:
        raise UsageError("a slot's offset and size have at most 64 bits", code=Status.OUT_OF_RANGE) from None


def _ref(binding: Binding) -> Ref:
    if isinstance(binding, Slot):
        return Ref(0, binding.offset, OPEN if binding.size < 0 else binding.size, binding.index)
    return Ref(*span(binding))


def _dispatch(record: DispatchRecord) -> RecordedDispatch:
    kernel = record.kernel
    resource: int = kernel.executable.resource  # type: ignore[attr-defined]
    return RecordedDispatch(resource, kernel.ordinal, record.grid, tuple(map(_ref, record.bindings)), record.constants)


def _indirect(record: IndirectRecord) -> RecordedIndirect:
    kernel = record.kernel
    resource: int = kernel.executable.resource  # type: ignore[attr-defined]
    return RecordedIndirect(resource, kernel.ordinal, _ref(record.grid), tuple(map(_ref, record.bindings)), record.constants)


def _fill(record: FillRecord) -> RecordedFill:
    return RecordedFill(_ref(record.target), record.pattern)


def _update(record: UpdateRecord) -> RecordedUpdate:
    return RecordedUpdate(_ref(record.target), record.data)


def _copy(record: CopyRecord) -> RecordedCopy:
    return RecordedCopy(_ref(record.source), _ref(record.target), record.size)


def _barrier(_: BarrierRecord) -> RecordedBarrier:
    return RecordedBarrier()


def _event(record: EventRecord) -> RecordedEvent:
    return RecordedEvent(_ACTIONS[record.action], record.event.resource)  # type: ignore[attr-defined]


def _label(record: LabelRecord) -> RecordedLabel:
    return RecordedLabel(record.text)


_ACTIONS: Final = {EventAction.SIGNAL: SIGNAL_EVENT, EventAction.RESET: RESET_EVENT, EventAction.WAIT: WAIT_EVENT}
_TRANSLATE: Final[dict[type, Callable[[Any], Recorded]]] = {
    DispatchRecord: _dispatch,
    IndirectRecord: _indirect,
    FillRecord: _fill,
    UpdateRecord: _update,
    CopyRecord: _copy,
    EventRecord: _event,
    BarrierRecord: _barrier,
    LabelRecord: _label,
}
