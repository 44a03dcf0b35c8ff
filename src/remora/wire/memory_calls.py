"""Calls about virtual memory (H22). Offsets and lengths in bytes; whether they fit is the server's to say.

VIRTUAL_RESERVE    0x50   request   provisional id u64 | size u64 | device u16 | 0 u48
                          response  canonical id u64 of a buffer: commands name it like any other
PHYSICAL_ALLOCATE  0x51   request   provisional id u64 | size u64 | device u16 | 0 u48
                          response  canonical id u64
VIRTUAL_MAP        0x52   request   reservation id u64 | placements u32 | 0 u32 | placements x placement
                          placement offset u64 | physical memory id u64 | physical offset u64 | length u64
                          response  nothing: all is mapped
VIRTUAL_UNMAP      0x53   request   reservation id u64 | offset u64 | length u64
                          response  nothing
VIRTUAL_PROTECT    0x54   request   reservation id u64 | offset u64 | length u64 | access u8 | 0 u56
                          response  nothing
MEMORY_CLOSE       0x55   request   id u64 of a reservation or of physical memory
                          response  nothing: it is given back, or will be when nothing maps or uses it any more
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from remora.base.ids import ResourceType
from remora.errors import PeerError
from remora.wire.layout import Reader, Writer, is_id
from remora.wire.method import Method, answers_done, answers_loaded

__all__ = [
    "MAX_PLACEMENTS",
    "MEMORY_CLOSE",
    "METHODS",
    "PHYSICAL_ALLOCATE",
    "VIRTUAL_MAP",
    "VIRTUAL_PROTECT",
    "VIRTUAL_RESERVE",
    "VIRTUAL_UNMAP",
    "MemoryClose",
    "PhysicalAllocate",
    "Placed",
    "VirtualMap",
    "VirtualProtect",
    "VirtualReserve",
    "VirtualUnmap",
]

VIRTUAL_RESERVE: Final = 0x50
PHYSICAL_ALLOCATE: Final = 0x51
VIRTUAL_MAP: Final = 0x52
VIRTUAL_UNMAP: Final = 0x53
VIRTUAL_PROTECT: Final = 0x54
MEMORY_CLOSE: Final = 0x55
#: Placements of one VIRTUAL_MAP.
MAX_PLACEMENTS: Final = 4096
#: Nothing, reading, reading and writing.
PROTECTIONS: Final = (0, 1, 3)


@dataclass(frozen=True, slots=True)
class VirtualReserve:
    """Reserve addresses under a provisional id of a buffer."""

    resource: int
    device: int
    size: int


@dataclass(frozen=True, slots=True)
class PhysicalAllocate:
    """Allocate physical memory under a provisional id."""

    resource: int
    device: int
    size: int


class Placed(NamedTuple):
    """Physical memory from an offset in it, to be mapped at an offset of the reservation."""

    offset: int
    physical: int
    physical_offset: int
    length: int


@dataclass(frozen=True, slots=True)
class VirtualMap:
    """Map all of these, or nothing."""

    reservation: int
    placements: tuple[Placed, ...]


@dataclass(frozen=True, slots=True)
class VirtualUnmap:
    """Take mapped pages away."""

    reservation: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class VirtualProtect:
    """Say how mapped pages may be used: 0 not at all, 1 reading, 3 reading and writing."""

    reservation: int
    offset: int
    length: int
    access: int


@dataclass(frozen=True, slots=True)
class MemoryClose:
    """Give a reservation or physical memory back."""

    resource: int


def _write_new(writer: Writer, body: VirtualReserve | PhysicalAllocate) -> Writer:
    return writer.u64(body.resource).u64(body.size).u16(body.device).raw(bytes(6))


def _read_new(body: Callable[[int, int, int], Any], kind: ResourceType, what: str) -> Callable[[Reader], Any]:
    def read(reader: Reader) -> Any:
        resource, size, device = reader.u64(), reader.u64(), reader.u16()
        reader.zeros(6)
        reader.end()
        if not is_id(resource, kind, provisional=True):
            raise PeerError(f"a request for {what} under {resource:#x}, which is no provisional id of it")
        return body(resource, device, size)

    return read


def _read_reservation(reader: Reader) -> int:
    resource = reader.u64()
    if not is_id(resource, ResourceType.BUFFER, provisional=False):
        raise PeerError(f"{resource:#x} is no id of a reservation")
    return resource


def _write_map(writer: Writer, body: VirtualMap) -> Writer:
    writer.u64(body.reservation).u32(len(body.placements)).u32(0)
    for placed in body.placements:
        writer.u64(placed.offset).u64(placed.physical).u64(placed.physical_offset).u64(placed.length)
    return writer


def _read_map(reader: Reader) -> VirtualMap:
    reservation, count = _read_reservation(reader), reader.u32()
    reader.zeros(4)
    if not 1 <= count <= MAX_PLACEMENTS:
        raise PeerError(f"a request to map {count} ranges; 1 to {MAX_PLACEMENTS} are possible")
    reader.enough(count, 32)
    placements = tuple(_read_placed(reader) for _ in range(count))
    reader.end()
    return VirtualMap(reservation, placements)


def _read_placed(reader: Reader) -> Placed:
    placed = Placed(reader.u64(), reader.u64(), reader.u64(), reader.u64())
    if not is_id(placed.physical, ResourceType.PHYSICAL_MEMORY, provisional=False):
        raise PeerError(f"a request to map {placed.physical:#x}, which is no id of physical memory")
    return placed


def _write_unmap(writer: Writer, body: VirtualUnmap) -> Writer:
    return writer.u64(body.reservation).u64(body.offset).u64(body.length)


def _read_unmap(reader: Reader) -> VirtualUnmap:
    body = VirtualUnmap(_read_reservation(reader), reader.u64(), reader.u64())
    reader.end()
    return body


def _write_protect(writer: Writer, body: VirtualProtect) -> Writer:
    return writer.u64(body.reservation).u64(body.offset).u64(body.length).u8(body.access).raw(bytes(7))


def _read_protect(reader: Reader) -> VirtualProtect:
    body = VirtualProtect(_read_reservation(reader), reader.u64(), reader.u64(), reader.u8())
    reader.zeros(7)
    reader.end()
    if body.access not in PROTECTIONS:
        raise PeerError(f"a request to protect with the access {body.access}, which is none of {PROTECTIONS}")
    return body


def _write_close(writer: Writer, body: MemoryClose) -> Writer:
    return writer.u64(body.resource)


def _read_close(reader: Reader) -> MemoryClose:
    resource = reader.u64()
    reader.end()
    if not any(is_id(resource, kind, provisional=False) for kind in (ResourceType.BUFFER, ResourceType.PHYSICAL_MEMORY)):
        raise PeerError(f"a request to close {resource:#x}, which is no id of a reservation or of physical memory")
    return MemoryClose(resource)


_read_reserve = _read_new(VirtualReserve, ResourceType.BUFFER, "a reservation")
_read_physical = _read_new(PhysicalAllocate, ResourceType.PHYSICAL_MEMORY, "physical memory")
METHODS: Final[dict[int, Method]] = {
    VIRTUAL_RESERVE: answers_loaded(VirtualReserve, _write_new, _read_reserve, ResourceType.BUFFER, "a buffer"),
    PHYSICAL_ALLOCATE: answers_loaded(
        PhysicalAllocate, _write_new, _read_physical, ResourceType.PHYSICAL_MEMORY, "physical memory"
    ),
    VIRTUAL_MAP: answers_done(VirtualMap, _write_map, _read_map),
    VIRTUAL_UNMAP: answers_done(VirtualUnmap, _write_unmap, _read_unmap),
    VIRTUAL_PROTECT: answers_done(VirtualProtect, _write_protect, _read_protect),
    MEMORY_CLOSE: answers_done(MemoryClose, _write_close, _read_close),
}
