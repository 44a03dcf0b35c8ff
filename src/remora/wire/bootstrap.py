"""The first messages of a session: HELLO, ACCEPT, REJECT on the control lane, JOIN and JOINED on the others (H03, H04).

    client                          server
    control: HELLO         ---->
                           <----    ACCEPT (session id, token, axes, limits, device catalog) or REJECT (status)
    queue:   JOIN (token)  ---->
    bulk:    JOIN (token)  ---->    once for each connection that ACCEPT says
                           <----    JOINED on each lane, once it belongs to the session's process

Each begins with the frame header, whose last field is the protocol version, and with MAGIC.

    HELLO   0x01   capabilities u32 | required u32 | machine u8 | bulk u8 | 0 u16 | axes u32 | axes x (axis u64, epoch u64)
                   | client text
    ACCEPT  0x02   session id u64 | token x 16 | capabilities u32 | machine u8 | bulk u8 | 0 u16 | axes as in HELLO | window u32
                   | staging u32 | catalog
    REJECT  0x03   status
    JOIN    0x04   session id u64 | token x 16 | lane u64 (1 queue, 2 bulk, 3 to 9 more of bulk)
    JOINED  0x05   session id u64 | lane u64
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

from remora.base.frontier import MAX_FRONTIER
from remora.errors import Error, PeerError, Status
from remora.wire.bulk import MAX_STAGING, MIN_STAGING
from remora.wire.catalog import DeviceEntry, read_catalog, write_catalog
from remora.wire.layout import HEADER, MAGIC, VERSION, Reader, Writer
from remora.wire.status import read_status, write_status

__all__ = [
    "ACCEPT",
    "CAPABILITIES",
    "CAPABILITY_BULK",
    "CAPABILITY_RDMA",
    "CAPABILITY_SHARED",
    "HELLO",
    "JOIN",
    "JOINED",
    "JOIN_SIZE",
    "MAX_BULK",
    "REJECT",
    "TOKEN_SIZE",
    "Accept",
    "Bootstrap",
    "Hello",
    "Join",
    "Joined",
    "Reject",
    "decode_bootstrap",
    "encode_bootstrap",
]

HELLO: Final = 0x01
ACCEPT: Final = 0x02
REJECT: Final = 0x03
JOIN: Final = 0x04
JOINED: Final = 0x05
TOKEN_SIZE: Final = 16
#: A JOIN frame has this many bytes, so a listener can read exactly one and hand the socket over.
JOIN_SIZE: Final = 48
MAX_CLIENT_NAME: Final = 256
#: Connections that a bulk lane may have, and the numbers of all lanes that join.
MAX_BULK: Final = 8
LANES: Final = range(1, 2 + MAX_BULK)

#: Capability bits. A set bit that is not listed is refused.
CAPABILITY_BULK: Final = 1
CAPABILITY_RDMA: Final = 2
#: The client maps memory of the server: descriptors come over the control lane, LEND on the bulk lane, and LOCATE answers.
CAPABILITY_SHARED: Final = 4
CAPABILITIES: Final = CAPABILITY_BULK | CAPABILITY_RDMA | CAPABILITY_SHARED


@dataclass(frozen=True, slots=True)
class Hello:
    """Client: who I am, what I can do and must have, and the axes I signal (none today)."""

    capabilities: int = CAPABILITY_BULK
    required: int = CAPABILITY_BULK
    machine: int = 0
    axes: tuple[tuple[int, int], ...] = ()
    client: str = ""
    bulk: int = 1
    """Connections that the bulk lane should have."""


@dataclass(frozen=True, slots=True)
class Accept:
    """Server: the session and everything immutable about it. Times in milliseconds."""

    session_id: int
    token: bytes
    capabilities: int
    """What both sides have: a subset of HELLO's, with all that HELLO requires."""
    machine: int
    axes: tuple[tuple[int, int], ...]
    """(axis, epoch) of the session's timelines; a new session's are at epoch 0."""
    command_window: int
    """Commands that may be submitted and not yet be answered by ADVANCE."""
    staging: int
    """Bytes of uploads that the server stages in all while their destinations are not ready."""
    devices: tuple[DeviceEntry, ...]
    bulk: int = 1
    """Connections that the bulk lane has: what HELLO asks for, or fewer."""


@dataclass(frozen=True, slots=True)
class Reject:
    """Server: no session, and why."""

    error: Error


@dataclass(frozen=True, slots=True)
class Join:
    """Client, first on a new connection: this is lane 1 (queue) or 2 (bulk) of that session."""

    session_id: int
    token: bytes
    lane: int


@dataclass(frozen=True, slots=True)
class Joined:
    """Server: the lane belongs to the session."""

    session_id: int
    lane: int


Bootstrap: TypeAlias = Hello | Accept | Reject | Join | Joined


def encode_bootstrap(message: Bootstrap) -> bytes:
    """The frame of a bootstrap message."""
    writer = Writer().raw(MAGIC)
    match message:
        case Hello():
            writer.u32(message.capabilities).u32(message.required).u8(message.machine).u8(message.bulk).u16(0)
            _write_axes(writer, message.axes).text(message.client, MAX_CLIENT_NAME)
            return writer.frame(HELLO, 0, VERSION)
        case Accept():
            writer.u64(message.session_id).raw(message.token).u32(message.capabilities).u8(message.machine).u8(message.bulk).u16(0)
            _write_axes(writer, message.axes).u32(message.command_window).u32(message.staging)
            write_catalog(writer, message.devices)
            return writer.frame(ACCEPT, 0, VERSION)
        case Reject():
            return write_status(writer, message.error).frame(REJECT, 0, VERSION)
        case Join():
            return writer.u64(message.session_id).raw(message.token).u64(message.lane).frame(JOIN, 0, VERSION)
    return writer.u64(message.session_id).u64(message.lane).frame(JOINED, 0, VERSION)


def decode_bootstrap(frame: memoryview) -> Bootstrap:
    """The message in one whole frame. Raises PeerError for anything else, and names both versions when they differ."""
    if len(frame) < 16 or bytes(frame[8:16]) != MAGIC:
        raise PeerError(f"the peer does not speak remora: it began with {bytes(frame[:16])!r}")
    size, kind, flags, version = HEADER.unpack_from(frame)
    if version != VERSION:
        raise PeerError(f"the peer speaks protocol version {version}, this side version {VERSION}: install the same remora on both")
    if size != len(frame) or flags:
        raise PeerError("a bootstrap frame with a wrong size or unknown flags")
    reader = Reader(frame[16:], "a bootstrap frame")
    match kind:
        case 0x01:
            return _read_hello(reader)
        case 0x02:
            return _read_accept(reader)
        case 0x03:
            return Reject(read_status(reader))
        case 0x04:
            session_id, token, lane = _read_session(reader), bytes(reader.raw(TOKEN_SIZE)), reader.u64()
            reader.end()
            return Join(session_id, token, _check_lane(lane))
        case 0x05:
            session_id, lane = _read_session(reader), reader.u64()
            reader.end()
            return Joined(session_id, _check_lane(lane))
    raise PeerError(f"an unknown bootstrap frame {kind:#x}")


def _read_session(reader: Reader) -> int:
    session_id = reader.u64()
    if session_id == 0:
        raise PeerError("the session id 0 is not one")
    return session_id


def _check_lane(lane: int) -> int:
    if lane not in LANES:
        raise PeerError(f"there is no lane {lane}")
    return lane


def _read_hello(reader: Reader) -> Hello:
    capabilities, required = _read_capabilities(reader), _read_capabilities(reader)
    machine, bulk = reader.u8(), _read_bulk(reader)
    axes = _read_axes(reader)
    client = reader.text(MAX_CLIENT_NAME)
    reader.end()
    return Hello(capabilities, required, machine, axes, client, bulk)


def _read_accept(reader: Reader) -> Accept:
    session_id, token = _read_session(reader), bytes(reader.raw(TOKEN_SIZE))
    capabilities, machine, bulk = _read_capabilities(reader), reader.u8(), _read_bulk(reader)
    axes, window, staging = _read_axes(reader), reader.u32(), reader.u32()
    if window == 0:
        raise PeerError("a command window of 0 admits nothing")
    if not MIN_STAGING <= staging <= MAX_STAGING:
        raise PeerError(f"a staging budget of {staging} bytes; it is {MIN_STAGING} to {MAX_STAGING}")
    if any(epoch for _, epoch in axes):
        raise PeerError("an axis of a new session starts at epoch 0")
    return Accept(session_id, token, capabilities, machine, axes, window, staging, read_catalog(reader), bulk)


def _read_capabilities(reader: Reader) -> int:
    bits = reader.u32()
    if bits & ~CAPABILITIES:
        raise PeerError(f"unknown capability bits {bits & ~CAPABILITIES:#x}", code=Status.PROTOCOL)
    return bits


def _read_bulk(reader: Reader) -> int:
    bulk = reader.u8()
    reader.zeros(2)
    if not 1 <= bulk <= MAX_BULK:
        raise PeerError(f"{bulk} connections of the bulk lane; 1 to {MAX_BULK} are possible")
    return bulk


def _write_axes(writer: Writer, axes: tuple[tuple[int, int], ...]) -> Writer:
    writer.u32(len(axes))
    for axis, epoch in axes:
        writer.u64(axis).u64(epoch)
    return writer


def _read_axes(reader: Reader) -> tuple[tuple[int, int], ...]:
    count = reader.u32()
    if count > MAX_FRONTIER:
        raise PeerError(f"{count} axes, the limit is {MAX_FRONTIER}")
    reader.enough(count, 16)
    axes = tuple((reader.u64(), reader.u64()) for _ in range(count))
    if any(left[0] >= right[0] for left, right in pairwise(axes)):
        raise PeerError("axes must be strictly ascending")
    return axes
