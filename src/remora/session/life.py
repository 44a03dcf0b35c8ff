"""How a session lives and ends: its state, what it has to say on the control lane, the clock, and the first cause (H05)."""

from __future__ import annotations

import math

from remora.errors import BrokenError, ClosedError, Error, PeerError, UsageError
from remora.session.events import Event, Failed
from remora.session.keepalive import Heartbeat, HeartbeatOptions
from remora.session.state import TRANSITIONS, Lane, Role, State, Stimulus, next_state
from remora.wire.bootstrap import Accept, Hello, Reject, encode_bootstrap
from remora.wire.control import Failure, Goaway, Ping, encode_control

__all__ = ["Life", "PeerEndedError"]


class PeerEndedError(Exception):
    """The peer said that the session is over: no frame after that counts, and there is nothing to tell it."""

    def __init__(self, cause: Error) -> None:
        super().__init__()
        self.cause = cause


class Life:
    """The part of a session that every other part stands on. `peer` names the other side in messages (its URI)."""

    def __init__(self, role: Role, peer: str, now: float, heartbeat: HeartbeatOptions) -> None:
        self.role = role
        self.peer = peer
        self.state = State.IDLE
        self.failure: Error | None = None
        self.hello: Hello | None = None
        self.accepted: Accept | None = None
        self.dismissed = False
        """Whether the peer has ended the session in good order, by GOAWAY: it has sent all that it owed."""
        self.heartbeat = Heartbeat(heartbeat, now)
        self._out = {Lane.CONTROL: bytearray(), Lane.QUEUE: bytearray()}
        self._queue_out = self._out[Lane.QUEUE]

    # -- output ---------------------------------------------------------------------------------------------------------------

    def pending(self, lane: Lane) -> int:
        """Bytes that wait to be sent on a lane."""
        return len(self._out[lane])

    def take(self, lane: Lane) -> bytearray:
        """The bytes to send on a lane; they are the caller's now."""
        data = self._out[lane]
        self._out[lane] = bytearray()
        if lane is Lane.QUEUE:
            self._queue_out = self._out[lane]
        return data

    # -- time and the end -----------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Event]:
        """Look at the clock: sends a PING after silence and fails the session after too much of it."""
        if self.state is not State.OPERATIONAL:
            return []
        if self.heartbeat.due(now):
            self._write(encode_control(Ping(self.heartbeat.nonce)))
        elif self.heartbeat.expired(now):
            cause = BrokenError(
                f"{self.peer} gave no sign of life for {self.heartbeat.options.deadline:g} s: "
                "its process is stopped or the network between is cut",
                origin=self.peer,
            )
            events = self.fail(cause)
            self._write(encode_control(Failure(cause)))  # to a peer that was only stopped and goes on later
            return events
        return []

    def ask(self) -> int:
        """Send a PING now; `heartbeat.answered` tells when the peer has answered the nonce returned here."""
        self.check()
        nonce = self.heartbeat.ask()
        self._write(encode_control(Ping(nonce)))
        return nonce

    def next_tick(self) -> float:
        """When `tick` has to be called; never (infinity) while the session is not operational."""
        return self.heartbeat.next_tick() if self.state is State.OPERATIONAL else math.inf

    def fail(self, error: Error) -> list[Event]:
        """End the session with a cause. The first one wins: later calls return no event. The peer is told, if it still listens."""
        if self.failure is not None:
            return []
        farewell = self._farewell(error)
        events = self._end(Stimulus.FAIL, error)
        self._write(farewell)
        return events

    def _farewell(self, error: Error) -> bytes:
        """What to tell the peer: nothing when the connection is gone, and REJECT to a client that has no session yet."""
        if isinstance(error, BrokenError) and not isinstance(error, PeerError):
            return b""
        if self.state in (State.JOINING, State.OPERATIONAL):
            return encode_control(Failure(error))
        if self.role is Role.SERVER:
            return encode_bootstrap(Reject(error))
        # A server whose ACCEPT is wrong has a session; one that has not answered yet understands only the end of the connection.
        return encode_control(Failure(error)) if isinstance(error, PeerError) else b""

    def close(self, reason: str) -> list[Event]:
        """End the session from this side in good order: the peer gets GOAWAY with the reason."""
        if self.failure is not None:
            return []
        living = self.state in (State.JOINING, State.OPERATIONAL)
        events = self._end(Stimulus.CLOSE, ClosedError(f"the connection to {self.peer} was closed: {reason}"))
        if living:
            self._write(encode_control(Goaway(ClosedError(reason))))
        return events

    def _end(self, stimulus: Stimulus, cause: Error) -> list[Event]:
        state, end = next_state(self.state, stimulus), Failed(cause)
        self.state, self.failure = state, cause  # one step: an interruption comes before it or after
        return [end]

    def check(self) -> None:
        """Raise the cause of the end, or UsageError when the session is not operational yet."""
        if self.failure is not None:
            raise self.failure.copy()
        if self.state is not State.OPERATIONAL:
            raise UsageError(f"the session is {self.state.value}, not operational yet")

    def _move(self, stimulus: Stimulus) -> None:
        self.state = next_state(self.state, stimulus)

    def _write(self, frame: bytes) -> None:
        self._out[Lane.CONTROL] += frame

    def _expect(self, role: Role) -> None:
        if self.role is not role:
            raise UsageError(f"only the {role.value} may do this")
        self.check()

    def _begin(self, role: Role, stimulus: Stimulus) -> Hello:
        """Check that this side may take a step of the bootstrap now; the HELLO that it answers, or an empty one."""
        if self.role is not role:
            raise UsageError(f"only the {role.value} may {stimulus.value}")
        if self.failure is not None:
            raise self.failure.copy()
        if stimulus not in TRANSITIONS[self.state]:
            raise UsageError(f"there is nothing to {stimulus.value} while the session is {self.state.value}")
        return self.hello or Hello()
