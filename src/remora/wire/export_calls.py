"""Calls about what an artifact exports.

EXECUTABLE_EXPORTS 0x22     as the compiler recorded it; a long list comes in pieces
    request    executable's canonical id u64 | first u32 | 0 u32
    response   all u32 | here u32, those from `first` on | for each: bindings u16 | words of constants u16 | workgroup x y z u32
               | name text
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from remora.base.ids import ResourceType
from remora.errors import PeerError
from remora.wire.layout import Reader, Writer, is_id
from remora.wire.method import Method

__all__ = [
    "EXECUTABLE_EXPORTS",
    "MAX_EXPORTS",
    "MAX_EXPORT_NAME",
    "METHODS",
    "PIECE",
    "ExecutableExports",
    "ExportEntry",
    "Exports",
]

EXECUTABLE_EXPORTS: Final = 0x22
MAX_EXPORTS: Final = 1 << 16
#: The most exports in one answer.
PIECE: Final = 256
#: Bytes of an export's name; a longer one is cut.
MAX_EXPORT_NAME: Final = 1024
_ENTRY_BYTES: Final = 18


class ExportEntry(NamedTuple):
    """One export; 0 stands for what was not recorded."""

    name: str
    bindings: int
    constants: int
    workgroup: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class ExecutableExports:
    """Tell what a loaded executable exports, from number `first` on."""

    executable: int
    first: int = 0


@dataclass(frozen=True, slots=True)
class Exports:
    """Some of the `total` exports."""

    total: int
    entries: tuple[ExportEntry, ...]


def _write_request(writer: Writer, body: ExecutableExports) -> Writer:
    return writer.u64(body.executable).u32(body.first).u32(0)


def _read_request(reader: Reader) -> ExecutableExports:
    executable, first = reader.u64(), reader.u32()
    reader.zeros(4)
    reader.end()
    if not is_id(executable, ResourceType.EXECUTABLE, provisional=False):
        raise PeerError(f"the exports of {executable:#x}, which is no id of an executable")
    return ExecutableExports(executable, first)


def _write_answer(writer: Writer, body: Exports) -> Writer:
    writer.u32(body.total).u32(len(body.entries))
    for name, bindings, constants, workgroup in body.entries:
        writer.u16(bindings).u16(constants)
        for size in workgroup:
            writer.u32(size)
        writer.text(name, MAX_EXPORT_NAME)
    return writer


def _read_answer(reader: Reader) -> Exports:
    total, count = reader.u32(), reader.u32()
    if total > MAX_EXPORTS or count > min(total, PIECE):
        raise PeerError(f"{count} of {total} exports in one answer; {PIECE} of {MAX_EXPORTS} are the most")
    reader.enough(count, _ENTRY_BYTES)
    entries = tuple(_read_entry(reader) for _ in range(count))
    reader.end()
    return Exports(total, entries)


def _read_entry(reader: Reader) -> ExportEntry:
    bindings, constants = reader.u16(), reader.u16()
    workgroup = reader.u32(), reader.u32(), reader.u32()
    return ExportEntry(reader.text(MAX_EXPORT_NAME), bindings, constants, workgroup)


METHODS: Final[dict[int, Method]] = {
    EXECUTABLE_EXPORTS: Method(ExecutableExports, _write_request, _read_request, _write_answer, _read_answer),
}
