"""Files that queues read into buffers and write from them (requirement H23).

A `HostFile` is one of this program's own: a regular file, by path or descriptor. A server's files are named by the server
(`device.server_file`). Both are used by `queue.read_file` and `queue.write_file`, in the queue's order: a read sees what every
operation before it has written. A file is never mapped, because a mapping of a file that shrinks meanwhile kills its reader.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import stat
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, final

from remora.errors import BusyError, ClosedError, DeviceError, Error, NotFoundError, Status, UsageError
from remora.hal.buffer import Access

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from remora.hal.device import Device
    from remora.hal.semaphore import Timepoint

__all__ = [
    "MAX_OFFSET",
    "MODES",
    "File",
    "HostFile",
    "OpenableFile",
    "access_of",
    "check_descriptor",
    "open_descriptor",
    "open_error",
]

#: The greatest offset that a file can have.
MAX_OFFSET: Final = (1 << 63) - 1
#: mode -> (how the file is used, whether it is made if it is not there and emptied if it is)
MODES: Final = {
    "r": (Access.READ, False),
    "r+": (Access.READ_WRITE, False),
    "w": (Access.WRITE, True),
    "w+": (Access.READ_WRITE, True),
}
#: Neither a terminal, nor a pipe that nobody writes to, can hold up an open.
_SAFELY: Final = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_FLAGS: Final = {Access.READ: os.O_RDONLY, Access.WRITE: os.O_WRONLY, Access.READ_WRITE: os.O_RDWR}
_ACCESS: Final = {flags: access for access, flags in _FLAGS.items()}
#: What says that there are too many open files.
STARVED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class HasDescriptor(Protocol):
    """An open file of Python, or anything else over a descriptor."""

    def fileno(self) -> int:
        """The descriptor."""


#: What `device.open_file` takes: a path, a descriptor, or an open file.
OpenableFile: TypeAlias = "str | os.PathLike[str] | int | HasDescriptor"


class File(ABC):
    """A file for `queue.read_file` and `queue.write_file`. Made by `device.open_file(path)` or `device.server_file(name)`.

    Example: `with device.open_file("weights.bin") as file: queue.read_file(file, 0, buffer).wait()`.
    `name` is for people, `size` the bytes that it had when it was opened. Any thread may call any method.
    """

    __slots__ = ("__weakref__", "_closed", "_lock", "_uses", "access", "device", "name", "size")

    def __init__(self, device: Device, name: str, access: Access, size: int) -> None:
        self.device = device
        self.name = name
        self.access = access
        self.size = size
        self._closed = False
        self._uses = 0  # operations that were submitted and are not done
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} {self.access.name}{' closed' if self._closed else ''}>"

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self._closed

    @final
    def close(self) -> None:
        """Let go of the file once everything submitted so far is done with it. Safe to repeat; dropping the file does it too."""
        with self._lock:
            last = not self._closed and not self._uses
            self._closed = True
        if last:
            self._release()

    def __enter__(self) -> File:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    @final
    def _check(self, device: Device, access: Access, offset: int, size: int) -> None:
        """Raise what makes this use wrong, whatever is in the file."""
        if self.device is not device:
            raise UsageError(f"{self.name} was opened on another device; open it on this one")
        if not access & self.access:
            wanted, mode = ("read", "r") if access is Access.READ else ("written", "r+")
            raise UsageError(
                f"{self.name} was not opened to be {wanted}; open it with the mode {mode!r}", code=Status.PERMISSION_DENIED
            )
        if not 0 <= offset <= MAX_OFFSET - size:
            raise UsageError(f"{size} bytes at {offset} of {self.name}: no file has them", code=Status.OUT_OF_RANGE)

    @final
    def _lend(self, submit: Callable[[], Timepoint]) -> Timepoint:
        """Submit an operation that uses the file, and keep it open until that is done. Raises ClosedError when it is closed."""
        with self._lock:
            if self._closed:
                raise ClosedError(f"{self.name} was closed; open it again")
            self._uses += 1
        try:
            point = submit()
        except BaseException:
            self._give_back()
            raise
        point.on_done(self._give_back)
        return point

    def _hold(self) -> None:
        """Driver: one more use, until `_give_back`; from within an operation that uses it."""
        with self._lock:
            self._uses += 1

    def _give_back(self) -> None:
        with self._lock:
            self._uses -= 1
            last = self._closed and not self._uses
        if last:
            self._release()

    @abstractmethod
    def _release(self) -> None:
        """Driver: let go. Called once, from anywhere."""


class HostFile(File):
    """A regular file of this process, by a descriptor that it owns. The driver reads and writes it on a thread of its own."""

    __slots__ = ("_fd",)

    def __init__(self, device: Device, fd: int, name: str, access: Access) -> None:
        self._fd = fd
        super().__init__(device, name, access, os.fstat(fd).st_size)

    def fileno(self) -> int:
        """The descriptor. Borrowed; it is closed after `close()`, when the last operation is done."""
        return self._fd

    def read_at(self, offset: int, into: memoryview) -> None:
        """Fill `into` from `offset`; blocks. Raises UsageError (OUT_OF_RANGE) when the file ends before, else DeviceError."""
        done = 0
        while done < into.nbytes:
            try:
                count = os.preadv(self._fd, [into[done:]], offset + done)
            except OSError as error:
                raise self._broke("read", into.nbytes, offset, error) from error
            if not count:
                raise UsageError(
                    f"{self.name} ends at byte {offset + done}, before the {into.nbytes} bytes at {offset} that were to be read; "
                    "read what is there, or write it first",
                    code=Status.OUT_OF_RANGE,
                )
            done += count

    def write_at(self, offset: int, data: memoryview) -> None:
        """Write all of `data` at `offset`; blocks. The file grows as needed. Raises DeviceError with what the system says."""
        done = 0
        while done < data.nbytes:
            try:
                done += os.pwritev(self._fd, [data[done:]], offset + done)
            except OSError as error:
                raise self._broke("write", data.nbytes, offset, error) from error

    def _broke(self, what: str, size: int, offset: int, error: OSError) -> DeviceError:
        return DeviceError(f"{self.name}: cannot {what} {size} bytes at {offset}: {error.strerror}", code=Status.DATA_LOSS)

    def _release(self) -> None:
        os.close(self._fd)


def access_of(mode: str) -> tuple[Access, bool]:
    """(access, whether the file is made or emptied) of a mode. Raises UsageError for one that is none."""
    try:
        return MODES[mode]
    except (KeyError, TypeError):
        raise UsageError(f"there is no mode {mode!r} for a file; it is one of {', '.join(MODES)} (always bytes)") from None


def open_descriptor(file: OpenableFile, mode: str) -> tuple[int, str, Access]:
    """(descriptor, name, access) of a regular file; the caller owns the descriptor.

    A path is opened as the mode says. Of a descriptor or an open file the caller gets a copy, and the mode must be one that it
    allows; nothing is made or emptied then. Raises NotFoundError and UsageError.
    """
    access, fresh = access_of(mode)
    if isinstance(file, str | os.PathLike):
        path = os.fspath(file)
        return _open_path(path, access, fresh), path, access
    try:
        given = file if isinstance(file, int) else _flushed(file)
        name = getattr(file, "name", None)
        fd = fcntl.fcntl(given, fcntl.F_DUPFD_CLOEXEC, 0)
    except (OSError, ValueError, OverflowError, AttributeError, TypeError) as error:
        if isinstance(error, OSError) and error.errno in STARVED:
            raise open_error(f"another copy of {file!r}", error) from None
        raise UsageError(f"{file!r} is no open file ({error}); give a path, a descriptor, or an open file") from None
    name = name if isinstance(name, str) else f"the descriptor {given}"
    return _kept(fd, name, access), name, access


def _flushed(file: HasDescriptor) -> int:
    """The descriptor of an open file, after what Python still holds back was written."""
    if isinstance(file, io.IOBase):
        file.flush()
    return file.fileno()


def _open_path(path: str, access: Access, fresh: bool) -> int:
    try:
        fd = os.open(path, _FLAGS[access] | _SAFELY | (os.O_CREAT | os.O_TRUNC if fresh else 0), 0o666)
    except OSError as error:
        raise open_error(path, error) from None
    except ValueError as error:  # a NUL inside
        raise UsageError(f"{path!r} is no path: {error}") from None
    return _kept(fd, path, access)


def _kept(fd: int, name: str, access: Access) -> int:
    """The descriptor, checked; closed when it is refused."""
    try:
        check_descriptor(fd, name, access)
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_descriptor(fd: int, name: str, access: Access) -> None:
    """Raise UsageError unless this is a regular file that was opened for `access` and is written where one says."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise UsageError(f"{name} is no regular file: only such a one has bytes at offsets")
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    if flags & os.O_PATH or access & ~_ACCESS.get(flags & os.O_ACCMODE, 0):
        raise UsageError(f"{name} is not open for {access.name}; open it so, or ask for less", code=Status.PERMISSION_DENIED)
    if access & Access.WRITE and flags & os.O_APPEND:
        raise UsageError(f"{name} is open for appending, which ignores offsets; open it with 'r+'")


def open_error(name: str, error: OSError) -> Error:
    """What a failed open is for people."""
    text = f"cannot open {name}: {error.strerror}"
    if isinstance(error, FileNotFoundError):
        return NotFoundError(f"{text}; check the path")
    if isinstance(error, PermissionError):
        return UsageError(f"{text}; this user may not", code=Status.PERMISSION_DENIED)
    if error.errno in STARVED:
        return BusyError(f"{text}; close files, or raise the limit (ulimit -n)")
    return UsageError(f"{text}; give a regular file", code=Status.FAILED_PRECONDITION)
