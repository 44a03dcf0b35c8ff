"""Messages of the control lane: liveness, the end, and typed requests with their responses.

PING      0x10   nonce u64
PONG      0x11   nonce u64 of the PING
GOAWAY    0x12   status: the sender ends the session in good order
FAILURE   0x13   status: the session is dead, and why (also sent by the server for a session process that died)
REQUEST   0x14   id u32 | method u16 | 0 u16 | body of the method
RESPONSE  0x15   id u32 | method u16 | ok u8 | 0 u8 | body of the method's answer if ok, a status if not
RECORDS   0x18   and TAKEN 0x19: of a profile, see there
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from remora.errors import Error, PeerError
from remora.wire.calls import METHODS, method_of
from remora.wire.layout import HEADER, Reader, Writer
from remora.wire.method import Method
from remora.wire.profile import RECORDS, TAKEN, Records, Taken, read_records, read_taken, write_records, write_taken
from remora.wire.status import read_status, write_status

__all__ = [
    "FAILURE",
    "GOAWAY",
    "MAX_REQUESTS",
    "PING",
    "PONG",
    "REQUEST",
    "RESPONSE",
    "Control",
    "Failure",
    "Goaway",
    "Ping",
    "Pong",
    "Request",
    "Response",
    "decode_control",
    "encode_control",
]

PING: Final = 0x10
PONG: Final = 0x11
GOAWAY: Final = 0x12
FAILURE: Final = 0x13
REQUEST: Final = 0x14
RESPONSE: Final = 0x15
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
class Request:
    """Client: a call; `body` is its method's dataclass (wire.calls). Ids are given by the client and are not 0."""

    id: int
    body: Any


@dataclass(frozen=True, slots=True)
class Response:
    """Server: the answer to the request with the same id (of its method's kind), or an Error."""

    id: int
    method: int
    body: Any


Control: TypeAlias = Ping | Pong | Goaway | Failure | Request | Response | Records | Taken


def encode_control(message: Control) -> bytes:
    """The frame of a control message. Raises UsageError for a request that no peer would take."""
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
            method = method_of(message.body)
            return METHODS[method].write(writer.u32(message.id).u16(method).u16(0), message.body).frame(REQUEST)
        case Records():
            return write_records(writer, message).frame(RECORDS)
        case Taken():
            return write_taken(writer, message).frame(TAKEN)
    writer.u32(message.id).u16(message.method).u8(not isinstance(message.body, Error)).u8(0)
    if isinstance(message.body, Error):
        return write_status(writer, message.body).frame(RESPONSE)
    return METHODS[message.method].write_answer(writer, message.body).frame(RESPONSE)


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
            request_id, _, method = _read_call(reader)
            reader.zeros(2)
            return Request(request_id, method.read(reader))
        case 0x15:
            return _read_response(reader)
        case 0x18:
            return read_records(reader)
        case 0x19:
            return read_taken(reader)
    raise PeerError(f"an unknown control frame {kind:#x}")


def _read_nonce(reader: Reader) -> int:
    nonce = reader.u64()
    reader.end()
    return nonce


def _read_call(reader: Reader) -> tuple[int, int, Method]:
    """(request id, method, what it is)"""
    request_id, number = reader.u32(), reader.u16()
    if request_id == 0:
        raise PeerError("the request id 0 is not one")
    method = METHODS.get(number)
    if method is None:
        raise PeerError(f"an unknown method {number:#x}")
    return request_id, number, method


def _read_response(reader: Reader) -> Response:
    request_id, number, method = _read_call(reader)
    good = reader.u8()
    reader.zeros(1)
    if good not in (0, 1):
        raise PeerError(f"a response that is neither good nor bad ({good})")
    if not good:
        return Response(request_id, number, read_status(reader))
    return Response(request_id, number, method.read_answer(reader))
