"""Sockets in the file system that only their owner may open: what unix and shm share. They pass file descriptors.

A peer that dies is noticed at once: the kernel closes its end. So there is nothing to keep alive.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import select
import socket
import stat
import struct
from collections import deque
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from remora.carriers.carrier import Capability, Carrier, Span
from remora.carriers.causes import refused
from remora.carriers.stream import StreamCarrier, StreamListener, open_socket, set_options, wait_ready
from remora.errors import BrokenError, DeadlineError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from _typeshed import WriteableBuffer as Buffer

    from remora.base.uri import Uri

__all__ = ["LocalCarrier", "connect_socket", "descriptors", "listen_on"]

#: Asked for on both sides; the system may give less.
BUFFER_BYTES = 4 << 20
#: Most bytes that travel with descriptors (few enough to be taken whole), and most descriptors in one message (SCM_MAX_FD).
FDS_DATA_BYTES = 4 << 10
FDS = 253
FD_BYTES = array.array("i").itemsize


class LocalCarrier(StreamCarrier):
    """A stream carrier that passes file descriptors."""

    def __init__(self, sock: socket.socket, local: str, peer: str, spin_us: int | None = None) -> None:
        super().__init__(sock, local, peer, Capability.POSIX_FD, spin_us)
        set_options(sock, peer, (socket.SO_SNDBUF, BUFFER_BYTES), (socket.SO_RCVBUF, BUFFER_BYTES))
        self._fds: deque[int] = deque()  # kept for `take_fd`
        self._most_fds = 0

    def send_fds(self, data: Span, fds: Sequence[int], timeout: float | None = None) -> None:
        if not self._sendable:
            raise self._refusal("send_fds")
        if not 0 < len(data) <= FDS_DATA_BYTES or not 0 < len(fds) <= FDS:
            raise UsageError(
                f"send_fds takes 1 to {FDS_DATA_BYTES} bytes and 1 to {FDS} descriptors, got {len(data)} and {len(fds)}"
            )
        deadline = None if timeout is None else monotonic() + timeout
        self._wait_turn(deadline)
        try:
            self._drain_until(deadline)
            self._send_rights(data, fds, deadline)
            self._bytes_sent += len(data)
            self._sends += 1
        except BlockingIOError as error:
            raise DeadlineError("the peer did not take the bytes in the time given", origin=self.peer) from error
        except OSError as error:
            raise self._broke(error) from error
        finally:
            self._end_turn(None)
            if self._late:
                self._push()

    def _send_rights(self, data: Span, fds: Sequence[int], deadline: float | None) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        sent = 0
        while not sent:
            try:
                sent = self._sendmsg((data,), rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                if not wait_ready(None if deadline is None else deadline - monotonic(), (self._sock.fileno(), select.POLLOUT)):
                    raise

    def receive_fds(self, count: int, timeout: float | None = None) -> tuple[bytes, list[int]] | None:
        if not self._receivable:
            raise self._refusal("receive_fds")
        if not 0 < count <= FDS:
            raise UsageError(f"receive_fds takes 1 to {FDS} descriptors, got {count}")
        if not self._take_inbox():
            raise self._crowded()
        try:
            if not wait_ready(timeout, (self._sock.fileno(), select.POLLIN)):
                return None
            data, rights, flags, _ = self._sock.recvmsg(
                FDS_DATA_BYTES, socket.CMSG_SPACE(count * FD_BYTES), socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return None
        except OSError as error:
            raise self._broke(error) from error
        finally:
            self._end_inbox(None)
            if self._failure is not None:
                self._dispose_alone()
        fds = descriptors(rights)
        if not data:
            self._check_end(0)
        if flags & socket.MSG_CTRUNC:
            for fd in fds:
                os.close(fd)
            raise self._settle_failure(BrokenError(f"the peer sent more than {count} descriptors", origin=self.peer))
        self._bytes_received += len(data)
        self._receives += 1
        return data, fds

    def keep_fds(self, most: int) -> None:
        if not 0 < most <= FDS:
            raise UsageError(f"keep_fds keeps 1 to {FDS} descriptors, not {most}")
        self._most_fds = most
        self._recv_into = self._receive_rights
        self._take_tick = self._receive_rights

    def take_fd(self) -> int | None:
        return self._fds.popleft() if self._fds else None

    def _receive_rights(self, buffer: Buffer, nbytes: int = 0, flags: int = 0) -> int:
        """As the socket's recv_into, and descriptors are kept. One that this process has no number left for is missing."""
        space = socket.CMSG_SPACE(self._most_fds * FD_BYTES)
        count, rights, told, _ = self._sock.recvmsg_into((buffer,), space, flags | socket.MSG_CMSG_CLOEXEC)
        fds = descriptors(rights)
        self._fds += fds
        if len(self._fds) > self._most_fds or (told & socket.MSG_CTRUNC and len(fds) == self._most_fds):
            raise OSError(errno.EMFILE, f"the peer sent more than {self._most_fds} descriptors that nobody took")
        return count

    def _dispose(self) -> None:
        super()._dispose()
        while (fd := self.take_fd()) is not None:
            os.close(fd)


def connect_socket(uri: Uri, timeout: float) -> socket.socket:
    """A socket connected within `timeout` seconds, which counts when the server's queue of new connections is full."""
    peer = f"{uri.scheme}://{uri.place}"
    path, seconds = _path(uri), max(timeout, 0.001)
    sock = open_socket(peer, socket.AF_UNIX)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6)))
        sock.connect(path)
    except BlockingIOError as error:
        sock.close()
        raise BrokenError(f"no answer within {timeout:g} s: the server accepts no connections", origin=peer) from error
    except OSError as error:
        sock.close()
        raise refused(peer, error) from error
    return sock


def listen_on(uri: Uri, backlog: int, wrap: Callable[[socket.socket, str, str], Carrier]) -> StreamListener:
    """Listen on a path that nobody else listens on. A socket left behind by a dead server is replaced.

    `wrap(socket, local, peer)` makes the carrier of a connection. Nobody can connect between bind and listen, so the permissions
    are set there, without the process-wide umask.
    """
    path = _path(uri)
    address = f"{uri.scheme}://{path}"
    _clear(path, address)
    sock = open_socket(address, socket.AF_UNIX)
    try:
        sock.bind(path)
        Path(path).chmod(0o600)
        sock.listen(backlog)
        owner = os.getpid(), Path(path).stat().st_ino
    except OSError as error:
        sock.close()
        raise UsageError(f"cannot listen on {address}: {error.strerror or error}; choose another path") from error

    def unlink() -> None:
        with contextlib.suppress(FileNotFoundError):
            if (os.getpid(), Path(path).stat().st_ino) == owner:
                Path(path).unlink()

    return StreamListener(sock, address, lambda accepted, _: wrap(accepted, address, f"{address}?{_credentials(accepted)}"), unlink)


def _path(uri: Uri) -> str:
    if not uri.place.startswith("/"):
        raise UsageError(f"{uri}: give an absolute path, {uri.scheme}:///run/remora.sock")
    if len(os.fsencode(uri.place)) > 107:
        raise UsageError(f"{uri}: a socket path has at most 107 bytes; choose a shorter one")
    return uri.place


def _clear(path: str, address: str) -> None:
    """Remove a socket that nobody listens on. UsageError when the path is alive or no socket."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise UsageError(f"cannot listen on {address}: the path exists and is no socket; choose another path")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)
            error = probe.connect_ex(path)
        if error != errno.ECONNREFUSED:
            raise UsageError(f"cannot listen on {address}: another server listens there; stop it, or choose another path")
        Path(path).unlink()


def _credentials(sock: socket.socket) -> str:
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return f"pid={pid}&uid={uid}"


def descriptors(rights: list[tuple[int, int, bytes]]) -> list[int]:
    """The file descriptors in the ancillary data of a message."""
    fds = array.array("i")
    for level, kind, data in rights:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % FD_BYTES])
    return list(fds)
