"""The session machine. Both roles are this class; `Role` only decides what it may send and what it expects.

The contract, in the order a shell uses it:

    client: greet() ... receive(CONTROL) -> Accepted ... lane_joined() twice -> LanesUp
    server: receive(CONTROL) -> Greeted, accept() or reject(), lane_joined() twice -> LanesUp
    both:   receive(lane, bytes) -> events; take(lane) -> bytes to send; tick(now) at next_tick(); fail(error) or close()

After every call that may have written, the shell must send what `take` gives. Not thread-safe: the shell holds a lock.
Whatever goes wrong, the first cause stays in `failure`, `Failed` comes once, and every later call raises that cause (H05).
"""

from __future__ import annotations

from collections.abc import Callable

from remora.base.frontier import Frontier
from remora.base.ids import ResourceType, make_provisional
from remora.errors import BrokenError, ClosedError, Error, PeerError, UnsupportedError, UsageError
from remora.session.axes import CompletionWindow, SubmissionWindow
from remora.session.events import (
    Accepted,
    Advanced,
    AllocateReceived,
    CommandReceived,
    Event,
    Failed,
    Greeted,
    LanesUp,
    Named,
    ReleaseReceived,
    RequestReceived,
    Responded,
    ResultReceived,
    Unnamed,
)
from remora.session.keepalive import Heartbeat, HeartbeatOptions
from remora.session.state import Lane, Role, State, Stimulus, next_state
from remora.wire import queue as frames
from remora.wire.bootstrap import Accept, Bootstrap, Hello, Join, Joined, Reject, decode_bootstrap, encode_bootstrap
from remora.wire.commands import DECODERS
from remora.wire.control import (
    Control,
    ExecutableLoad,
    Failure,
    Goaway,
    Loaded,
    Ping,
    Pong,
    Request,
    Response,
    decode_control,
    encode_control,
)
from remora.wire.frame import FrameSplitter
from remora.wire.layout import MAX_CONTROL_FRAME, MAX_QUEUE_FRAME

__all__ = ["Session"]


class Session:
    """One session, as one side sees it. `peer` names the other side in messages (its URI)."""

    def __init__(self, role: Role, peer: str, now: float, heartbeat: HeartbeatOptions = HeartbeatOptions()) -> None:  # noqa: B008
        self.role = role
        self.peer = peer
        self.state = State.IDLE
        self.failure: Error | None = None
        self.hello: Hello | None = None
        self.accepted: Accept | None = None
        self.submission = SubmissionWindow((), 1)
        self.completion: dict[int, CompletionWindow] = {}
        self.received = 0
        """Commands received so far (server)."""
        self.heartbeat = Heartbeat(heartbeat, now)
        self._lanes: set[Lane] = {Lane.CONTROL}
        self._counter = 0
        self._requests: set[int] = set()
        self._out = {Lane.CONTROL: bytearray(), Lane.QUEUE: bytearray()}
        self._queue_out = self._out[Lane.QUEUE]
        self._splitters = {
            Lane.CONTROL: FrameSplitter("control", MAX_CONTROL_FRAME),
            Lane.QUEUE: FrameSplitter("queue", MAX_QUEUE_FRAME),
        }

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

    # -- bootstrap ------------------------------------------------------------------------------------------------------------

    def greet(self, hello: Hello) -> None:
        """Client: ask for a session."""
        self._expect_role(Role.CLIENT)
        self._move(Stimulus.HELLO)
        self.hello = hello
        self._write(encode_bootstrap(hello))

    def accept(self, accept: Accept) -> None:
        """Server: agree. Raises UnsupportedError when the client must have what `accept` does not offer; then `reject`."""
        self._expect_role(Role.SERVER)
        assert self.hello is not None  # noqa: S101  (GREETING is entered only with a HELLO)
        missing = self.hello.required & ~accept.capabilities
        if missing:
            raise UnsupportedError(f"the client requires the capabilities {missing:#x}, which this server does not have")
        self._move(Stimulus.ACCEPT)
        self._set_accepted(accept)
        self._write(encode_bootstrap(accept))

    def reject(self, error: Error) -> None:
        """Server: refuse, with the reason."""
        self._expect_role(Role.SERVER)
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
        """Client: check the answer on that lane."""
        message = decode_bootstrap(frame)
        if message != Joined(self._accept().session_id, lane):
            raise PeerError(f"expected JOINED for lane {lane.name.lower()}, got {message}")

    def lane_joined(self, lane: Lane) -> list[Event]:
        """A lane belongs to the session now; LanesUp with the last one."""
        if lane in self._lanes:
            raise PeerError(f"the {lane.name.lower()} lane joined twice")
        last = len(self._lanes) == len(Lane) - 1
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

    # -- client: control calls and queue traffic ------------------------------------------------------------------------------

    def request(self, body: ExecutableLoad) -> int:
        """Client: send a call; `Responded` with the id returned here brings the answer."""
        self.check()
        self._counter += 1
        request_id = self._counter & 0xFFFFFFFF
        self._requests.add(request_id)
        self._write(encode_control(Request(request_id, body)))
        return request_id

    def provisional(self, kind: ResourceType) -> int:
        """Client: an id for a resource that the server is about to make; usable at once."""
        self._counter += 1
        return make_provisional(kind, self._counter)

    def command(self, axis: int, op: int, waits: Frontier, body: bytes) -> int:
        """Client: submit a command and return its epoch. Raises BusyError when the window is full; then nothing was consumed."""
        if self.state is not State.OPERATIONAL:
            self.check()
        epoch = self.submission.take(axis)
        self._queue_out += frames.encode_command(op, axis, epoch, waits, body)
        return epoch

    def allocate(self, device: int, size: int) -> int:
        """Client: have a buffer made; returns its provisional id."""
        self.check()
        resource = self.provisional(ResourceType.BUFFER)
        self._queue_out += frames.encode_allocate(device, resource, size)
        return resource

    def release(self, ids: list[int]) -> None:
        """Client: give resources back, after everything submitted so far."""
        self.check()
        for start in range(0, len(ids), frames.MAX_RELEASE):
            self._queue_out += frames.encode_release(self.submission.submissions, ids[start : start + frames.MAX_RELEASE])

    # -- server: answers ------------------------------------------------------------------------------------------------------

    def respond(self, request_id: int, body: Loaded | Error) -> None:
        """Server: answer a call."""
        self.check()
        self._write(encode_control(Response(request_id, body)))

    def advance(self, axis: int, names: list[tuple[int, int]] | None = None) -> None:
        """Server: report an axis's progress, resolutions, and its failure if it has ended. Writes nothing when there is no news."""
        window = self.completion[axis]
        epoch = window.report()
        if epoch or names:
            self._queue_out += frames.encode_advance(axis, epoch or window.reported, names)
        if window.failed is not None and window.reported <= window.done:
            failed, error = window.failed
            window.reported = failed
            self._queue_out += frames.encode_advance(axis, failed, None, error)

    def result(self, axis: int, epoch: int, data: bytearray) -> None:
        """Server: what a READ read; must come before the ADVANCE of its epoch."""
        self._queue_out += frames.encode_result(axis, epoch, data)

    def unname(self, provisional: int, error: Error) -> None:
        """Server: a resource could not be made."""
        self._queue_out += frames.encode_unnamed(provisional, error)

    # -- input ----------------------------------------------------------------------------------------------------------------

    def receive(self, lane: Lane, view: memoryview) -> list[Event]:
        """Feed what arrived on a lane. A malformed frame fails the session: then the list ends with Failed."""
        events: list[Event] = []
        if self.failure is not None or self.state is State.CLOSED:
            return events
        self.heartbeat.heard = True
        try:
            data, end = self._splitters[lane].feed(view)
            handle = self._on_queue_frame if lane is Lane.QUEUE else self._on_control_frame
            pos = 0
            while pos < end:
                size, kind, flags, low, high = frames.HEAD.unpack_from(data, pos)
                handle(kind, data, pos, size, events)
                pos += size
        except UsageError as error:
            events += self.fail(PeerError(error.message))
        except Error as error:
            events += self.fail(error)
        return events

    def _on_control_frame(self, kind: int, view: memoryview, pos: int, size: int, events: list[Event]) -> None:
        frame = view[pos : pos + size]
        if self.state in (State.IDLE, State.GREETING):
            self._on_bootstrap(decode_bootstrap(frame), events)
        else:
            self._on_control(decode_control(frame), events)

    def _on_bootstrap(self, message: Bootstrap, events: list[Event]) -> None:
        match message:
            case Hello() if self.role is Role.SERVER:
                self._move(Stimulus.HELLO)
                self.hello = message
                events.append(Greeted(message))
            case Accept() if self.role is Role.CLIENT:
                self._move(Stimulus.ACCEPT)
                self._set_accepted(message)
                events.append(Accepted(message))
            case Reject() if self.role is Role.CLIENT:
                events += self.fail(message.error)
            case _:
                raise PeerError(f"{type(message).__name__} from the wrong side, or on the wrong lane")

    def _on_control(self, message: Control, events: list[Event]) -> None:
        match message:
            case Ping():
                self._write(encode_control(Pong(message.nonce)))
            case Pong():
                if message.nonce > self.heartbeat.nonce:
                    raise PeerError(f"PONG {message.nonce} was never asked for")
            case Goaway():
                events += self.fail(BrokenError(f"{self.peer} ended the session: {message.error.message}", code=message.error.code))
            case Failure():
                events += self.fail(message.error)
            case Request() if self.role is Role.SERVER:
                events.append(RequestReceived(message.id, message.body))
            case Response() if self.role is Role.CLIENT:
                if message.id not in self._requests:
                    raise PeerError(f"a response to the request {message.id}, which is not open")
                self._requests.remove(message.id)
                events.append(Responded(message.id, message.body))
            case _:
                raise PeerError(f"{type(message).__name__} from the wrong side")

    def _on_queue_frame(self, kind: int, view: memoryview, pos: int, size: int, events: list[Event]) -> None:
        if self.state is not State.OPERATIONAL:
            raise PeerError(f"a queue frame while the session is {self.state.value}")
        handler = _QUEUE_FRAMES[self.role].get(kind)
        if handler is None:
            raise PeerError(f"a queue frame {kind:#x}, unknown or from the wrong side")
        handler(self, view, pos, size, events)

    def _on_command(self, view: memoryview, pos: int, size: int, events: list[Event]) -> None:
        op, axis, epoch, waits, body = frames.decode_command(view, pos, size)
        decoder = DECODERS.get(op)
        window = self.completion.get(axis)
        if decoder is None or window is None:
            raise PeerError(f"a COMMAND with the unknown op {op} or axis {axis:#x}")
        if waits:
            self._check_waits(waits, axis, epoch)
        window.receive(epoch)
        self.received += 1
        events.append(CommandReceived(op, axis, epoch, waits, decoder(view, body, pos + size)))

    def _check_waits(self, waits: Frontier, axis: int, epoch: int) -> None:
        """A wait names an epoch that was received before: on this lane it cannot be otherwise."""
        for other, until in waits:
            window = self.completion.get(other)
            if window is None or until > window.received:
                raise PeerError(f"a COMMAND waits for epoch {until} on axis {other:#x}, which was not submitted before it")

    def _on_allocate(self, view: memoryview, pos: int, size: int, events: list[Event]) -> None:
        events.append(AllocateReceived(*frames.decode_allocate(view, pos, size)))

    def _on_release(self, view: memoryview, pos: int, size: int, events: list[Event]) -> None:
        submissions, ids = frames.decode_release(view, pos, size)
        if submissions > self.received:
            raise PeerError(f"a RELEASE after {submissions} commands; {self.received} have come")
        events.append(ReleaseReceived(submissions, ids))

    def _on_advance(self, view: memoryview, pos: int, size: int, events: list[Event]) -> None:
        axis, epoch, names, failure = frames.decode_advance(view, pos, size)
        for pair in names:
            events.append(Named(*pair))
        if epoch and self.submission.advance(axis, epoch, failure):
            events.append(Advanced(axis, epoch, failure))

    def _on_result(self, view: memoryview, pos: int, size: int, events: list[Event]) -> None:
        events.append(ResultReceived(*frames.decode_result(view, pos, size)))

    def _on_unnamed(self, view: memoryview, pos: int, size: int, events: list[Event]) -> None:
        events.append(Unnamed(*frames.decode_unnamed(view, pos, size)))

    # -- time and the end -----------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Event]:
        """Look at the clock: sends a PING after silence and fails the session after too much of it."""
        if self.state is not State.OPERATIONAL:
            return []
        if self.heartbeat.due(now):
            self._write(encode_control(Ping(self.heartbeat.nonce)))
        elif self.heartbeat.silence(now) >= self.heartbeat.options.deadline:
            return self.fail(
                BrokenError(
                    f"{self.peer} gave no sign of life for {self.heartbeat.options.deadline:g} s: "
                    "its process is stopped or the network between is cut",
                    origin=self.peer,
                )
            )
        return []

    def next_tick(self) -> float:
        """When `tick` has to be called."""
        return self.heartbeat.next_tick()

    def fail(self, error: Error) -> list[Event]:
        """End the session with a cause. The first one wins: later calls return no event. The peer is told, if it still listens."""
        if self.failure is not None or self.state is State.CLOSED:
            return []
        living = self.state in (State.JOINING, State.OPERATIONAL)
        self._move(Stimulus.FAIL)
        self.failure = error
        if living and not isinstance(error, BrokenError) or isinstance(error, PeerError):
            self._write(encode_control(Failure(error)))
        return [Failed(error)]

    def close(self, reason: str) -> list[Event]:
        """End the session from this side in good order: the peer gets GOAWAY with the reason."""
        if self.failure is not None or self.state is State.CLOSED:
            return []
        living = self.state in (State.JOINING, State.OPERATIONAL)
        self._move(Stimulus.CLOSE)
        self.failure = ClosedError(f"the connection to {self.peer} was closed: {reason}")
        if living:
            self._write(encode_control(Goaway(ClosedError(reason))))
        return [Failed(self.failure)]

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

    def _expect_role(self, role: Role) -> None:
        if self.role is not role:
            raise UsageError(f"only the {role.value} may do this")


#: Which queue frames a role receives, and what takes them.
_QUEUE_FRAMES: dict[Role, dict[int, Callable[[Session, memoryview, int, int, list[Event]], None]]] = {
    Role.SERVER: {
        frames.COMMAND: Session._on_command,
        frames.ALLOCATE: Session._on_allocate,
        frames.RELEASE: Session._on_release,
    },
    Role.CLIENT: {
        frames.ADVANCE: Session._on_advance,
        frames.RESULT: Session._on_result,
        frames.UNNAMED: Session._on_unnamed,
    },
}
