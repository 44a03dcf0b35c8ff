"""Calls about profiles and the clock that their times are on.

PROFILE_BEGIN 0x60
    request    profile u32, a number that the client chose | device u16 | 0 u16
    response   nothing
PROFILE_FLUSH 0x61
    request    profile u32 | 0 u32
    response   nothing; it comes behind the RECORDS of every operation that was done when the request came
PROFILE_END   0x62
    request    profile u32 | 0 u32
    response   nothing; no RECORDS of this profile come behind it
CLOCK_READ    0x63
    request    nothing
    response   the server's monotonic clock in ns u64 | which clock that is u64: two sides that say the same read the same one
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from remora.errors import PeerError
from remora.wire.layout import Reader, Writer
from remora.wire.method import Method, answers_done

__all__ = [
    "CLOCK_READ",
    "METHODS",
    "PROFILE_BEGIN",
    "PROFILE_END",
    "PROFILE_FLUSH",
    "ClockIs",
    "ClockRead",
    "ProfileBegin",
    "ProfileEnd",
    "ProfileFlush",
]

PROFILE_BEGIN: Final = 0x60
PROFILE_FLUSH: Final = 0x61
PROFILE_END: Final = 0x62
CLOCK_READ: Final = 0x63


@dataclass(frozen=True, slots=True)
class ProfileBegin:
    """Begin to record what runs on a device's queues."""

    profile: int
    device: int


@dataclass(frozen=True, slots=True)
class ProfileFlush:
    """Send what is recorded."""

    profile: int


@dataclass(frozen=True, slots=True)
class ProfileEnd:
    """Record no more, and forget what was not sent."""

    profile: int


@dataclass(frozen=True, slots=True)
class ClockRead:
    """What time is it there?"""


@dataclass(frozen=True, slots=True)
class ClockIs:
    """The answer to ClockRead. `clock` is 0 when the server cannot tell which it is."""

    now_ns: int
    clock: int


def _profile(reader: Reader) -> int:
    profile = reader.u32()
    if not profile:
        raise PeerError("the profile 0 is none")
    return profile


def _read_begin(reader: Reader) -> ProfileBegin:
    body = ProfileBegin(_profile(reader), reader.u16())
    reader.zeros(2)
    reader.end()
    return body


def _read_flush(reader: Reader) -> ProfileFlush:
    body = ProfileFlush(_profile(reader))
    reader.zeros(4)
    reader.end()
    return body


def _read_end(reader: Reader) -> ProfileEnd:
    body = ProfileEnd(_profile(reader))
    reader.zeros(4)
    reader.end()
    return body


def _read_clock(reader: Reader) -> ClockRead:
    reader.end()
    return ClockRead()


def _read_answer(reader: Reader) -> ClockIs:
    body = ClockIs(reader.u64(), reader.u64())
    reader.end()
    return body


def _write_clock(writer: Writer, _: ClockRead) -> Writer:
    return writer


METHODS: Final[dict[int, Method]] = {
    PROFILE_BEGIN: answers_done(ProfileBegin, lambda writer, body: writer.u32(body.profile).u16(body.device).u16(0), _read_begin),
    PROFILE_FLUSH: answers_done(ProfileFlush, lambda writer, body: writer.u32(body.profile).u32(0), _read_flush),
    PROFILE_END: answers_done(ProfileEnd, lambda writer, body: writer.u32(body.profile).u32(0), _read_end),
    CLOCK_READ: Method(
        ClockRead, _write_clock, _read_clock, lambda writer, body: writer.u64(body.now_ns).u64(body.clock), _read_answer
    ),
}
