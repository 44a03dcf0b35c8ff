"""Registered regions between processes of one host: a sealed memfd that both map. An access is one copy."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import struct
import threading
from typing import TYPE_CHECKING, Final

from remora.carriers.causes import refused
from remora.carriers.regions import Registered, RemoteRegion
from remora.carriers.shm.copy import LARGE, read_at, write_at
from remora.errors import ClosedError, PeerError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from remora.carriers.carrier import Span
    from remora.errors import Error

__all__ = ["attach", "register"]

#: A key: magic, version, zero, size in bytes.
KEY: Final = struct.Struct("<8sIIQ")
MAGIC: Final = b"shm area"
VERSION: Final = 1
MAX_BYTES: Final = 1 << 40
#: From this size on, huge pages are asked for.
HUGE: Final = 2 << 20
#: The peer can neither cut the memory under this side's mapping, which would be a SIGBUS, nor make it grow.
SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class SharedMemory(Registered):
    """The owner's side. Owns the descriptor and the mapping."""

    def __init__(self, fd: int, size: int) -> None:
        self.key = KEY.pack(MAGIC, VERSION, 0, size)
        self.fds: tuple[int, ...] = (fd,)
        self._map = _mapped(fd, size)
        self.view = memoryview(self._map)

    def close(self) -> None:
        if not self.fds:
            return
        try:
            self.view.release()
            self._map.close()
        except BufferError as error:
            raise UsageError("a part of this region's view is in use; release what was made of it before close()") from error
        os.close(self.fds[0])
        self.fds = ()


class PeerMemory(RemoteRegion):
    """The peer's side. Owns its copy of the descriptor and its mapping, until it is closed and nobody is in a call any more."""

    def __init__(self, fd: int, size: int, local: str, failure: Callable[[], Error | None]) -> None:
        self.size = size
        self._fd = fd
        self._local = local
        self._failure = failure
        self._map = _mapped(fd, size)
        self._view = memoryview(self._map)
        self._lock = threading.Lock()
        self._users = 1  # calls, and this object itself while it is open
        self._open = True

    def write(self, offset: int, data: Span) -> None:
        view = memoryview(data).cast("B")
        self._enter(offset, len(view))
        try:
            if len(view) < LARGE:
                self._view[offset : offset + len(view)] = view
            else:
                write_at(self._fd, view, offset)
        finally:
            self._leave()

    def read(self, offset: int, into: Span) -> None:
        view = memoryview(into).cast("B")
        if view.readonly:
            raise UsageError("read() fills memory that can be written; give a bytearray or a writable memoryview")
        self._enter(offset, len(view))
        try:
            if len(view) < LARGE:
                view[:] = self._view[offset : offset + len(view)]
            else:
                read_at(self._fd, view, offset)
        finally:
            self._leave()

    def _enter(self, offset: int, count: int) -> None:
        """Begin a call, or say why not."""
        if (failure := self._failure()) is not None:
            raise failure.copy()
        if not 0 <= offset <= self.size - count:
            raise UsageError(f"{count} bytes at {offset} are not inside a region of {self.size} bytes")
        with self._lock:
            if not self._open:
                raise ClosedError("this region was closed", origin=self._local)
            self._users += 1

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users:
                return
        self._view.release()
        self._map.close()
        os.close(self._fd)

    def close(self) -> None:
        with self._lock:
            was_open, self._open = self._open, False
        if was_open:
            self._leave()


def register(size: int, local: str) -> SharedMemory:
    """New memory of `size` bytes. Raises UsageError for a size that cannot be, BusyError without memory or descriptors."""
    if not 0 < size <= MAX_BYTES:
        raise UsageError(f"cannot register {size} bytes: give 1 to {MAX_BYTES}")
    fd = -1
    try:
        fd = os.memfd_create("remora region", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        return SharedMemory(fd, size)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        raise refused(local, error) from error


def attach(key: bytes, fds: Sequence[int], local: str, peer: str, failure: Callable[[], Error | None]) -> PeerMemory:
    """The memory that the peer registered; the descriptors belong to it, or are closed. `failure` tells the carrier's.

    Raises PeerError for a key or descriptors that do not go together, BusyError without memory.
    """
    try:
        if (failed := failure()) is not None:
            raise failed.copy()
        size = _size_of(key, fds)
        return PeerMemory(fds[0], size, local, failure)
    except BaseException as error:
        for fd in fds:
            os.close(fd)
        if not isinstance(error, OSError):
            raise
        if error.errno == errno.ENOMEM:
            raise refused(peer, error) from error
        raise PeerError(f"the peer offered memory that cannot be used: {error.strerror or error}", origin=peer) from error


def _size_of(key: bytes, fds: Sequence[int]) -> int:
    if len(key) != KEY.size or len(fds) != 1:
        raise OSError(errno.EBADMSG, f"a key of {len(key)} bytes with {len(fds)} descriptors is no registered region")
    magic, version, zero, size = KEY.unpack(key)
    if magic != MAGIC or version != VERSION or zero or not 0 < size <= MAX_BYTES:
        raise OSError(errno.EBADMSG, f"a key of version {version} for {size} bytes is none of ours")
    if fcntl.fcntl(fds[0], fcntl.F_GET_SEALS) & SEALS != SEALS or os.fstat(fds[0]).st_size != size:
        raise OSError(errno.EBADMSG, "the memory is not sealed, or has another size than its key says")
    return int(size)


def _mapped(fd: int, size: int) -> mmap.mmap:
    made = mmap.mmap(fd, size)
    if size >= HUGE:
        with contextlib.suppress(OSError):  # a kernel without them
            made.madvise(mmap.MADV_HUGEPAGE)
    return made
