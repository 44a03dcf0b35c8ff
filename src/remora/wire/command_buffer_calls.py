"""Calls about command buffers.

COMMAND_BUFFER_UPLOAD 0x30
    request    provisional id u64 | transfer id u64 | stream bytes u64 | slots u32 | device u16 | 0 u16
               | stream if the transfer id is 0
    response   canonical id u64
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from remora.base.ids import ResourceType
from remora.errors import PeerError, UsageError
from remora.wire.layout import Reader, Writer, is_id
from remora.wire.method import Method, answers_loaded

__all__ = ["COMMAND_BUFFER_UPLOAD", "MAX_INLINE_STREAM", "MAX_SLOTS", "MAX_STREAM", "METHODS", "CommandBufferUpload"]

COMMAND_BUFFER_UPLOAD: Final = 0x30
#: A recording up to this size travels inside the request; a larger one over bulk.
MAX_INLINE_STREAM: Final = 32 << 10
MAX_STREAM: Final = 64 << 20
#: Entries of a binding table.
MAX_SLOTS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class CommandBufferUpload:
    """Keep a recording of `size` bytes (wire.command_buffer) on a device under a provisional id, to execute it by that id.

    The bytes are `stream`, or follow on bulk under `transfer_id`; one of the two is empty.
    """

    resource: int
    device: int
    slots: int
    size: int
    stream: bytes = b""
    transfer_id: int = 0


def _write_upload(writer: Writer, body: CommandBufferUpload) -> Writer:
    if body.size > MAX_STREAM:
        raise UsageError(f"a recording of {body.size} bytes, the limit is {MAX_STREAM}: record several command buffers")
    if body.transfer_id == 0 and body.size > MAX_INLINE_STREAM:
        raise UsageError(f"a recording of {body.size} bytes inside a request; above {MAX_INLINE_STREAM} it goes over bulk")
    if len(body.stream) != (0 if body.transfer_id else body.size):
        raise UsageError(f"a recording of {body.size} bytes with {len(body.stream)} bytes here and the transfer {body.transfer_id}")
    writer.u64(body.resource).u64(body.transfer_id).u64(body.size).u32(body.slots).u16(body.device).u16(0)
    return writer.raw(body.stream)


def _read_upload(reader: Reader) -> CommandBufferUpload:
    resource, transfer_id, size, slots, device = reader.u64(), reader.u64(), reader.u64(), reader.u32(), reader.u16()
    reader.zeros(2)
    if not is_id(resource, ResourceType.COMMAND_BUFFER, provisional=True):
        raise PeerError(f"a recording is uploaded under {resource:#x}, which is no provisional id of a command buffer")
    if size > MAX_STREAM or size % 8 or (transfer_id and not size) or slots > MAX_SLOTS:
        raise PeerError(f"a recording of {size} bytes with {slots} slots: outside the limits")
    if not transfer_id and size > MAX_INLINE_STREAM:
        raise PeerError(f"a recording of {size} bytes inside the request; above {MAX_INLINE_STREAM} it goes over bulk")
    stream = b"" if transfer_id else bytes(reader.raw(size))
    reader.end()
    return CommandBufferUpload(resource, device, slots, size, stream, transfer_id)


METHODS: Final[dict[int, Method]] = {
    COMMAND_BUFFER_UPLOAD: answers_loaded(
        CommandBufferUpload, _write_upload, _read_upload, ResourceType.COMMAND_BUFFER, "a command buffer"
    ),
}
