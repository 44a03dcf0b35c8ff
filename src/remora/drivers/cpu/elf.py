"""A look at an ELF file before the system's loader maps it: the loader trusts what it reads, and a short file faults (H25)."""

from __future__ import annotations

import struct

from remora.drivers.cpu.processor import architecture
from remora.errors import UsageError

__all__ = ["check_elf"]

MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64", 40: "arm", 3: "x86", 190: "cuda", 224: "amdgpu"}
CLASS_64 = 2
LITTLE_ENDIAN = 1
SHARED_OBJECT = 3
MAX_PROGRAM_HEADERS = 256

#: ident, type, machine, version, entry, program headers at, section headers at, flags, header size, program header size and count
HEADER = struct.Struct("<16sHHIQQQIHHH")
#: type, flags, offset, virtual address, physical address, size in the file, size in memory, alignment
PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")


def check_elf(artifact: memoryview) -> None:
    """Raise UsageError unless the bytes are a whole shared library for this machine; the message says what they are."""
    if artifact.nbytes < HEADER.size or bytes(artifact[:4]) != b"\x7fELF":
        raise UsageError(f"the artifact ({artifact.nbytes} bytes, starting with {bytes(artifact[:4])!r}) is no ELF shared library")
    ident, kind, machine, _, _, table, _, _, _, entry_size, count = HEADER.unpack_from(artifact)
    if ident[4] != CLASS_64 or ident[5] != LITTLE_ENDIAN:
        raise UsageError("the artifact is no 64-bit little-endian ELF file")
    made_for = MACHINES.get(machine, f"machine {machine}")
    if made_for != architecture():
        raise UsageError(f"the artifact was made for {made_for}, this machine is {architecture()}: choose another target")
    if kind != SHARED_OBJECT:
        raise UsageError(f"the artifact is an ELF file of type {kind}, not a shared library: link it with -shared")
    if entry_size != PROGRAM_HEADER.size or not 1 <= count <= MAX_PROGRAM_HEADERS:
        raise UsageError("the artifact's program headers are damaged")
    if table + count * entry_size > artifact.nbytes:
        raise UsageError("the artifact is cut off before the end of its program headers")
    for index in range(count):
        _, _, offset, _, _, file_size, _, _ = PROGRAM_HEADER.unpack_from(artifact, table + index * entry_size)
        if offset + file_size > artifact.nbytes:
            raise UsageError(f"the artifact is cut off: it has {artifact.nbytes} bytes, a segment ends at {offset + file_size}")
