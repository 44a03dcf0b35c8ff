"""loopback: `loopback://name`, inside this process. The reference of the contract, in plain Python: two bounded queues of bytes.

`loopback://` without a name listens under a fresh one, which the listener's address tells.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from itertools import count
from threading import Condition, Lock
from typing import TYPE_CHECKING

from remora.carriers.carrier import Capability, Carrier, CarrierState, Keepalive, Listener, Span
from remora.carriers.causes import broken, refused
from remora.carriers.endpoint import TICK, Endpoint
from remora.errors import ClosedError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remora.base.uri import Uri

__all__ = ["adopt", "connect", "listen"]

#: Bytes that a direction holds.
PIPE_BYTES = 256 << 10

_listeners: dict[str, LoopbackListener] = {}
_listeners_lock = Lock()
_names = count(1)
_clients = count(1)


class Signal:
    """An eventfd that is readable while a condition holds. Used under its owner's lock."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._up = False

    def show(self, up: bool) -> None:
        if self.fd >= 0 and up is not self._up:
            if up:
                os.eventfd_write(self.fd, 1)
            else:
                os.eventfd_read(self.fd)
            self._up = up

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class Pipe:
    """One direction: bounded, ended by either side. What was taken before the end is still given."""

    def __init__(self) -> None:
        self.changed = Condition()
        self.readable = Signal()
        self._chunks: deque[memoryview] = deque()
        self._size = 0
        self._ended = False

    def put(self, spans: Sequence[Span], timeout: float = 0) -> int:
        with self.changed:
            if not self.changed.wait_for(self._has_room, timeout):
                raise BlockingIOError
            if self._ended:
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
            taken = 0
            for span in spans:
                chunk = bytes(memoryview(span).cast("B")[: PIPE_BYTES - self._size])
                if chunk:
                    self._chunks.append(memoryview(chunk))
                    self._size += len(chunk)
                    taken += len(chunk)
            self._changed()
            return taken

    def take(self, room: Span, timeout: float) -> int:
        target = memoryview(room).cast("B")
        with self.changed:
            if not self.changed.wait_for(lambda: self._size or self._ended, timeout):
                return -1
            filled = 0
            while self._chunks and filled < len(target):
                chunk = self._chunks.popleft()
                part = chunk[: len(target) - filled]
                target[filled : filled + len(part)] = part
                filled += len(part)
                if len(part) < len(chunk):
                    self._chunks.appendleft(chunk[len(part) :])
            self._size -= filled
            self._changed()
            return filled

    def wait_room(self, timeout: float | None) -> bool:
        with self.changed:
            return self.changed.wait_for(self._has_room, timeout)

    def end(self) -> None:
        with self.changed:
            self._ended = True
            self._changed()

    def close_signal(self) -> None:
        with self.changed:
            self.readable.close()

    def _has_room(self) -> bool:
        return self._ended or self._size < PIPE_BYTES

    def _changed(self) -> None:
        self.readable.show(self._size > 0 or self._ended)
        self.changed.notify_all()


class LoopbackCarrier(Endpoint):
    """One end of two pipes."""

    def __init__(self, local: str, peer: str, incoming: Pipe, outgoing: Pipe) -> None:
        super().__init__(local, peer, Capability.RELIABLE | Capability.ORDERED)
        self._incoming = incoming
        self._outgoing = outgoing
        self._take_tick = self._take_within_tick

    def fileno(self) -> int:
        return -1 if self._state is CarrierState.CLOSED else self._incoming.readable.fd

    def _put(self, spans: Sequence[Span]) -> int:
        return self._outgoing.put(spans)

    def _put_wait(self, spans: Sequence[Span]) -> int:
        return self._outgoing.put(spans, TICK)

    def _take_soon(self, room: Span, timeout: float) -> int:
        return self._incoming.take(room, timeout)

    def _take_within_tick(self, room: Span) -> int:
        count = self._incoming.take(room, TICK)
        if count < 0:
            raise BlockingIOError
        return count

    def _wait_room(self, timeout: float | None) -> bool:
        return self._outgoing.wait_room(timeout)

    def _end_output(self) -> None:
        self._outgoing.end()

    def _interrupt(self) -> None:
        self._outgoing.end()
        self._incoming.end()

    def _dispose(self) -> None:
        self._incoming.close_signal()


class LoopbackListener(Listener):
    """A name of this process."""

    def __init__(self, name: str, backlog: int) -> None:
        self.address = f"loopback://{name}"
        self._name = name
        self._backlog = backlog
        self._changed = Condition()
        self._queue: deque[LoopbackCarrier] = deque()
        self._readable = Signal()
        self._closed = False

    def fileno(self) -> int:
        return self._readable.fd

    def accept(self, timeout: float | None = None) -> Carrier | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed, timeout)
            if self._closed:
                raise ClosedError("this listener was closed", origin=self.address)
            carrier = self._queue.popleft() if self._queue else None
            self._readable.show(bool(self._queue))
            return carrier

    def close(self) -> None:
        with _listeners_lock:
            if _listeners.get(self._name) is self:
                del _listeners[self._name]
        with self._changed:
            self._closed = True
            waiting = list(self._queue)
            self._queue.clear()
            self._readable.close()
            self._changed.notify_all()
        for carrier in waiting:
            carrier.close()

    def offer(self, uri: Uri) -> LoopbackCarrier:
        """Make a pair, queue one end for `accept`, return the other."""
        name = f"{self.address}?client={next(_clients)}"
        up = Pipe()
        try:
            down = Pipe()
        except OSError as error:
            up.close_signal()
            raise refused(str(uri), error) from error
        client, server = LoopbackCarrier(name, str(uri), down, up), LoopbackCarrier(self.address, name, up, down)
        with self._changed:
            if not self._closed and len(self._queue) < self._backlog:
                self._queue.append(server)
                self._readable.show(True)
                self._changed.notify_all()
                return client
        server.close()
        client.close()
        raise _refused(uri)


def connect(uri: Uri, *, timeout: float, keepalive: Keepalive) -> LoopbackCarrier:  # noqa: ARG001 - never waits
    """Connect to a name of this process; BrokenError when nobody listens under it."""
    with _listeners_lock:
        listener = _listeners.get(uri.place)
    if listener is None:
        raise _refused(uri)
    return listener.offer(uri)


def listen(uri: Uri, *, keepalive: Keepalive, backlog: int) -> LoopbackListener:  # noqa: ARG001 - one process, nothing dies
    """Listen under a name; UsageError when the name is taken."""
    name = uri.place or f"anonymous-{next(_names)}"
    with _listeners_lock:
        if name in _listeners:
            raise UsageError(f"cannot listen on {uri}: the name is taken; choose another one")
        listener = _listeners[name] = LoopbackListener(name, backlog)
    return listener


def adopt(fd: int, peer: str, spin_us: int | None = None) -> Carrier:  # noqa: ARG001 - always refused
    """A loopback carrier lives in one process."""
    raise UnsupportedError("a loopback carrier cannot move to another process; use tcp or unix", origin=peer)


def _refused(uri: Uri) -> Exception:
    return broken(str(uri), ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)))
