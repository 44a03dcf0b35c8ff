"""The decoders and encoders of a lane under one face: bytes to a value, and that value to the same bytes.

`decode` takes exactly one whole frame and raises PeerError for anything else; `encode(decode(data)) == data` for all that it takes.
A value of the queue lane is (kind, fields...), one of the bulk lane (header fields..., rest).
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from remora.errors import Error, PeerError
from remora.wire import bulk, commands, queue
from remora.wire.bootstrap import decode_bootstrap, encode_bootstrap
from remora.wire.control import decode_control, encode_control
from remora.wire.execute import Announced, encode_announced, encode_execute
from remora.wire.extension import EXTENSION, encode_extension
from remora.wire.file_commands import FILE_READ, FILE_WRITE, encode_file_range
from remora.wire.frame import FrameSplitter
from remora.wire.layout import MAX_CONTROL_FRAME, MAX_QUEUE_FRAME


class Codec(NamedTuple):
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]


def plain(value):
    """A value that compares: errors by class and content, views as bytes, dataclasses by fields."""
    if isinstance(value, Error):
        return type(value), value.code, value.message, value.origin
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, tuple | list):
        return tuple(plain(item) for item in value)
    if dataclasses.is_dataclass(value):
        return type(value), *(plain(getattr(value, field.name)) for field in dataclasses.fields(value))
    return value


def one_frame(data: bytes, limit: int) -> memoryview:
    """The frame that the data is. Raises PeerError when it is none, less than one, or more."""
    splitter = FrameSplitter("test", limit)
    view, end = splitter.feed(memoryview(data))
    if not end or end != len(data) or int.from_bytes(data[:4], "little") != end:
        raise PeerError("not exactly one frame")
    return view


BODIES = {
    commands.BARRIER: lambda _: b"",
    commands.FILL: lambda body: commands.encode_fill(*body),
    commands.UPDATE: lambda body: commands.encode_update(body.buffer, body.offset, memoryview(body.data)),
    commands.COPY: lambda body: commands.encode_copy(*body),
    commands.READ: lambda body: commands.encode_range(*body),
    commands.LOCATE: lambda body: commands.encode_range(*body),
    commands.UPLOAD: lambda body: commands.encode_transfer(*body),
    commands.DOWNLOAD: lambda body: commands.encode_transfer(*body),
    commands.EXECUTE: lambda body: encode_announced(body) if isinstance(body, Announced) else encode_execute(*body),
    FILE_READ: encode_file_range,
    FILE_WRITE: encode_file_range,
    commands.DISPATCH_INDIRECT: lambda body: commands.encode_dispatch_indirect(
        body.buffer, body.offset, *body.dispatch[:2], list(body.dispatch.bindings), body.dispatch.constants
    ),
    EXTENSION: lambda body: encode_extension(*body),
    commands.ALLOCA: commands.encode_buffer,
    commands.DEALLOCA: commands.encode_buffer,
    commands.DISPATCH: lambda body: commands.encode_dispatch(*body[:3], list(body.bindings), body.constants),
}


def decode_command(view, pos, size):
    op, axis, epoch, waits, body = queue.decode_command(view, pos, size)
    if op not in commands.DECODERS:
        raise PeerError(f"an unknown op {op}")
    return op, axis, epoch, waits, commands.DECODERS[op](view, body, pos + size)


def encode_command(op, axis, epoch, waits, body):
    return queue.encode_command(op, axis, epoch, waits, BODIES[op](body))


QUEUE = {
    queue.COMMAND: (decode_command, encode_command),
    queue.ALLOCATE: (queue.decode_allocate, queue.encode_allocate),
    queue.RELEASE: (queue.decode_release, lambda submissions, ids: queue.encode_release(submissions, list(ids))),
    queue.ADVANCE: (queue.decode_advance, lambda axis, epoch, names, error: queue.encode_advance(axis, epoch, list(names), error)),
    queue.RESULT: (queue.decode_result, queue.encode_result),
    queue.EVENT: (queue.decode_event, queue.encode_event),
    queue.STATE: (queue.decode_state, queue.encode_state),
    queue.UNNAMED: (queue.decode_unnamed, queue.encode_unnamed),
}


def decode_queue(data: bytes):
    view = one_frame(data, MAX_QUEUE_FRAME)
    if view[4] not in QUEUE:
        raise PeerError(f"an unknown kind {view[4]}")
    return view[4], *QUEUE[view[4]][0](view, 0, len(view))


def encode_queue(value) -> bytes:
    return QUEUE[value[0]][1](*value[1:])


def decode_bulk(data: bytes):
    header = bulk.decode_bulk(data)
    rest = data[bulk.BULK_HEADER.size :]
    if len(rest) != header.rest:
        raise PeerError("not exactly one frame")
    read = {bulk.ABORT: bulk.decode_abort, bulk.LEND: bulk.decode_lend}.get(header.kind, bytes)
    return header.kind, header.transfer_id, header.value, read(memoryview(rest))


def encode_bulk(value) -> bytes:
    kind, transfer_id, position, rest = value
    if kind == bulk.ABORT:
        return bulk.encode_abort(transfer_id, rest)
    if kind == bulk.LEND:
        return bulk.encode_lend(transfer_id, rest[0], position, rest[1])
    return bulk.encode_bulk(kind, transfer_id, position, len(rest)) + rest


CODECS = {
    "bootstrap": Codec(lambda data: decode_bootstrap(one_frame(data, MAX_CONTROL_FRAME)), encode_bootstrap),
    "control": Codec(lambda data: decode_control(one_frame(data, MAX_CONTROL_FRAME)), encode_control),
    "queue": Codec(decode_queue, encode_queue),
    "bulk": Codec(decode_bulk, encode_bulk),
}
