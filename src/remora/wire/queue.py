"""Frames of the queue lane: the hot path, so plain functions over precompiled structs instead of a dataclass a message.

    COMMAND    size u32 | 0x30 | op u8 | waits u8 | 0 | axis u64 | epoch u64 | waits x (axis u64, epoch u64) | body of the op
    ALLOCATE   size u32 | 0x31 | late u8 | device u16 | provisional id u64 | size in bytes u64
    RELEASE    size u32 | 0x32 | 0 u8  | count u16    | submissions u64 | count x id u64
    ADVANCE    size u32 | 0x38 | failed u8 | names u16 | axis u64 | epoch u64 | names x (provisional u64, id u64) | status if failed
    RESULT     size u32 | 0x39 | pad u8 | 0 u16       | axis u64 | epoch u64 | data of a READ, and `pad` bytes (0 to 7) of zero
    UNNAMED    size u32 | 0x3a | 0 u8  | 0 u16        | provisional id u64 | status
    EVENT      size u32 | 0x33 | action u8 | device u16 (CREATE) | event id u64 | number u64 (QUERY, WAIT)
    STATE      size u32 | 0x3b | 0 clear, 1 set, 2 failed u8 | QUERY or WAIT u16 | event id u64 | number u64 | status if failed

A COMMAND signals exactly one entry, (axis, epoch), and epochs on an axis are consecutive from 1. ADVANCE says that everything
on the axis up to and including `epoch` is done; a failed one says that `epoch` failed and that the axis has ended. An older
ADVANCE is no error, and one at epoch 0 only brings names. Each ALLOCATE is answered once: by a name in an ADVANCE or by UNNAMED.
EVENT does what the host does with an event, at once: CREATE 0 (its provisional id stays), SIGNAL 1, RESET 2, QUERY 3, WAIT 4.
STATE answers QUERY with its number, and WAIT once the event is set; of several WAITs that end together the last is answered.
A late ALLOCATE makes a buffer without memory, which the command ALLOCA gives it.
RELEASE names the number of COMMANDs sent before it: the server frees nothing while one of them is not yet submitted to the device.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Final

from remora.base.frontier import MAX_FRONTIER, Frontier
from remora.base.ids import ResourceType
from remora.errors import Error, PeerError
from remora.wire.commands import MAX_INLINE
from remora.wire.layout import Reader, Writer, is_id
from remora.wire.status import read_status, write_status

__all__ = [
    "ADVANCE",
    "ADVANCE_SIZE",
    "ALLOCATE",
    "COMMAND",
    "EVENT",
    "EVENT_CREATE",
    "EVENT_QUERY",
    "EVENT_RESET",
    "EVENT_SIGNAL",
    "EVENT_WAIT",
    "HEAD",
    "MAX_NAMES",
    "MAX_RELEASE",
    "RELEASE",
    "RESULT",
    "STATE",
    "UNNAMED",
    "decode_advance",
    "decode_allocate",
    "decode_command",
    "decode_event",
    "decode_release",
    "decode_result",
    "decode_state",
    "decode_unnamed",
    "encode_advance",
    "encode_allocate",
    "encode_command",
    "encode_event",
    "encode_release",
    "encode_result",
    "encode_state",
    "encode_unnamed",
]

COMMAND: Final = 0x30
ALLOCATE: Final = 0x31
RELEASE: Final = 0x32
ADVANCE: Final = 0x38
RESULT: Final = 0x39
UNNAMED: Final = 0x3A
EVENT: Final = 0x33
STATE: Final = 0x3B
EVENT_CREATE, EVENT_SIGNAL, EVENT_RESET, EVENT_QUERY, EVENT_WAIT = range(5)

#: Ids in one RELEASE, and names in one ADVANCE.
MAX_RELEASE: Final = 4096
MAX_NAMES: Final = 4096

#: size, kind, byte, byte, byte: enough to tell frames apart.
HEAD: Final = struct.Struct("<IBBBB")
_COMMAND: Final = struct.Struct("<IBBBBQQ")
_PAIR_HEAD: Final = struct.Struct("<IBBHQQ")
_PAIRS: Final = tuple(struct.Struct(f"<{2 * count}Q") for count in range(MAX_FRONTIER + 1))
ADVANCE_SIZE: Final = _PAIR_HEAD.size
_ZEROS: Final = bytes(8)


def encode_command(op: int, axis: int, epoch: int, waits: Frontier, body: bytes | bytearray) -> bytes:
    """A COMMAND. `body` has a size that is a multiple of 8."""
    if not waits:
        return _COMMAND.pack(24 + len(body), COMMAND, op, 0, 0, axis, epoch) + body
    count = len(waits)
    pairs = _PAIRS[count].pack(*(value for pair in waits for value in pair))
    return _COMMAND.pack(24 + 16 * count + len(body), COMMAND, op, count, 0, axis, epoch) + pairs + body


def decode_command(view: memoryview, pos: int, size: int) -> tuple[int, int, int, Frontier, int]:
    """(op, axis, epoch, waits, position of the body) of the COMMAND at view[pos : pos + size]."""
    if size < 24:
        raise PeerError("a COMMAND shorter than its header")
    _, _, op, count, zero, axis, epoch = _COMMAND.unpack_from(view, pos)
    if zero or epoch == 0:
        raise PeerError("a COMMAND with reserved bits or the epoch 0")
    if not count:
        return op, axis, epoch, (), pos + 24
    if count > MAX_FRONTIER or 24 + 16 * count > size:
        raise PeerError(f"a COMMAND with {count} waits in {size} bytes; {MAX_FRONTIER} are possible")
    flat = _PAIRS[count].unpack_from(view, pos + 24)
    waits = tuple(zip(flat[::2], flat[1::2], strict=True))
    if any(left[0] >= right[0] for left, right in pairwise(waits)) or not all(flat[1::2]):
        raise PeerError("waits must be strictly ascending by axis, with epochs from 1")
    return op, axis, epoch, waits, pos + 24 + 16 * count


def encode_allocate(device: int, resource: int, size: int, late: bool) -> bytes:
    """An ALLOCATE; a late one leaves the memory to the command ALLOCA."""
    return _PAIR_HEAD.pack(24, ALLOCATE, late, device, resource, size)


def decode_allocate(view: memoryview, pos: int, size: int) -> tuple[int, int, int, bool]:
    """(device, provisional id, bytes, late)."""
    _, _, late, device, resource, count = _exact(view, pos, size, 24, "ALLOCATE")
    if late > 1:
        raise PeerError("an ALLOCATE with unknown flags")
    if not is_id(resource, ResourceType.BUFFER, provisional=True):
        raise PeerError(f"an ALLOCATE under {resource:#x}, which is no provisional id of a buffer")
    return device, resource, count, bool(late)


def encode_release(submissions: int, ids: list[int]) -> bytes:
    """A RELEASE of at most MAX_RELEASE ids."""
    return struct.pack(f"<IBBHQ{len(ids)}Q", 16 + 8 * len(ids), RELEASE, 0, len(ids), submissions, *ids)


def decode_release(view: memoryview, pos: int, size: int) -> tuple[int, tuple[int, ...]]:
    """(submissions, ids)."""
    if size < 16:
        raise PeerError("a RELEASE shorter than its header")
    _, _, zero, count, submissions = struct.unpack_from("<IBBHQ", view, pos)
    if zero or not 1 <= count <= MAX_RELEASE or size != 16 + 8 * count:
        raise PeerError(f"a RELEASE of {count} ids in {size} bytes")
    return submissions, struct.unpack_from(f"<{count}Q", view, pos + 16)


def encode_advance(axis: int, epoch: int, names: list[tuple[int, int]] | None = None, failure: Error | None = None) -> bytes:
    """An ADVANCE with resolutions, and with the status when `epoch` failed."""
    if not names and failure is None:
        return _PAIR_HEAD.pack(24, ADVANCE, 0, 0, axis, epoch)
    writer = Writer().u64(axis).u64(epoch)
    for provisional, canonical in names or ():
        writer.u64(provisional).u64(canonical)
    if failure is not None:
        write_status(writer, failure)
    return writer.frame(ADVANCE, failure is not None, len(names or ()))


def decode_advance(view: memoryview, pos: int, size: int) -> tuple[int, int, tuple[tuple[int, int], ...], Error | None]:
    """(axis, epoch, names, failure)."""
    if size < 24:
        raise PeerError("an ADVANCE shorter than its header")
    _, _, failed, count, axis, epoch = _PAIR_HEAD.unpack_from(view, pos)
    if size == 24 and epoch and not failed and not count:
        return axis, epoch, (), None
    if failed > 1 or count > MAX_NAMES or (epoch == 0 and (failed or not count)):
        raise PeerError(f"an ADVANCE to epoch {epoch} with flags {failed:#x} and {count} names")
    reader = Reader(view[pos + 24 : pos + size], "an ADVANCE")
    reader.enough(count, 16)
    names = tuple(_read_name(reader) for _ in range(count))
    if failed:
        return axis, epoch, names, read_status(reader)
    reader.end()
    return axis, epoch, names, None


def encode_result(axis: int, epoch: int, data: memoryview | bytearray) -> bytes:
    """A RESULT: what the READ at (axis, epoch) read."""
    pad = -len(data) % 8
    return b"".join((_PAIR_HEAD.pack(24 + len(data) + pad, RESULT, pad, 0, axis, epoch), data, _ZEROS[:pad]))


def decode_result(view: memoryview, pos: int, size: int) -> tuple[int, int, memoryview]:
    """(axis, epoch, data)."""
    if size < 24:
        raise PeerError("a RESULT shorter than its header")
    _, _, pad, aux, axis, epoch = _PAIR_HEAD.unpack_from(view, pos)
    end = pos + size - pad
    if aux or epoch == 0 or pad > 7 or not 0 <= end - pos - 24 <= MAX_INLINE or any(view[end : pos + size]):
        raise PeerError(f"a RESULT of {size} bytes for epoch {epoch} with {pad} bytes of padding and flags {aux:#x}")
    return axis, epoch, view[pos + 24 : end]


def encode_unnamed(resource: int, error: Error) -> bytes:
    """An UNNAMED: the provisional id will never be resolved."""
    return write_status(Writer().u64(resource), error).frame(UNNAMED)


def decode_unnamed(view: memoryview, pos: int, size: int) -> tuple[int, Error]:
    """(provisional id, why)."""
    if size < 8:
        raise PeerError("an UNNAMED shorter than its header")
    _, _, flags, low, high = HEAD.unpack_from(view, pos)
    if flags or low or high:
        raise PeerError("an UNNAMED with unknown flags")
    reader = Reader(view[pos + 8 : pos + size], "an UNNAMED")
    resource = reader.u64()
    if not is_id(resource, ResourceType.BUFFER, provisional=True):
        raise PeerError(f"an UNNAMED for {resource:#x}, which is no provisional id of a buffer")
    return resource, read_status(reader)


def encode_event(action: int, device: int, event: int, number: int) -> bytes:
    """An EVENT."""
    return _PAIR_HEAD.pack(24, EVENT, action, device, event, number)


def decode_event(view: memoryview, pos: int, size: int) -> tuple[int, int, int, int]:
    """(action, device, event, number)."""
    _, _, action, device, event, number = _exact(view, pos, size, 24, "EVENT")
    if action > EVENT_WAIT or (device and action != EVENT_CREATE) or (number != 0) != (action in (EVENT_QUERY, EVENT_WAIT)):
        raise PeerError(f"an EVENT with the action {action}, the device {device} and the number {number}")
    if not is_id(event, ResourceType.EVENT, provisional=True):
        raise PeerError(f"an EVENT for {event:#x}, which is no provisional id of an event")
    return action, device, event, number


def encode_state(action: int, event: int, number: int, state: bool | Error) -> bytes:
    """A STATE."""
    if not isinstance(state, Error):
        return _PAIR_HEAD.pack(24, STATE, state, action, event, number)
    return write_status(Writer().u64(event).u64(number), state).frame(STATE, 2, action)


def decode_state(view: memoryview, pos: int, size: int) -> tuple[int, int, int, bool | Error]:
    """(action, event, number, whether it is set or why that cannot be known)."""
    if size < 24:
        raise PeerError("a STATE shorter than its header")
    _, _, state, action, event, number = _PAIR_HEAD.unpack_from(view, pos)
    if state > 2 or action not in (EVENT_QUERY, EVENT_WAIT) or not number or (state < 2 and size != 24):
        raise PeerError(f"a STATE of {size} bytes with the state {state}, to the action {action} with the number {number}")
    if not is_id(event, ResourceType.EVENT, provisional=True):
        raise PeerError(f"a STATE of {event:#x}, which is no provisional id of an event")
    if state < 2:
        return action, event, number, bool(state)
    return action, event, number, read_status(Reader(view[pos + 24 : pos + size], "a STATE"))


def _read_name(reader: Reader) -> tuple[int, int]:
    provisional, canonical = reader.u64(), reader.u64()
    buffer = ResourceType.BUFFER
    if not is_id(provisional, buffer, provisional=True) or not is_id(canonical, buffer, provisional=False):
        raise PeerError(f"an ADVANCE gives {provisional:#x} the name {canonical:#x}: these are no ids of a buffer")
    return provisional, canonical


def _exact(view: memoryview, pos: int, size: int, want: int, name: str) -> tuple[int, int, int, int, int, int]:
    if size != want:
        raise PeerError(f"a frame {name} of {size} bytes; it has {want}")
    a, b, c, d, e, f = _PAIR_HEAD.unpack_from(view, pos)
    return a, b, c, d, e, f
