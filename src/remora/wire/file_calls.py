"""Calls about files.

FILE_OPEN 0x40          a file of the server, by a name that the server offers
    request    provisional id u64 | device u16 | access u8 (1 read, 2 write, 3 both) | fresh u8 | 0 u32 | name text
    response   canonical id u64 | size u64

FILE_REGISTER 0x41      a file of the client, whose descriptor comes with the frame (SCM_RIGHTS)
    request    provisional id u64 | device u16 | access u8 | 0 u8 | 0 u32 | st_dev u64 | st_ino u64 | label text
    response   canonical id u64 | size u64

`fresh` is 1 for a file that is to be made, or emptied if it is there; it needs write access. Sizes are in bytes. `st_dev` and
`st_ino` say which file the descriptor must be; `label` names it in messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from remora.base.ids import ResourceType
from remora.errors import PeerError, UsageError
from remora.wire.layout import Reader, Writer, is_id
from remora.wire.method import Method

__all__ = [
    "FILE_OPEN",
    "FILE_REGISTER",
    "MAX_FILE_NAME",
    "MAX_LABEL",
    "METHODS",
    "READ",
    "WRITE",
    "FileOpen",
    "FileRegister",
    "Opened",
]

FILE_OPEN, FILE_REGISTER = 0x40, 0x41
#: Bytes of a file's name.
MAX_FILE_NAME: Final = 4096
#: Bytes of the label of a registered file; a longer one is cut. The frame then fits what goes with a descriptor.
MAX_LABEL: Final = 256
#: Bits of `access`.
READ, WRITE = 1, 2


@dataclass(frozen=True, slots=True)
class FileOpen:
    """Open a file of the server for a device under a provisional id."""

    resource: int
    device: int
    access: int
    fresh: bool
    name: str


@dataclass(frozen=True, slots=True)
class FileRegister:
    """Use the file whose descriptor comes along, for a device under a provisional id."""

    resource: int
    device: int
    access: int
    st_dev: int
    st_ino: int
    label: str


@dataclass(frozen=True, slots=True)
class Opened:
    """The canonical id of an open file, and the bytes that it has."""

    resource: int
    size: int


def _write_open(writer: Writer, body: FileOpen) -> Writer:
    try:
        size = len(body.name.encode())
    except UnicodeEncodeError:
        raise UsageError(f"{body.name!r} is no name of a file: it is not Unicode text") from None
    if not 1 <= size <= MAX_FILE_NAME or "\0" in body.name:
        raise UsageError(f"a name of {size} bytes; one of 1 to {MAX_FILE_NAME} bytes without NUL names a file")
    writer.u64(body.resource).u16(body.device).u8(body.access).u8(body.fresh).u32(0)
    return writer.text(body.name, MAX_FILE_NAME)


def _read_open(reader: Reader) -> FileOpen:
    resource, device, access, fresh = reader.u64(), reader.u16(), reader.u8(), reader.u8()
    reader.zeros(4)
    name = reader.text(MAX_FILE_NAME)
    reader.end()
    _check_new(resource)
    if not 1 <= access <= READ | WRITE or fresh > 1 or (fresh and not access & WRITE):
        raise PeerError(f"a file is opened for {access:#x}, fresh {fresh}: there is no such way")
    if not name:
        raise PeerError("a file without a name is opened")
    return FileOpen(resource, device, access, bool(fresh), name)


def _check_new(resource: int) -> None:
    if not is_id(resource, ResourceType.FILE, provisional=True):
        raise PeerError(f"a file is opened under {resource:#x}, which is no provisional id of a file")


def _write_register(writer: Writer, body: FileRegister) -> Writer:
    writer.u64(body.resource).u16(body.device).u8(body.access).u8(0).u32(0).u64(body.st_dev).u64(body.st_ino)
    return writer.text(body.label, MAX_LABEL)


def _read_register(reader: Reader) -> FileRegister:
    resource, device, access = reader.u64(), reader.u16(), reader.u8()
    reader.zeros(5)
    body = FileRegister(resource, device, access, reader.u64(), reader.u64(), reader.text(MAX_LABEL))
    reader.end()
    _check_new(resource)
    if not 1 <= access <= READ | WRITE:
        raise PeerError(f"a file is registered for {access:#x}: there is no such way")
    return body


def _write_opened(writer: Writer, body: Opened) -> Writer:
    return writer.u64(body.resource).u64(body.size)


def _read_opened(reader: Reader) -> Opened:
    resource, size = reader.u64(), reader.u64()
    reader.end()
    if not is_id(resource, ResourceType.FILE, provisional=False):
        raise PeerError(f"a response names {resource:#x}, which is no id of a file")
    return Opened(resource, size)


METHODS: Final[dict[int, Method]] = {
    FILE_OPEN: Method(FileOpen, _write_open, _read_open, _write_opened, _read_opened),
    FILE_REGISTER: Method(FileRegister, _write_register, _read_register, _write_opened, _read_opened),
}
