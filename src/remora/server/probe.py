"""Reading the catalog in a short-lived child, so that the parent never opens a device (a driver may not survive a fork)."""

from __future__ import annotations

import os
from collections.abc import Sequence

from remora.errors import DeviceError, Error
from remora.server.catalog import entries_of
from remora.server.process import open_all
from remora.wire.catalog import DeviceEntry, read_catalog, write_catalog
from remora.wire.layout import Reader, Writer
from remora.wire.status import read_status, write_status

__all__ = ["probe"]

CATALOG, FAILURE = 1, 2


def probe(uris: Sequence[str]) -> tuple[DeviceEntry, ...]:
    """The catalog of the devices behind `uris`. Raises what kept one from opening, or DeviceError when the child died of it."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, _report(uris))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(pid, 0)
    if len(data) < 8:
        raise DeviceError(f"opening {', '.join(uris)} ended the process that tried it (exit status {status})")
    reader = Reader(memoryview(data)[8:], "the catalog probe")
    if data[4] == FAILURE:
        raise read_status(reader)
    return read_catalog(reader)


def _report(uris: Sequence[str]) -> bytes:
    try:
        devices = open_all(uris)
    except Error as error:
        return write_status(Writer(), error).frame(FAILURE)
    except Exception as error:
        return write_status(Writer(), DeviceError(f"{type(error).__name__}: {error}")).frame(FAILURE)
    return write_catalog(Writer(), entries_of([device.info for device in devices])).frame(CATALOG)
