"""Bodies of requests and of their answers, by method. Each makes one resource; the answer is its canonical id.

EXECUTABLE_LOAD 0x20
    request    provisional id u64 | transfer id u64 | artifact bytes u64 | manifest bytes u32 | device u16 | 0 u16
               | family text | key text | manifest | artifact if the transfer id is 0
    response   canonical id u64
COMMAND_BUFFER_UPLOAD 0x30
    request    provisional id u64 | transfer id u64 | stream bytes u64 | slots u32 | device u16 | 0 u16
               | stream if the transfer id is 0
    response   canonical id u64
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from remora.base.ids import ResourceType
from remora.errors import PeerError, UsageError
from remora.wire.layout import Reader, Writer, is_id

__all__ = [
    "COMMAND_BUFFER_UPLOAD",
    "EXECUTABLE_LOAD",
    "MAX_ARTIFACT",
    "MAX_INLINE_ARTIFACT",
    "MAX_INLINE_STREAM",
    "MAX_MANIFEST",
    "MAX_SLOTS",
    "MAX_STREAM",
    "METHODS",
    "Call",
    "CommandBufferUpload",
    "ExecutableLoad",
    "Loaded",
    "Method",
    "method_of",
]

EXECUTABLE_LOAD, COMMAND_BUFFER_UPLOAD = 0x20, 0x30
MAX_TARGET: Final = 256
#: The kernels' contracts, as manifest JSON.
MAX_MANIFEST: Final = 256 << 10
#: An artifact up to this size travels inside the request; a larger one over bulk.
MAX_INLINE_ARTIFACT: Final = 32 << 10
MAX_ARTIFACT: Final = 1 << 30
#: A recording up to this size travels inside the request; a larger one over bulk.
MAX_INLINE_STREAM: Final = 32 << 10
MAX_STREAM: Final = 64 << 20
#: Entries of a binding table.
MAX_SLOTS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class ExecutableLoad:
    """Load an artifact of `size` bytes on a device under a provisional id.

    The bytes are `artifact`, or follow on bulk under `transfer_id`; one of the two is empty.
    """

    resource: int
    device: int
    target: tuple[str, str]
    manifest: bytes
    size: int
    artifact: bytes = b""
    transfer_id: int = 0


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


@dataclass(frozen=True, slots=True)
class Loaded:
    """The canonical id of what was made."""

    resource: int


Call: TypeAlias = ExecutableLoad | CommandBufferUpload


class Method(NamedTuple):
    """How a method's request is written and read, and what kind of resource it makes."""

    write: Callable[[Writer, Any], Writer]
    read: Callable[[Reader], Call]
    makes: ResourceType
    thing: str


def _write_load(writer: Writer, body: ExecutableLoad) -> Writer:
    if len(body.manifest) > MAX_MANIFEST:
        raise UsageError(
            f"a manifest of {len(body.manifest)} bytes, the limit is {MAX_MANIFEST}: describe fewer kernels in a bundle"
        )
    if not 1 <= body.size <= MAX_ARTIFACT:
        raise UsageError(f"an artifact of {body.size} bytes; 1 to {MAX_ARTIFACT} are possible")
    if body.transfer_id == 0 and body.size > MAX_INLINE_ARTIFACT:
        raise UsageError(f"an artifact of {body.size} bytes inside a request; above {MAX_INLINE_ARTIFACT} it goes over bulk")
    if len(body.artifact) != (0 if body.transfer_id else body.size):
        raise UsageError(
            f"an artifact of {body.size} bytes with {len(body.artifact)} bytes here and the transfer {body.transfer_id}"
        )
    writer.u64(body.resource).u64(body.transfer_id).u64(body.size).u32(len(body.manifest)).u16(body.device).u16(0)
    return writer.text(body.target[0], MAX_TARGET).text(body.target[1], MAX_TARGET).raw(body.manifest).raw(body.artifact)


def _read_load(reader: Reader) -> ExecutableLoad:
    resource, transfer_id, size, manifest_size, device = reader.u64(), reader.u64(), reader.u64(), reader.u32(), reader.u16()
    reader.zeros(2)
    if not is_id(resource, ResourceType.EXECUTABLE, provisional=True):
        raise PeerError(f"a request to load under {resource:#x}, which is no provisional id of an executable")
    if not 1 <= size <= MAX_ARTIFACT or manifest_size > MAX_MANIFEST:
        raise PeerError(f"an artifact of {size} bytes with a manifest of {manifest_size}: outside the limits")
    if not transfer_id and size > MAX_INLINE_ARTIFACT:
        raise PeerError(f"an artifact of {size} bytes inside the request; above {MAX_INLINE_ARTIFACT} it goes over bulk")
    target = reader.text(MAX_TARGET), reader.text(MAX_TARGET)
    manifest = bytes(reader.raw(manifest_size))
    artifact = b"" if transfer_id else bytes(reader.raw(size))
    reader.end()
    return ExecutableLoad(resource, device, target, manifest, size, artifact, transfer_id)


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


#: A method that is not here is refused.
METHODS: Final[dict[int, Method]] = {
    EXECUTABLE_LOAD: Method(_write_load, _read_load, ResourceType.EXECUTABLE, "an executable"),
    COMMAND_BUFFER_UPLOAD: Method(_write_upload, _read_upload, ResourceType.COMMAND_BUFFER, "a command buffer"),
}


def method_of(body: Call) -> int:
    """The method that a request's body belongs to."""
    return EXECUTABLE_LOAD if isinstance(body, ExecutableLoad) else COMMAND_BUFFER_UPLOAD
