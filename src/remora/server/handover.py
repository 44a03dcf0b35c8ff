"""A connection that joined a session moves from the server's parent process to the session's.

One message on the socket between them: the lane, how long its carrier looks before it sleeps (nothing where that adapts), its peer,
and its descriptor.

In the session's process connections have high numbers. When a process is killed Linux lets go of its files from the highest number
down, and a GiB of memory files takes 0.1 s and more: so the client hears of the end before that, not after (H05).
"""

from __future__ import annotations

import fcntl
import os
import resource
import socket
from contextlib import suppress

from remora.carriers import registry
from remora.carriers.carrier import Carrier
from remora.errors import BrokenError
from remora.session.state import Lane

__all__ = ["hand_over", "high", "move_up", "take_over"]

#: Above the numbers of memory files, unless there are thousands.
HIGH = 4096


def hand_over(supervisor: socket.socket, lane: Lane, carrier: Carrier) -> None:
    """Give the carrier away; it is closed here. A session process that is gone is the business of whoever watches it."""
    facts = f"{'' if carrier.spin_us is None else carrier.spin_us} {carrier.peer}"
    fd = carrier.detach()
    try:
        with suppress(OSError):
            socket.send_fds(supervisor, [bytes([lane]) + facts.encode()], [fd])
    finally:
        os.close(fd)


def take_over(supervisor: socket.socket, scheme: str) -> tuple[Lane, Carrier]:
    """The other end: the lane and its carrier, active. Raises BrokenError when the parent is gone."""
    message, fds, _, _ = socket.recv_fds(supervisor, 4096, 1)
    if not fds:
        raise BrokenError("the server stopped before the session began")
    spin_us, _, peer = message[1:].decode().partition(" ")
    carrier = registry.adopt(scheme, high(fds[0]), peer, int(spin_us) if spin_us else None)
    carrier.activate()
    return Lane(message[0]), carrier


def move_up(carrier: Carrier, scheme: str) -> Carrier:
    """The same connection under a high number; the carrier that is given has ended. For one that is active and keeps nothing."""
    moved = registry.adopt(scheme, high(carrier.detach()), carrier.peer, carrier.spin_us)
    moved.activate()
    return moved


def high(fd: int) -> int:
    """A high number for this descriptor, which is closed; itself where the system has none."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, min(HIGH, most // 2))
    except OSError:
        return fd
    os.close(fd)
    return moved
