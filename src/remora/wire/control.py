"""Messages of the control lane: liveness, the end, and typed requests with their responses.

PING      0x10   nonce u64
PONG      0x11   nonce u64 of the PING
GOAWAY    0x12   status: the sender ends the session in good order
FAILURE   0x13   status: the session is dead, and why (also sent by the server for a session process that died)
REQUEST   0x14   id u32 | method u16 | 0 u16 | body of the method
RESPONSE  0x15   id u32 | method u16 | ok u8 | 0 u8 | body of the method's answer if ok, a status if not

method EXECUTABLE_LOAD 0x20
    request    provisional id u64 | transfer id u64 | artifact bytes u64 | manifest bytes u32 | device u16 | 0 u16
               | family text | key text | manifest | artifact if the transfer id is 0
    response   canonical id u64
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from remora.base.ids import ResourceType
from remora.errors import Error, PeerError, UsageError
from remora.wire.layout import HEADER, Reader, Writer, is_id
from remora.wire.status import read_status, write_status

__all__ = [
    "FAILURE",
    "GOAWAY",
    "MAX_ARTIFACT",
    "MAX_INLINE_ARTIFACT",
    "MAX_MANIFEST",
    "MAX_REQUESTS",
    "PING",
    "PONG",
    "REQUEST",
    "RESPONSE",
    "Control",
    "ExecutableLoad",
    "Failure",
    "Goaway",
    "Loaded",
    "Ping",
    "Pong",
    "Request",
    "Response",
    "decode_control",
    "encode_control",
]

PING, PONG, GOAWAY, FAILURE, REQUEST, RESPONSE = 0x10, 0x11, 0x12, 0x13, 0x14, 0x15
EXECUTABLE_LOAD: Final = 0x20
MAX_TARGET: Final = 256
#: The kernels' contracts, as manifest JSON.
MAX_MANIFEST: Final = 256 << 10
#: An artifact up to this size travels inside the request; a larger one over bulk.
MAX_INLINE_ARTIFACT: Final = 32 << 10
MAX_ARTIFACT: Final = 1 << 30
#: Requests of one session that may wait for their responses.
MAX_REQUESTS: Final = 256


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you there? The peer answers PONG with the same nonce."""

    nonce: int


@dataclass(frozen=True, slots=True)
class Pong:
    """I am."""

    nonce: int


@dataclass(frozen=True, slots=True)
class Goaway:
    """The sender ends the session; `error` says why."""

    error: Error


@dataclass(frozen=True, slots=True)
class Failure:
    """The session has failed on the sender's side; `error` is the first cause."""

    error: Error


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
class Loaded:
    """The canonical id of what was loaded."""

    resource: int


@dataclass(frozen=True, slots=True)
class Request:
    """Client: a call. Ids are given by the client and are not 0."""

    id: int
    body: ExecutableLoad


@dataclass(frozen=True, slots=True)
class Response:
    """Server: the answer to the request with the same id, or its failure."""

    id: int
    body: Loaded | Error


Control: TypeAlias = Ping | Pong | Goaway | Failure | Request | Response


def encode_control(message: Control) -> bytes:
    """The frame of a control message. Raises UsageError for a manifest or artifact that no peer would take."""
    writer = Writer()
    match message:
        case Ping():
            return writer.u64(message.nonce).frame(PING)
        case Pong():
            return writer.u64(message.nonce).frame(PONG)
        case Goaway():
            return write_status(writer, message.error).frame(GOAWAY)
        case Failure():
            return write_status(writer, message.error).frame(FAILURE)
        case Request():
            writer.u32(message.id).u16(EXECUTABLE_LOAD).u16(0)
            return _write_load(writer, message.body).frame(REQUEST)
    writer.u32(message.id).u16(EXECUTABLE_LOAD).u8(not isinstance(message.body, Error)).u8(0)
    if isinstance(message.body, Error):
        return write_status(writer, message.body).frame(RESPONSE)
    return writer.u64(message.body.resource).frame(RESPONSE)


def decode_control(frame: memoryview) -> Control:
    """The message in one whole frame. Raises PeerError for anything else."""
    if len(frame) < HEADER.size:
        raise PeerError("a control frame shorter than its header")
    size, kind, flags, aux = HEADER.unpack_from(frame)
    if size != len(frame) or flags or aux:
        raise PeerError("a control frame with a wrong size or unknown flags")
    reader = Reader(frame[8:], f"control frame {kind:#x}")
    match kind:
        case 0x10:
            return Ping(_read_nonce(reader))
        case 0x11:
            return Pong(_read_nonce(reader))
        case 0x12:
            return Goaway(read_status(reader))
        case 0x13:
            return Failure(read_status(reader))
        case 0x14:
            request_id = _read_call(reader)
            reader.zeros(2)
            return Request(request_id, _read_load(reader))
        case 0x15:
            return _read_response(reader)
    raise PeerError(f"an unknown control frame {kind:#x}")


def _read_nonce(reader: Reader) -> int:
    nonce = reader.u64()
    reader.end()
    return nonce


def _read_call(reader: Reader) -> int:
    request_id, method = reader.u32(), reader.u16()
    if request_id == 0:
        raise PeerError("the request id 0 is not one")
    if method != EXECUTABLE_LOAD:
        raise PeerError(f"an unknown method {method:#x}")
    return request_id


def _read_response(reader: Reader) -> Response:
    request_id, good = _read_call(reader), reader.u8()
    reader.zeros(1)
    if good not in (0, 1):
        raise PeerError(f"a response that is neither good nor bad ({good})")
    if not good:
        return Response(request_id, read_status(reader))
    resource = reader.u64()
    reader.end()
    if not is_id(resource, ResourceType.EXECUTABLE, provisional=False):
        raise PeerError(f"a response names {resource:#x}, which is no id of an executable")
    return Response(request_id, Loaded(resource))


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
