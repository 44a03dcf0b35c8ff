"""From HELLO to the last lane: what each side says and checks until the session is operational (H03, H04)."""

from __future__ import annotations

from remora.errors import Error, PeerError, UnsupportedError, UsageError
from remora.session.axes import CompletionWindow, SubmissionWindow
from remora.session.events import Accepted, Event, Greeted, LanesUp
from remora.session.keepalive import HeartbeatOptions
from remora.session.life import Life, PeerEndedError
from remora.session.state import Lane, Role, Stimulus, lanes_of
from remora.wire.bootstrap import Accept, Hello, Join, Joined, Reject, decode_bootstrap, encode_bootstrap

__all__ = ["Bootstrap"]


class Bootstrap(Life):
    """A session until it is operational. What was agreed upon then stays in `hello` and `accepted`."""

    def __init__(self, role: Role, peer: str, now: float, heartbeat: HeartbeatOptions) -> None:
        super().__init__(role, peer, now, heartbeat)
        self.submission = SubmissionWindow((), 1)
        self.completion: dict[int, CompletionWindow] = {}
        self._limit = 1
        self._lanes: set[Lane] = {Lane.CONTROL}

    def greet(self, hello: Hello) -> None:
        """Client: ask for a session."""
        self._begin(Role.CLIENT, Stimulus.HELLO)
        self._move(Stimulus.HELLO)
        self.hello = hello
        self._write(encode_bootstrap(hello))

    def accept(self, accept: Accept) -> None:
        """Server: agree. Raises UnsupportedError when the client must have what `accept` does not offer; then `reject`."""
        hello = self._begin(Role.SERVER, Stimulus.ACCEPT)
        missing = hello.required & ~accept.capabilities
        if missing:
            raise UnsupportedError(f"the client requires the capabilities {missing:#x}, which this server does not have")
        if accept.capabilities & ~hello.capabilities:
            raise UsageError(f"the client has the capabilities {hello.capabilities:#x}; accept no others")
        if accept.bulk > hello.bulk:
            raise UsageError(f"the client asked for {hello.bulk} connections of the bulk lane; accept no more")
        self._move(Stimulus.ACCEPT)
        self._set_accepted(accept)
        self._write(encode_bootstrap(accept))

    def reject(self, error: Error) -> None:
        """Server: refuse, with the reason."""
        self._begin(Role.SERVER, Stimulus.REJECT)
        self._move(Stimulus.REJECT)
        self.failure = error
        self._write(encode_bootstrap(Reject(error)))

    def join_message(self, lane: Lane) -> bytes:
        """Client: what to send first on the new connection of a lane."""
        accept = self._accept()
        return encode_bootstrap(Join(accept.session_id, accept.token, lane))

    def joined_message(self, lane: Lane) -> bytes:
        """Server: the answer on that lane."""
        return encode_bootstrap(Joined(self._accept().session_id, lane))

    def check_joined(self, lane: Lane, frame: memoryview) -> None:
        """Client: check the answer on that lane. Raises its reason when the lane was refused, PeerError for another answer."""
        message = decode_bootstrap(frame)
        if isinstance(message, Reject):
            raise message.error
        if message != Joined(self._accept().session_id, lane):
            raise PeerError(f"expected JOINED for lane {lane.name.lower()}, got {message}")

    def lane_joined(self, lane: Lane) -> list[Event]:
        """A lane belongs to the session now; LanesUp with the last one. Raises PeerError when the peer joins it twice."""
        if self.failure is not None:
            raise self.failure.copy()
        expected = lanes_of(self.accepted.bulk if self.accepted is not None else 1)
        if lane in self._lanes or lane not in expected:
            raise PeerError(f"the {lane.name.lower()} lane {'joined twice' if lane in self._lanes else 'was not agreed upon'}")
        last = len(self._lanes) == len(expected) - 1
        self._move(Stimulus.LANES if last else Stimulus.LANE)
        self._lanes.add(lane)
        return [LanesUp()] if last else []

    def _accept(self) -> Accept:
        if self.accepted is None:
            raise UsageError("the session was not accepted yet")
        return self.accepted

    def _set_accepted(self, accept: Accept) -> None:
        self.accepted = accept
        axes = [axis for axis, _ in accept.axes]
        if self.role is Role.CLIENT:
            self.submission = SubmissionWindow(axes, accept.command_window)
        else:
            self.completion = {axis: CompletionWindow(axis) for axis in axes}
            self._limit = accept.command_window

    def _on_bootstrap(self, message: Hello | Accept | Reject, events: list[Event]) -> None:
        match message:
            case Hello():
                self._move(Stimulus.HELLO)
                self.hello = message
                events.append(Greeted(message))
            case Accept():
                self._check_capabilities(message.capabilities)
                if self.hello is not None and message.bulk > self.hello.bulk:
                    raise PeerError(f"accepted with {message.bulk} connections of the bulk lane; asked for {self.hello.bulk}")
                self._move(Stimulus.ACCEPT)
                self._set_accepted(message)
                events.append(Accepted(message))
            case _:
                raise PeerEndedError(message.error)

    def _check_capabilities(self, capabilities: int) -> None:
        hello = self.hello
        if hello is not None and (hello.required & ~capabilities or capabilities & ~hello.capabilities):
            raise PeerError(
                f"accepted with the capabilities {capabilities:#x}; asked for {hello.required:#x} of {hello.capabilities:#x}"
            )
