"""The one carrier contract (H30).

A carrier is one ordered, reliable stream of bytes between two endpoints. It moves bytes and parses none, so a send may arrive in
pieces and two sends may arrive as one. `remora.testing.cts.carrier` proves that a carrier keeps this contract.

Threads: any thread may send; one thread receives at a time (a second one gets BusyError). `fail`, `shutdown` and `close` may
come from anywhere. Nothing here needs an event loop, and no callback is ever made.

Failure (H05): the first cause wins and is sticky; it wakes every blocked call on this carrier, and every later call raises it.
A failure that was noticed while sending does not hide bytes that had arrived before it: `receive` gives those first.
The end of the peer's stream is such a failure too, so whoever still wants to send does it before it reads the end.
"""

from __future__ import annotations

import select
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum, IntFlag
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias

from remora.errors import Error, UnsupportedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from remora.carriers.regions import Registered, RemoteRegion

__all__ = [
    "Budget",
    "Capability",
    "Carrier",
    "CarrierState",
    "Keepalive",
    "Lease",
    "Listener",
    "Reservation",
    "Span",
    "Statistics",
]

#: What can be sent: any C-contiguous bytes. Wrap an array or a mapping in a memoryview.
Span: TypeAlias = bytes | bytearray | memoryview

NOTHING = memoryview(b"")


class Capability(IntFlag):
    """What a carrier can do beyond the contract; fixed when it is made."""

    RELIABLE = 1 << 0
    ORDERED = 1 << 1
    ZERO_COPY_TX = 1 << 2
    #: `register` makes memory that the peer reaches past the stream, after its `attach`, to write, to read, or both.
    REGISTERED_REGIONS = 1 << 4
    DIRECT_WRITE = 1 << 5
    DIRECT_READ = 1 << 6
    #: `send_fds` passes file descriptors; `receive_fds` takes them, and so does `receive` after `keep_fds`.
    POSIX_FD = 1 << 12
    #: The endpoint is a file descriptor that another process can take over: `detach` here, `registry.adopt` there.
    HANDOVER = 1 << 14


class CarrierState(Enum):
    """Life of a carrier; it only moves forward."""

    CREATED = 0
    ACTIVE = 1
    #: `shutdown` was called: nothing is sent any more, the rest may still be received.
    DRAINING = 2
    CLOSED = 3


class Budget(NamedTuple):
    """What `reserve` takes now. Advice, no promise: another thread may be faster."""

    bytes: int
    slots: int


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts since the carrier was made. A send or receive is one call that moved at least one byte."""

    bytes_sent: int
    bytes_received: int
    sends: int
    receives: int


@dataclass(frozen=True, slots=True)
class Keepalive:
    """When a silent peer counts as dead (H08): a probe every `interval` seconds of silence, given up after `deadline` seconds.

    Both in seconds, `deadline` more than `interval`, whole seconds on tcp for `interval`. A process that is stopped still
    answers through its kernel: only a heartbeat in the session notices that one.
    """

    interval: float = 1.0
    deadline: float = 5.0

    def __post_init__(self) -> None:
        if not 0 < self.interval < self.deadline:
            raise UsageError(
                f"keepalive needs 0 < interval < deadline, got interval={self.interval}, deadline={self.deadline} seconds"
            )


class Lease:
    """Received bytes in the carrier's own memory. `view` is valid until `release`, which gives the memory back.

    The object is used again after its release: drop it, and do not release it a second time later.
    """

    __slots__ = ("_give_back", "_room", "_take", "_taken", "view")

    def __init__(self, home: list[Lease], room: memoryview) -> None:
        self._give_back = home.append
        self._room = room
        self._take: Callable[[memoryview], int] | None = None
        self._taken: Iterator[int] = iter(())
        self.view = NOTHING

    def take_by(self, take: Callable[[memoryview], int]) -> Iterator[int]:
        """Counts of what `take` receives here, one each time around. A `for` keeps each in the step that receives it."""
        if take is not self._take:
            self._take, self._taken = take, map(take, repeat(self._room))
        return self._taken

    def release(self) -> None:
        """Give the memory back to the carrier."""
        if self.view is not NOTHING:
            self.view = NOTHING
            self._give_back(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


class Reservation:
    """Room for a message that is written in place: fill `view`, then `commit`. Leaving a `with` block without it aborts."""

    __slots__ = ("_settle", "view")

    def __init__(self, view: memoryview, settle: Callable[[memoryview, bool], None]) -> None:
        self.view = view
        self._settle = settle

    def commit(self) -> None:
        """Publish the bytes. Never blocks. Raises the carrier's failure, and UsageError when settled before."""
        if self.view is NOTHING:
            raise UsageError("this reservation was committed or aborted before; make a new one")
        view, self.view = self.view, NOTHING
        self._settle(view, True)

    def abort(self) -> None:
        """Give the room back; nothing is sent. Does nothing when settled before."""
        if self.view is not NOTHING:
            view, self.view = self.view, NOTHING
            self._settle(view, False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.abort()


class Carrier(ABC):
    """One end of a connection. Comes from `connect`, from `Listener.accept`, or from `adopt`, in state CREATED."""

    capabilities: Capability
    #: URIs of both ends, for messages.
    local: str
    peer: str
    #: How long, in microseconds, `receive` looks for bytes before it sleeps: None adapts, 0 never looks.
    spin_us: int | None = None

    @property
    @abstractmethod
    def state(self) -> CarrierState:
        """Where in its life the carrier is."""

    @property
    @abstractmethod
    def failure(self) -> Error | None:
        """The first cause of failure, or None. ClosedError after `close`."""

    @abstractmethod
    def activate(self) -> None:
        """CREATED to ACTIVE. UsageError the second time. Sending and receiving before it is a UsageError."""

    @abstractmethod
    def send(self, *spans: Span) -> int:
        """Take as many bytes as there is room for, gathered in one system call, and return how many.

        Never blocks; 0 means no room, or that another thread is sending. The rest of a part is the caller's to send next.
        Raises UsageError for empty input and the carrier's failure.
        """

    @abstractmethod
    def send_all(self, *spans: Span, timeout: float | None = None) -> None:
        """Send everything from the caller's memory, without a copy; blocks for at most `timeout` seconds.

        The bytes stay together. Raises DeadlineError when the time is over; if a part had gone by then, the stream is cut, so
        the carrier fails as well. Raises the carrier's failure.
        """

    @abstractmethod
    def wait_writable(self, timeout: float | None = None) -> bool:
        """Wait until `send` or `flush` may take bytes again; False when `timeout` seconds are over.

        An edge and no reservation: another thread may use the room first. Raises the carrier's failure.
        """

    @abstractmethod
    def reserve(self, size: int) -> Reservation:
        """Room for `size` bytes that stay together in the stream, whichever order reservations are committed in.

        What the system does not take at the commit is kept, and goes out before anything that is sent later. Raises BusyError
        over the budget, UsageError for a size that can never fit, and the carrier's failure.
        """

    @abstractmethod
    def flush(self) -> bool:
        """Push what is kept, without blocking. True when nothing is kept any more. Raises the carrier's failure."""

    @abstractmethod
    def budget(self) -> Budget:
        """What `reserve` takes now; 0 bytes while the system takes none."""

    @abstractmethod
    def receive(self, timeout: float | None = None) -> Lease | None:
        """Wait for bytes; None when none came within `timeout` seconds.

        The carrier owns the memory of the lease; bytes under a lease are never overwritten. Raises BusyError when every lease
        is out (release one) or another thread is receiving, and the carrier's failure.
        """

    @abstractmethod
    def receive_into(self, view: Span, timeout: float | None = None) -> int:
        """Receive straight into the caller's memory; the count of bytes, 0 when none came within `timeout` seconds.

        Raises UsageError for an empty view and the carrier's failure.
        """

    @abstractmethod
    def fileno(self) -> int:
        """A descriptor to poll: readable when `receive` would not block. Borrowed; -1 after `close`."""

    @abstractmethod
    def fail(self, error: Error) -> None:
        """Fail for good. The first cause wins; every blocked call on this carrier wakes up and raises it, later calls too."""

    @abstractmethod
    def shutdown(self) -> None:
        """End the send side, after what is kept. The peer reads the rest and then sees the end. Idempotent."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything. Idempotent. Bytes that the peer has sent and nobody has read may cost it our last bytes."""

    @abstractmethod
    def statistics(self) -> Statistics:
        """Counts since the carrier was made."""

    def room_fileno(self) -> tuple[int, int]:
        """A descriptor and the poll events that show when `send` or `flush`, which had no room, may take bytes again. Borrowed."""
        return self.fileno(), select.POLLOUT

    def settle(self) -> None:  # noqa: B027 - most carriers have nothing to set up
        """The server's end of an active connection stays in this process: the carrier may set up what cannot be handed over.

        Before this end sends anything, and before other threads use it; afterwards `detach` is refused. Raises the failure.
        """

    def detach(self) -> int:
        """Give up the descriptor without ending the connection; the caller owns it. Needs HANDOVER.

        Raises UnsupportedError without the capability, BusyError while bytes are kept or another thread is inside a call.
        """
        raise UnsupportedError(
            f"{self.local} cannot be handed over; use a carrier with the capability HANDOVER, such as tcp or unix"
        )

    def send_fds(self, data: Span, fds: Sequence[int], timeout: float | None = None) -> None:
        """Send a few bytes with file descriptors attached to them. Needs POSIX_FD, else UnsupportedError."""
        raise UnsupportedError(f"{self.local} passes no file descriptors; use a carrier with the capability POSIX_FD, such as unix")

    def receive_fds(self, count: int, timeout: float | None = None) -> tuple[bytes, list[int]] | None:
        """Receive what `send_fds` sent, at most `count` descriptors, owned by the caller. Needs POSIX_FD, else UnsupportedError.

        None when nothing came within `timeout` seconds. Bytes that carry descriptors must be read by this call, or after
        `keep_fds`: any other receive drops the descriptors.
        """
        raise UnsupportedError(f"{self.local} passes no file descriptors; use a carrier with the capability POSIX_FD, such as unix")

    def keep_fds(self, most: int) -> None:
        """From now on, `receive` and `receive_into` keep descriptors that come with the bytes, until `take_fd`.

        A peer that sends more than `most` before they are taken fails the carrier; what is not taken is closed with it. Needs
        POSIX_FD, and a carrier whose bytes go through its socket, else UnsupportedError.
        """
        raise UnsupportedError(f"{self.local} passes no file descriptors; use a carrier with the capability POSIX_FD, such as unix")

    def take_fd(self) -> int | None:
        """The oldest descriptor that is kept, now owned by the caller. It is here once the bytes are that it was sent with."""
        return None

    def register(self, size: int) -> Registered:
        """Memory of this side, `size` bytes of zeros, that the peer may read and write directly (regions.py).

        Needs REGISTERED_REGIONS, else UnsupportedError. Raises UsageError for a size that cannot be, BusyError without memory or
        descriptors, and the carrier's failure.
        """
        raise UnsupportedError(f"{self.local} has no direct access; use a carrier with REGISTERED_REGIONS, such as shm")

    def attach(self, key: bytes, fds: Sequence[int]) -> RemoteRegion:
        """The memory that the peer registered, from its key and descriptors, which belong to the region or are closed.

        Needs DIRECT_READ or DIRECT_WRITE, else UnsupportedError. Raises PeerError for a key and descriptors that are not sound.
        """
        raise UnsupportedError(f"{self.local} has no direct access; use a carrier with REGISTERED_REGIONS, such as shm")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.local} to {self.peer}, {self.state.name.lower()}>"


class Listener(ABC):
    """Where carriers come in. One bad accept (no descriptor left, a client that gave up) never stops the next one."""

    #: The URI that is really bound, port filled in.
    address: str

    @abstractmethod
    def accept(self, timeout: float | None = None) -> Carrier | None:
        """The next carrier, in state CREATED; None when none came within `timeout` seconds. ClosedError after `close`."""

    @abstractmethod
    def fileno(self) -> int:
        """A descriptor to poll: readable when `accept` would not block. Borrowed; -1 after `close`."""

    @abstractmethod
    def close(self) -> None:
        """Stop listening and wake a blocked `accept`. Idempotent. Accepted carriers live on."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
