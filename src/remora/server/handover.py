"""A connection that joined a session moves from the server's parent process to the session's.

One message on the socket between them: the lane, how long its carrier looks before it sleeps (nothing where that adapts), its peer,
and its descriptor.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from remora.carriers import registry
from remora.carriers.carrier import Carrier
from remora.errors import BrokenError
from remora.session.state import Lane

__all__ = ["hand_over", "take_over"]


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
    carrier = registry.adopt(scheme, fds[0], peer, int(spin_us) if spin_us else None)
    carrier.activate()
    return Lane(message[0]), carrier
