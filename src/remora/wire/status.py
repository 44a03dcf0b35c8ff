"""An error as bytes: the same class arrives on the other side (`remora.errors.error_from_status`).

status   code u16 | 0 u16 | origin text | message text | zeros to a multiple of 8
"""

from __future__ import annotations

from typing import Final

from remora.errors import Error, PeerError, Status, error_from_status
from remora.wire.layout import Reader, Writer

__all__ = ["MAX_MESSAGE", "read_status", "write_status"]

MAX_MESSAGE: Final = 4096
MAX_ORIGIN: Final = 512
_CODES: Final = frozenset(Status) - {Status.OK}


def write_status(writer: Writer, error: Error) -> Writer:
    """Append an error; long texts are cut at a character's end."""
    return writer.u16(error.code).u16(0).text(error.origin, MAX_ORIGIN).text(error.message, MAX_MESSAGE)


def read_status(reader: Reader) -> Error:
    """Read an error and the end of the frame. OK, which is no error, and unknown codes are refused (H25)."""
    code = reader.u16()
    reader.zeros(2)
    origin, message = reader.text(MAX_ORIGIN), reader.text(MAX_MESSAGE)
    reader.end()
    if code not in _CODES:
        raise PeerError(f"a failure arrived with the code {code}, which is no error of this version: {message}")
    return error_from_status(code, message, origin)
