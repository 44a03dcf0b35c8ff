"""What an operating system error means to somebody who uses a carrier."""

from __future__ import annotations

import errno

from remora.errors import BrokenError

__all__ = ["broken"]

CAUSES = {
    errno.ECONNREFUSED: "connection refused: is the server running?",
    errno.ECONNRESET: "connection reset by the peer",
    errno.EPIPE: "the peer closed the connection",
    errno.ETIMEDOUT: "no answer within the keepalive deadline: the peer or the network is gone",
    errno.EHOSTUNREACH: "no route to the host: check the address and the network",
    errno.ENETUNREACH: "no route to the network: check the address and the network",
    errno.ENOENT: "there is no such socket: is the server running?",
    errno.EACCES: "permission denied: the socket belongs to another user",
}


def broken(peer: str, error: OSError) -> BrokenError:
    """The BrokenError that an operating system error stands for; names the peer and the cause."""
    cause = CAUSES.get(error.errno or 0) or error.strerror or str(error)
    failure = BrokenError(cause, origin=peer)
    failure.__cause__ = error
    return failure
