"""The one error tree.

Errors are grouped by whose fault they are, and each says what to do next:

    Error
    ├── UsageError          you: a wrong argument, order or name      (also a ValueError)
    │   └── NotFoundError   you: a name that is not there             (also a LookupError)
    ├── ClosedError         you: the object was closed before
    ├── BusyError           nobody: a limit is reached, try again later
    ├── DeadlineError       nobody: the time you gave ran out         (also a TimeoutError)
    ├── UnsupportedError    the device or peer lacks the feature
    ├── BrokenError         the outside: the connection is gone       (also a ConnectionError)
    │   └── PeerError       the peer: it broke the protocol
    └── DeviceError         the device: a kernel or the driver failed
        ├── OutOfMemoryError
        └── DeviceLostError

`code` is the status that travels on the wire (the canonical absl/IREE numbering, 64 and above are ours); `origin` names where the
error arose (an endpoint, a kernel, an axis and epoch). The same class arrives on the other side: `error_from_status`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar

__all__ = [
    "BrokenError",
    "BusyError",
    "ClosedError",
    "DeadlineError",
    "DeviceError",
    "DeviceLostError",
    "Error",
    "NotFoundError",
    "OutOfMemoryError",
    "PeerError",
    "Status",
    "UnsupportedError",
    "UsageError",
    "error_from_status",
]


class Status(IntEnum):
    """Status codes of the wire. 0 to 16 are the canonical numbering, 64 and above are remora's."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16
    DEVICE_LOST = 64
    OUT_OF_DEVICE_MEMORY = 65
    PROTOCOL = 66


class Error(Exception):
    """Base of every error that remora raises. Example: `except remora.Error as error: print(error.code, error.origin)`."""

    default: ClassVar[Status] = Status.UNKNOWN
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, code: Status | None = None, origin: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = self.default if code is None else code
        self.origin = origin

    def __str__(self) -> str:
        return f"{self.message} [{self.origin}]" if self.origin else self.message

    def copy(self) -> Error:
        """A fresh exception with the same content: a sticky failure is raised many times, each with its own traceback."""
        other = type(self)(self.message, code=self.code, origin=self.origin)
        other.__cause__ = self.__cause__
        return other

    def bare(self) -> Error:
        """A copy to keep for long: without the cause and tracebacks, whose frames hold memory of whoever was running."""
        return type(self)(self.message, code=self.code, origin=self.origin)


class UsageError(Error, ValueError):
    """A wrong argument, a wrong order of calls, or a value out of range: the caller's to mend.

    Example: `device.allocate(-1)` raises it, before anything is sent.
    """

    default = Status.INVALID_ARGUMENT


class NotFoundError(UsageError, LookupError):
    """A name (kernel, device, file, scheme) that is not there; the message lists the ones that are.

    Example: `executable["ad"]` raises `there is no kernel 'ad'; this executable has: add_i32, mix_u32`.
    """

    default = Status.NOT_FOUND


class ClosedError(Error):
    """The object was closed by this program before the call.

    Example: `device.close(); device.allocate(64)` raises it.
    """

    default = Status.CANCELLED


class BusyError(Error):
    """A limit is reached (slots, window, quota). Nothing was consumed; the call may be repeated later.

    Example: a full server raises it; `remora.open(uri, retry=10)` tries for 10 seconds.
    """

    default = Status.RESOURCE_EXHAUSTED
    retryable = True


class DeadlineError(Error, TimeoutError):
    """The time given by the caller ran out; what was waited for may still happen.

    Example: `done.wait(timeout=0.1)` raises it, and `done.wait()` may still succeed afterwards.
    """

    default = Status.DEADLINE_EXCEEDED
    retryable = True


class UnsupportedError(Error):
    """The device, driver or peer does not have the feature that was asked for.

    Example: `except remora.UnsupportedError: device = remora.open("cpu")`.
    """

    default = Status.UNIMPLEMENTED


class BrokenError(Error, ConnectionError):
    """The connection or the process behind it is gone; open a new one.

    Example: `except remora.BrokenError: device = remora.open(uri, retry=30)`.
    """

    default = Status.UNAVAILABLE


class PeerError(BrokenError):
    """The peer broke the protocol (bad frame, wrong version, unknown value). The connection is closed.

    Example: `remora.open("remote-tcp://host:80")` raises it when a web server answers; so does a server of another version.
    """

    default = Status.PROTOCOL


class DeviceError(Error):
    """A kernel or the device driver failed.

    Example: `except remora.DeviceError as error: print(error.origin)` names the device and the queue.
    """

    default = Status.INTERNAL


class OutOfMemoryError(DeviceError, MemoryError):
    """Device memory is used up; the message says how much was asked for and how much is there.

    Example: `device.allocate(1 << 50)` raises it.
    """

    default = Status.OUT_OF_DEVICE_MEMORY


class DeviceLostError(DeviceError):
    """The process or context that ran the kernels died; the message names the signal or driver code.

    Example: a kernel that writes out of bounds: `done.wait()` raises it with `died of SIGSEGV`.
    """

    default = Status.DEVICE_LOST


# The class that a status code arrives as. Codes not named here arrive as plain `Error`.
CLASS_OF_STATUS: dict[Status, type[Error]] = {
    Status.CANCELLED: ClosedError,
    Status.INVALID_ARGUMENT: UsageError,
    Status.FAILED_PRECONDITION: UsageError,
    Status.OUT_OF_RANGE: UsageError,
    Status.ALREADY_EXISTS: UsageError,
    Status.PERMISSION_DENIED: UsageError,
    Status.NOT_FOUND: NotFoundError,
    Status.RESOURCE_EXHAUSTED: BusyError,
    Status.DEADLINE_EXCEEDED: DeadlineError,
    Status.UNIMPLEMENTED: UnsupportedError,
    Status.UNAVAILABLE: BrokenError,
    Status.PROTOCOL: PeerError,
    Status.INTERNAL: DeviceError,
    Status.DATA_LOSS: DeviceError,
    Status.OUT_OF_DEVICE_MEMORY: OutOfMemoryError,
    Status.DEVICE_LOST: DeviceLostError,
}


def error_from_status(code: int, message: str, origin: str = "") -> Error:
    """The error that a wire status stands for; an unknown code becomes UNKNOWN and is named in the message."""
    try:
        status = Status(code)
    except ValueError:
        return Error(f"{message} (status {code})", origin=origin)
    return CLASS_OF_STATUS.get(status, Error)(message, code=status, origin=origin)
