"""From an address to an operational session: HELLO, ACCEPT, and the other lanes (H03, H04)."""

from __future__ import annotations

from dataclasses import replace
from time import monotonic

from remora.base.uri import Uri
from remora.carriers import registry
from remora.carriers.carrier import Capability, Carrier, Keepalive
from remora.errors import BrokenError, DeadlineError, Error, PeerError
from remora.session.events import Accepted, Failed
from remora.session.keepalive import HeartbeatOptions
from remora.session.session import Session
from remora.session.state import Lane, Role, lanes_of
from remora.wire.bootstrap import CAPABILITY_SHARED, Accept, Hello

__all__ = ["BOOTSTRAP_TIMEOUT", "CONNECT_TIMEOUT", "connect_session"]

CONNECT_TIMEOUT = 30.0
BOOTSTRAP_TIMEOUT = 10.0
JOINED_SIZE = 32
DEFAULT_HEARTBEAT = HeartbeatOptions()


def connect_session(
    uri: Uri, hello: Hello, timeout: float = CONNECT_TIMEOUT, heartbeat: HeartbeatOptions = DEFAULT_HEARTBEAT
) -> tuple[Session, dict[Lane, Carrier]]:
    """Connect to a server. `uri` is a carrier address. On any failure every connection made here is closed.

    What the query of the address asks for is for small commands: connections of the bulk lane are made without it.

    Raises BrokenError (unreachable, gone, not remora, another version), DeadlineError, or the server's reason for refusing.
    """
    deadline = monotonic() + timeout
    keepalive = Keepalive(heartbeat.interval, heartbeat.deadline)
    plain = Uri(uri.scheme, uri.place)
    session = Session(Role.CLIENT, str(plain), monotonic(), heartbeat)
    carriers: dict[Lane, Carrier] = {}

    def connect(lane: Lane) -> Carrier:
        address = plain if lane >= Lane.BULK else uri
        carriers[lane] = registry.connect(address, timeout=max(0.001, deadline - monotonic()), keepalive=keepalive)
        carriers[lane].activate()
        return carriers[lane]

    try:
        accept = _greet(session, connect(Lane.CONTROL), hello, min(deadline, monotonic() + BOOTSTRAP_TIMEOUT))
        lanes = lanes_of(accept.bulk)[1:]
        for lane in lanes:
            connect(lane).send_all(session.join_message(lane), timeout=max(0.001, deadline - monotonic()))
        for lane in lanes:
            _await_joined(session, carriers, lane, min(deadline, monotonic() + BOOTSTRAP_TIMEOUT))
    except BaseException:
        for carrier in carriers.values():
            carrier.close()
        raise
    session.heartbeat.heard = True
    return session, carriers


def _greet(session: Session, control: Carrier, hello: Hello, deadline: float) -> Accept:
    begin = monotonic()
    if Capability.POSIX_FD not in control.capabilities:
        hello = replace(hello, capabilities=hello.capabilities & ~CAPABILITY_SHARED)
    session.greet(hello)
    control.send_all(session.take(Lane.CONTROL), timeout=max(0.001, deadline - monotonic()))
    while session.accepted is None:
        try:
            lease = control.receive(max(0.0, deadline - monotonic()))
        except Error as error:
            raise BrokenError(f"{session.peer} ended the connection before it accepted a session: {error.message}") from error
        if lease is None:
            raise DeadlineError(
                f"{session.peer} took the connection and did not answer as a remora server within {deadline - begin:.2g} s"
            )
        with lease:
            events = session.receive(Lane.CONTROL, lease.view)
        for event in events:
            if isinstance(event, Failed):
                raise _placed(event.error, session.peer)
            assert isinstance(event, Accepted)  # in this state there is no other
    return session.accepted


def _await_joined(session: Session, carriers: dict[Lane, Carrier], lane: Lane, deadline: float) -> None:
    frame = memoryview(bytearray(JOINED_SIZE))
    got = 0
    while got < JOINED_SIZE:
        try:
            count = carriers[lane].receive_into(frame[got:], max(0.0, deadline - monotonic()))
        except Error as error:
            raise _cause(session, carriers[Lane.CONTROL], lane, error) from error
        if not count:
            raise DeadlineError(f"{session.peer} did not take the {lane.name.lower()} lane within {BOOTSTRAP_TIMEOUT:g} s")
        got += count
    try:
        session.check_joined(lane, frame)
    except Error as error:
        raise _placed(error, session.peer) from None
    session.lane_joined(lane)


def _placed(error: Error, peer: str) -> Error:
    """The error with the server's address, unless it says where it is from."""
    error.origin = error.origin or peer
    return error


def _cause(session: Session, control: Carrier, lane: Lane, error: Error) -> Error:
    """Why a lane was refused: the control lane may have brought the reason."""
    try:
        lease = control.receive(0.1)
    except PeerError:
        raise
    except Error:
        lease = None
    if lease is not None:
        with lease:
            for event in session.receive(Lane.CONTROL, lease.view):
                if isinstance(event, Failed):
                    return event.error
    return BrokenError(f"{session.peer} closed the {lane.name.lower()} lane: {error.message}")
