"""What an operating system error means to somebody who uses a carrier."""

from __future__ import annotations

import errno

from remora.errors import BrokenError, BusyError, Error

__all__ = ["STARVED", "broken", "refused"]

#: What this process or the system has run out of; it stays so until something is freed.
STARVED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

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
    failure.__cause__ = error.with_traceback(None)  # whose frames hold memory of the caller, and failures are kept
    return failure


def refused(peer: str, error: OSError) -> Error:
    """Why there is no connection: BusyError when this side has no descriptor or memory for one, else as `broken`."""
    if error.errno not in STARVED:
        return broken(peer, error)
    failure = BusyError(f"{error.strerror}: close something here, or raise the limit (`ulimit -n`), and try again", origin=peer)
    failure.__cause__ = error.with_traceback(None)
    return failure
