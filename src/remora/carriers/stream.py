"""Carriers over a stream socket: what tcp and unix share.

The Python socket is in blocking mode. A send that must not block says MSG_DONTWAIT; a receive that may block is one plain recv,
which SO_RCVTIMEO ends every TICK, so a deadline needs no poll before each receive. `fail` wakes blocked calls by shutdown(2).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any

from remora.carriers.carrier import Capability, Carrier, CarrierState, Listener, Span
from remora.carriers.causes import STARVED, refused
from remora.carriers.endpoint import TICK, Endpoint
from remora.carriers.pieces import SPANS
from remora.carriers.spin import Lookout, spin_for
from remora.errors import BusyError, ClosedError, Error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["StreamCarrier", "StreamListener", "open_socket", "set_options"]

NOW = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
QUIET = socket.MSG_NOSIGNAL
#: The other arguments of one receive that does not wait.
NO_COUNT, NOW_ONCE = (0,), (NOW,)
TICK_TIMEVAL = struct.pack("ll", 0, int(TICK * 1e6))
#: Seconds that close waits for an accept that it has woken.
CLOSE_WAIT = 1.0
#: Seconds between tries when accept fails for want of descriptors or memory.
ACCEPT_PAUSE = 0.05


def open_socket(peer: str, family: int, kind: int = socket.SOCK_STREAM, protocol: int = 0) -> socket.socket:
    """A socket. Raises BusyError when this side has no descriptor or memory for one."""
    try:
        return socket.socket(family, kind, protocol)
    except OSError as error:
        raise refused(peer, error) from error


def set_options(sock: socket.socket, peer: str, *options: tuple[int, int | bytes]) -> None:
    """Set options of the level SOL_SOCKET. On failure the socket is closed; raises what `refused` says."""
    try:
        for option, value in options:
            sock.setsockopt(socket.SOL_SOCKET, option, value)
    except OSError as error:
        sock.close()
        raise refused(peer, error) from error


def wait_ready(timeout: float | None, *watched: tuple[int, int]) -> bool:
    """Poll (descriptor, event) pairs for at most `timeout` seconds; a descriptor that is closed already counts as ready."""
    poll = select.poll()
    for descriptor, event in watched:
        if descriptor < 0:
            return True
        poll.register(descriptor, event)
    return bool(poll.poll(None if timeout is None else max(timeout, 0) * 1000))


class StreamCarrier(Endpoint):
    """A carrier over a connected stream socket, which it owns.

    `spin_us`: how long `receive` looks for bytes before it sleeps; None adapts, 0 never looks (spin.py).
    """

    def __init__(self, sock: socket.socket, local: str, peer: str, capabilities: Capability, spin_us: int | None = None) -> None:
        super().__init__(local, peer, capabilities | Capability.RELIABLE | Capability.ORDERED | Capability.HANDOVER)
        sock.settimeout(None)
        set_options(sock, peer, (socket.SO_RCVTIMEO, TICK_TIMEVAL), (socket.SO_SNDTIMEO, TICK_TIMEVAL))
        self._sock = sock
        self._recv_into = sock.recv_into
        self._send = sock.send
        self._sendmsg = sock.sendmsg
        self.spin_us = spin_us
        if (spin := spin_for(spin_us)) is not None:
            lookout = Lookout(sock.fileno(), spin)
            self._look, self._woke = lookout.look, lookout.woke
        self._take_tick = sock.recv_into

    def fileno(self) -> int:
        return -1 if self._state is CarrierState.CLOSED else self._sock.fileno()

    def detach(self) -> int:
        with self._lock:
            if self._failure is not None:
                raise self._failure.copy()
            if self._pending_slots:
                raise BusyError(
                    f"{self._pending_slots} reservations are open or kept; commit and flush() before detach()", origin=self.peer
                )
            if not self._take_both():
                raise BusyError("another thread is sending or receiving; detach() needs the carrier alone", origin=self.peer)
            self._failure = ClosedError("this carrier was handed over by detach()", origin=self.local)
            self._state = CarrierState.CLOSED
            self._sendable = self._receivable = False
            return self._sock.detach()

    def _put(self, spans: Sequence[Span]) -> int:
        if len(spans) == 1:
            return self._send(spans[0], NOW)
        return self._sendmsg(spans if len(spans) <= SPANS else [span for span in spans if len(span)][:SPANS], (), NOW)

    def _put_wait(self, spans: Sequence[Span]) -> int:
        return self._sendmsg(spans, (), QUIET)

    def _take_soon(self, room: Span, timeout: float) -> int:
        if timeout > 0 and not wait_ready(timeout, (self._sock.fileno(), select.POLLIN)):
            return -1
        try:
            for count in map(self._recv_into, (room,), NO_COUNT, NOW_ONCE):
                return count
        except BlockingIOError:
            pass
        return -1

    def _wait_room(self, timeout: float | None) -> bool:
        return wait_ready(timeout, (self._sock.fileno(), select.POLLOUT))

    def _end_output(self) -> None:
        self._sock.shutdown(socket.SHUT_WR)

    def _interrupt(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _dispose(self) -> None:
        self._sock.close()


class StreamListener(Listener):
    """A listening socket, which it owns. `wrap` makes the carrier of an accepted socket; `on_close` runs once at close."""

    def __init__(
        self,
        sock: socket.socket,
        address: str,
        wrap: Callable[[socket.socket, Any], Carrier],
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.address = address
        self._sock = sock
        self._wrap = wrap
        self._on_close = on_close
        self._closed = False
        self._accepting = Lock()
        try:
            self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except OSError as error:
            on_close()
            sock.close()
            raise refused(address, error) from error
        sock.setblocking(False)

    def fileno(self) -> int:
        return self._sock.fileno()

    def accept(self, timeout: float | None = None) -> Carrier | None:
        deadline = None if timeout is None else monotonic() + timeout
        if not self._accepting.acquire(timeout=-1 if timeout is None else max(timeout, 0)):
            return None
        try:
            while True:
                left = None if deadline is None else max(deadline - monotonic(), 0)
                ready = not self._closed and self._wait(left)
                if self._closed:
                    raise ClosedError("this listener was closed", origin=self.address)
                carrier = self._accept_one(left) if ready else None
                if carrier is not None or not ready or left == 0:
                    return carrier
        finally:
            self._accepting.release()

    def _wait(self, left: float | None) -> bool:
        """Whether somebody connected, or `close` was called. Without memory for the call nobody did, for a moment."""
        try:
            return wait_ready(left, (self._stop, select.POLLIN), (self._sock.fileno(), select.POLLIN))
        except OSError:
            return self._closed

    def _accept_one(self, left: float | None) -> Carrier | None:
        """One carrier, or None when this one went wrong: a client that gave up, or no descriptors left."""
        try:
            sock, address = self._sock.accept()
        except OSError as error:
            if error.errno in STARVED:
                wait_ready(ACCEPT_PAUSE if left is None else min(left, ACCEPT_PAUSE), (self._stop, select.POLLIN))
            return None
        try:
            return self._wrap(sock, address)
        except (OSError, Error):
            sock.close()
            return None

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        os.eventfd_write(self._stop, 1)
        alone = self._accepting.acquire(timeout=CLOSE_WAIT)
        try:
            self._on_close()
            self._sock.close()
            os.close(self._stop)
        finally:
            if alone:
                self._accepting.release()
