"""The ELF file that a code object is: its header, its notes and its dynamic symbols.

The runtime is given an address without a size and trusts what it reads there, so everything that a header places has to lie inside
the bytes before it sees them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from remora.errors import UsageError

__all__ = ["Elf", "Note", "Symbol"]

#: What hipcc writes around the code objects of several targets, and that compressed.
OFFLOAD_BUNDLES: Final = (b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB")
CLASS_64, LITTLE_ENDIAN, HSA_ABI, AMDGPU, SHARED_OBJECT = 2, 1, 64, 224, 3
NOTE_SEGMENT, NO_BITS, DYNAMIC_SYMBOLS, STRINGS = 4, 8, 11, 3
#: Far above what compilers write, and low enough that headers which overlap cost no time.
MAX_HEADERS, MAX_NOTES, MAX_NAME = 1024, 256, 16 << 10

#: ident, type, machine, version, entry, program and section headers at, flags, header size, then size and count of both headers
HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
#: type, flags, offset, virtual address, physical address, size in the file, size in memory, alignment
SEGMENT: Final = struct.Struct("<IIQQQQQQ")
#: name, type, flags, address, offset, size, link, info, alignment, size of an entry
SECTION: Final = struct.Struct("<IIQQQQIIQQ")
#: name, info, other, section, value, size
SYMBOL: Final = struct.Struct("<IBBHQQ")
#: bytes of the name, bytes of the content, type
NOTE: Final = struct.Struct("<III")


class Note(NamedTuple):
    """What a note section says."""

    name: bytes
    kind: int
    content: bytes


class Symbol(NamedTuple):
    """A name that the loader can find."""

    name: str
    size: int


class _Section(NamedTuple):
    kind: int
    offset: int
    size: int
    link: int


class Elf:
    """A whole ELF file for an AMD GPU. Raises UsageError that says what the bytes are instead."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        if data.startswith(OFFLOAD_BUNDLES):
            raise UsageError(
                "the artifact is a bundle of clang, not a code object: take out the one for this target with "
                "`clang-offload-bundler --unbundle`, or build with `--no-gpu-bundle-output`"
            )
        if len(data) < HEADER.size or data[:4] != b"\x7fELF":
            raise UsageError(f"the artifact ({len(data)} bytes, starting with {data[:4]!r}) is no code object (HSACO)")
        ident, kind, machine, _, _, segments, sections, self.flags, *sizes = HEADER.unpack_from(data)
        if ident[4] != CLASS_64 or ident[5] != LITTLE_ENDIAN or machine != AMDGPU:
            raise UsageError(f"the artifact is an ELF file for machine {machine}, not for an AMD GPU: choose another target")
        if ident[7] != HSA_ABI:
            raise UsageError(f"the code object is for the system ABI {ident[7]}, not HSA: compile for amdgcn-amd-amdhsa")
        if kind != SHARED_OBJECT:
            raise UsageError(f"the code object is an ELF file of type {kind}, not linked: link it with `ld.lld -shared`")
        self.abi = ident[8]
        _, segment_size, segment_count, section_size, section_count, _ = sizes
        self._segments = self._table("program", SEGMENT, segments, segment_size, segment_count)
        self._sections = [
            _Section(entry[1], entry[4], entry[5], entry[6])
            for entry in self._table("section", SECTION, sections, section_size, section_count)
        ]
        self._check_inside()

    def notes(self) -> Iterator[Note]:
        """The first MAX_NOTES of all note segments."""
        places = [(offset, size) for kind, _, offset, _, _, size, _, _ in self._segments if kind == NOTE_SEGMENT]
        yield from islice((note for offset, size in places for note in self._notes(offset, offset + size)), MAX_NOTES)

    def symbols(self) -> list[Symbol]:
        """The dynamic ones that have a name. A file has one table of them."""
        section = next((section for section in self._sections if section.kind == DYNAMIC_SYMBOLS), None)
        if section is None:
            return []
        names = self._names(section.link)
        entries = SYMBOL.iter_unpack(self._data[section.offset :][: section.size // SYMBOL.size * SYMBOL.size])
        return [Symbol(_text_at(names, name), size) for name, _, _, _, _, size in entries if name]

    def _table(self, what: str, form: struct.Struct, at: int, size: int, count: int) -> list[tuple[int, ...]]:
        if count > MAX_HEADERS or (count and size != form.size):
            raise _damaged(f"it has {count} {what} headers of {size} bytes")
        if at + count * size > len(self._data):
            raise _damaged(f"it is cut off before the end of its {what} headers")
        return [form.unpack_from(self._data, at + index * size) for index in range(count)]

    def _check_inside(self) -> None:
        ends = [offset + size for _, _, offset, _, _, size, _, _ in self._segments]
        ends += [section.offset + section.size for section in self._sections if section.kind not in {0, NO_BITS}]
        if max(ends, default=0) > len(self._data):
            raise _damaged(f"it has {len(self._data)} bytes, and something in it ends at {max(ends)}")

    def _notes(self, at: int, end: int) -> Iterator[Note]:
        while at + NOTE.size <= end:
            name_size, size, kind = NOTE.unpack_from(self._data, at)
            name_at = at + NOTE.size
            content_at = name_at + _padded(name_size)
            if content_at + size > end:
                raise _damaged("a note is cut off")
            yield Note(self._data[name_at : name_at + name_size].rstrip(b"\0"), kind, self._data[content_at : content_at + size])
            at = content_at + _padded(size)

    def _names(self, number: int) -> bytes:
        if number >= len(self._sections) or self._sections[number].kind != STRINGS:
            raise _damaged("its symbols have no names")
        section = self._sections[number]
        return self._data[section.offset : section.offset + section.size]


def _text_at(names: bytes, at: int) -> str:
    end = names.find(b"\0", at, at + MAX_NAME)
    if end < 0:
        raise _damaged("the name of a symbol has no end")
    return names[at:end].decode(errors="replace")


def _padded(size: int) -> int:
    return -(-size // 4) * 4


def _damaged(why: str) -> UsageError:
    return UsageError(f"the code object is damaged: {why}; build the bundle again")
