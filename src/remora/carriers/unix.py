"""unix: `unix:///path/to.sock`, a socket in the file system that only its owner may open. Passes file descriptors.

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
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from remora.carriers.carrier import Capability, Keepalive, Span
from remora.carriers.causes import broken
from remora.carriers.stream import StreamCarrier, StreamListener, spin_of, wait_ready
from remora.errors import BrokenError, DeadlineError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from remora.base.uri import Uri

__all__ = ["UnixCarrier", "adopt", "connect", "listen"]

#: Asked for on both sides; the system may give less.
BUFFER_BYTES = 4 << 20
#: Most bytes that travel with descriptors (few enough to be taken whole), and most descriptors in one message (SCM_MAX_FD).
FDS_DATA_BYTES = 4 << 10
FDS = 253
FD_BYTES = array.array("i").itemsize


class UnixCarrier(StreamCarrier):
    """A stream carrier that passes file descriptors."""

    def __init__(self, sock: socket.socket, local: str, peer: str, spin_us: int = 0) -> None:
        super().__init__(sock, local, peer, Capability.POSIX_FD, spin_us)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)

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
                if not self._wait_room(None if deadline is None else deadline - monotonic()):
                    raise

    def receive_fds(self, count: int, timeout: float | None = None) -> tuple[bytes, list[int]] | None:
        if not self._receivable:
            raise self._refusal("receive_fds")
        if not 0 < count <= FDS:
            raise UsageError(f"receive_fds takes 1 to {FDS} descriptors, got {count}")
        if not self._inbox:
            raise self._crowded()
        self._take_inbox()
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
        fds = _descriptors(rights)
        if not data:
            self._check_end(0)
        if flags & socket.MSG_CTRUNC:
            for fd in fds:
                os.close(fd)
            raise self._settle_failure(BrokenError(f"the peer sent more than {count} descriptors", origin=self.peer))
        self._bytes_received += len(data)
        self._receives += 1
        return data, fds


def connect(uri: Uri, *, timeout: float, keepalive: Keepalive) -> UnixCarrier:  # noqa: ARG001 - nothing to keep alive
    """Connect within `timeout` seconds, which counts when the server's queue of new connections is full."""
    spin_us = spin_of(uri)
    peer = f"unix://{uri.place}"
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    seconds = max(timeout, 0.001)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6)))
    try:
        sock.connect(_path(uri))
    except BlockingIOError as error:
        sock.close()
        raise BrokenError(f"no answer within {timeout:g} s: the server accepts no connections", origin=peer) from error
    except OSError as error:
        sock.close()
        raise broken(peer, error) from error
    return UnixCarrier(sock, f"unix://?pid={os.getpid()}", peer, spin_us)


def listen(uri: Uri, *, keepalive: Keepalive, backlog: int) -> StreamListener:  # noqa: ARG001 - nothing to keep alive
    """Listen on a path that nobody else listens on. A socket left behind by a dead server is replaced.

    Nobody can connect between bind and listen, so the permissions are set there, without the process-wide umask.
    """
    spin_us = spin_of(uri)
    path = _path(uri)
    address = f"unix://{path}"
    _clear(path, address)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
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

    return StreamListener(sock, address, lambda accepted, _: UnixCarrier(accepted, address, _peer(accepted, path), spin_us), unlink)


def adopt(fd: int, peer: str) -> UnixCarrier:
    """Take over a connected socket."""
    sock = socket.socket(fileno=fd)
    return UnixCarrier(sock, f"unix://{sock.getsockname() or ''}", peer)


def _path(uri: Uri) -> str:
    if not uri.place.startswith("/"):
        raise UsageError(f"{uri}: give an absolute path, unix:///run/remora.sock")
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


def _peer(sock: socket.socket, path: str) -> str:
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return f"unix://{path}?pid={pid}&uid={uid}"


def _descriptors(rights: list[tuple[int, int, bytes]]) -> list[int]:
    fds = array.array("i")
    for level, kind, data in rights:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % FD_BYTES])
    return list(fds)
