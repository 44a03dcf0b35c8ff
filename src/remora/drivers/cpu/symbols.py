"""The memory that an ELF shared library exports by name, read from its dynamic symbols: the loader tells addresses, but no sizes.

`check_elf` has passed: the program headers and the segments lie inside the artifact. Everything else is checked here (H25).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from remora.drivers.cpu.elf import HEADER, PROGRAM_HEADER
from remora.errors import UsageError

__all__ = ["Memory", "exported_memory"]

LOAD, DYNAMIC, RELRO = 1, 2, 0x6474E552
WRITABLE = 2
HASH, STRTAB, SYMTAB, STRSZ, GNU_HASH = 4, 5, 6, 10, 0x6FFFFEF5
WORD: Final = struct.Struct("<I")
TAG: Final = struct.Struct("<QQ")
#: name, type and binding, visibility, section, value, size
SYMBOL: Final = struct.Struct("<IBBHQQ")
OBJECT = 1
GLOBAL, WEAK = 1, 2
DEFAULT, PROTECTED = 0, 3


class Memory(NamedTuple):
    """Named memory: its bytes, and whether a program may write it."""

    size: int
    writable: bool


class _Segment(NamedTuple):
    kind: int
    flags: int
    offset: int
    start: int
    file_bytes: int
    bytes: int

    def holds(self, address: int, size: int) -> bool:
        return self.start <= address and address + size <= self.start + self.bytes


class _Image:
    """The artifact as the loader lays it out."""

    def __init__(self, artifact: memoryview) -> None:
        self.artifact = artifact
        _, _, _, _, _, table, _, _, _, _, count = HEADER.unpack_from(artifact)
        self.segments = []
        for index in range(count):
            fields = PROGRAM_HEADER.unpack_from(artifact, table + index * PROGRAM_HEADER.size)
            kind, flags, offset, start, _, file_bytes, size, _ = fields
            self.segments.append(_Segment(kind, flags, offset, start, file_bytes, size))

    def read(self, address: int, size: int) -> memoryview:
        """Bytes that come from the file, by the address that they are loaded at."""
        for segment in self.segments:
            if segment.kind == LOAD and segment.start <= address and address + size <= segment.start + segment.file_bytes:
                at = segment.offset + address - segment.start
                return self.artifact[at : at + size]
        raise UsageError("the artifact's dynamic symbols are damaged: they lie outside of its segments")

    def word(self, address: int) -> int:
        """A 32-bit number."""
        return int(WORD.unpack(self.read(address, WORD.size))[0])

    def dynamic(self) -> dict[int, int]:
        """The dynamic section: values by tag."""
        tags: dict[int, int] = {}
        for segment in self.segments:
            if segment.kind == DYNAMIC:
                end = segment.file_bytes - segment.file_bytes % TAG.size
                tags |= TAG.iter_unpack(self.artifact[segment.offset : segment.offset + end])
        return tags

    def writable(self, address: int, size: int) -> bool:
        """Whether a program may write these bytes once the loader is done."""
        inside = [segment for segment in self.segments if segment.holds(address, size)]
        loaded = any(segment.kind == LOAD and segment.flags & WRITABLE for segment in inside)
        return loaded and not any(segment.kind == RELRO for segment in inside)

    def symbol_count(self, tags: dict[int, int]) -> int:
        """How many dynamic symbols there are: only the hash tables know."""
        if HASH in tags:
            return self.word(tags[HASH] + 4)
        if GNU_HASH not in tags:
            return 0
        at = tags[GNU_HASH]
        buckets, first, bloom_words = self.word(at), self.word(at + 4), self.word(at + 8)
        table = at + 16 + 8 * bloom_words
        last = max((number for (number,) in WORD.iter_unpack(self.read(table, 4 * buckets))), default=0)
        if last < first:
            return first
        chains = table + 4 * buckets
        while not self.word(chains + 4 * (last - first)) & 1:
            last += 1
        return last + 1


def exported_memory(artifact: memoryview) -> dict[str, Memory]:
    """The memory that the library exports, by name. Raises UsageError when its symbols are damaged."""
    image = _Image(artifact)
    tags = image.dynamic()
    if not {STRTAB, SYMTAB, STRSZ} <= tags.keys():
        return {}
    count = image.symbol_count(tags)
    symbols = image.read(tags[SYMTAB], SYMBOL.size * count)
    names = bytes(image.read(tags[STRTAB], tags[STRSZ]))
    found: dict[str, Memory] = {}
    for name_at, kind, other, section, address, size in SYMBOL.iter_unpack(symbols):
        visible = kind >> 4 in (GLOBAL, WEAK) and other & 3 in (DEFAULT, PROTECTED)
        if kind & 15 == OBJECT and visible and section:
            end = names.find(b"\0", name_at)
            if end < 0:
                raise UsageError("the artifact's dynamic symbols are damaged: a name has no end")
            found[names[name_at:end].decode(errors="replace")] = Memory(size, image.writable(address, size))
    return found
