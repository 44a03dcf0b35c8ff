"""Resource ids and axes: u64 values whose bits say what they name.

    resource id   [63:56] type  [55] PROVISIONAL  [54:48] zero  [47:32] generation  [31:24] placement  [23:0] slot
    provisional   [63:56] type  [55] 1            [54:48] zero  [47:0] counter made by the client, from 1
    axis          [63:56] session epoch  [55:48] machine  [47:40] domain  [39:32] device  [31:24] queue  [23:0] incarnation

A canonical id is given by the server's table; a slot whose generation reached the last value is retired, so an id never
names two things. A provisional id is made by the client and is usable at once.
"""

from __future__ import annotations

from enum import IntEnum

from remora.errors import UsageError

__all__ = [
    "MAX_COUNTER",
    "MAX_GENERATION",
    "MAX_SLOT",
    "PROVISIONAL",
    "AxisDomain",
    "ResourceType",
    "describe_id",
    "is_provisional",
    "make_axis",
    "make_id",
    "make_provisional",
    "split_axis",
    "split_id",
    "type_of",
]

PROVISIONAL = 1 << 55
MAX_GENERATION = 0xFFFF
MAX_SLOT = 0xFFFFFF
MAX_COUNTER = (1 << 48) - 1
_RESERVED = 0x7F << 48


class ResourceType(IntEnum):
    """What a resource id names."""

    BUFFER = 1
    SEMAPHORE = 2
    EXECUTABLE = 3
    COMMAND_BUFFER = 4
    FILE = 5
    EVENT = 6
    PHYSICAL_MEMORY = 7


class AxisDomain(IntEnum):
    """What kind of timeline an axis is."""

    QUEUE = 0
    COLLECTIVE = 1
    EPILOGUE = 2
    HOST = 3


def make_id(kind: ResourceType, generation: int, slot: int, placement: int = 0) -> int:
    """The canonical id of a table slot. Raises UsageError when a field does not fit its bits."""
    if not (0 <= generation <= MAX_GENERATION and 0 <= slot <= MAX_SLOT and 0 <= placement <= 0xFF):
        raise UsageError(f"id field out of range: generation {generation}, slot {slot}, placement {placement}")
    return kind << 56 | generation << 32 | placement << 24 | slot


def make_provisional(kind: ResourceType, counter: int) -> int:
    """The id that a client gives to a resource before the server has answered; `counter` starts at 1."""
    if not 1 <= counter <= MAX_COUNTER:
        raise UsageError(f"provisional counter out of range: {counter}")
    return kind << 56 | PROVISIONAL | counter


def is_provisional(resource: int) -> bool:
    """Whether the id was made by a client and not by the server's table."""
    return bool(resource & PROVISIONAL)


def type_of(resource: int) -> ResourceType:
    """The type in an id. Raises UsageError for a type or reserved bits that no version of remora writes."""
    if resource & _RESERVED:
        raise UsageError(f"id {resource:#x} has reserved bits set")
    try:
        return ResourceType(resource >> 56)
    except ValueError:
        raise UsageError(f"id {resource:#x} names no known resource type") from None


def split_id(resource: int) -> tuple[ResourceType, int, int, int]:
    """(type, generation, placement, slot) of a canonical id."""
    return type_of(resource), resource >> 32 & MAX_GENERATION, resource >> 24 & 0xFF, resource & MAX_SLOT


def describe_id(resource: int) -> str:
    """An id for people: `buffer 12.3` (slot.generation) or `buffer new-7` (provisional)."""
    try:
        kind = type_of(resource).name.lower()
    except UsageError:
        return f"id {resource:#x}"
    if resource & PROVISIONAL:
        return f"{kind} new-{resource & MAX_COUNTER}"
    return f"{kind} {resource & MAX_SLOT}.{resource >> 32 & MAX_GENERATION}"


def make_axis(
    session_epoch: int, machine: int, domain: AxisDomain = AxisDomain.QUEUE, device: int = 0, queue: int = 0, incarnation: int = 0
) -> int:
    """The u64 name of one monotonic timeline."""
    fields = (session_epoch, machine, int(domain), device, queue)
    if not all(0 <= field <= 0xFF for field in fields) or not 0 <= incarnation <= 0xFFFFFF:
        raise UsageError(f"axis field out of range: {fields}, incarnation {incarnation}")
    return session_epoch << 56 | machine << 48 | domain << 40 | device << 32 | queue << 24 | incarnation


def split_axis(axis: int) -> tuple[int, int, AxisDomain, int, int]:
    """(session epoch, machine, domain, device, queue) of an axis. Raises UsageError for an unknown domain."""
    try:
        domain = AxisDomain(axis >> 40 & 0xFF)
    except ValueError:
        raise UsageError(f"axis {axis:#x} has an unknown domain") from None
    return axis >> 56, axis >> 48 & 0xFF, domain, axis >> 32 & 0xFF, axis >> 24 & 0xFF
