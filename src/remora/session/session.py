"""The session machine. Both roles are this class; `Role` only decides what it may send and what it expects.

The contract, in the order a shell uses it:

    client: greet() ... receive(CONTROL) -> Accepted ... lane_joined() twice -> LanesUp
    server: receive(CONTROL) -> Greeted, accept() or reject(), lane_joined() twice -> LanesUp
    both:   receive(lane, bytes) -> events; take(lane) -> bytes to send; tick(now) at next_tick(); fail(error) or close()

After every call that may have written, the shell must send what `take` gives. Not thread-safe: the shell holds a lock.
Whatever goes wrong, the first cause stays in `failure`, `Failed` comes once, and every later call raises that cause (H05).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from remora.base.frontier import MAX_FRONTIER, Frontier
from remora.base.ids import ResourceType, make_provisional
from remora.errors import BrokenError, BusyError, ClosedError, Error, PeerError, UnsupportedError, UsageError
from remora.session.axes import CompletionWindow, SubmissionWindow
from remora.session.events import (
    Accepted,
    Advanced,
    AllocateReceived,
    CommandReceived,
    Event,
    EventAsked,
    EventTold,
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
from remora.session.state import TRANSITIONS, Lane, Role, State, Stimulus, check_frame, next_state
from remora.wire import queue as frames
from remora.wire.bootstrap import Accept, Hello, Join, Joined, Reject, decode_bootstrap, encode_bootstrap
from remora.wire.calls import Call, Loaded, method_of
from remora.wire.commands import DECODERS
from remora.wire.control import (
    MAX_REQUESTS,
    Control,
    Failure,
    Goaway,
    Ping,
    Pong,
    Request,
    Response,
    decode_control,
    encode_control,
)
from remora.wire.frame import FrameSplitter
from remora.wire.layout import HEADER, MAX_CONTROL_FRAME, MAX_QUEUE_FRAME

__all__ = ["Session"]

#: Unsent control bytes above which a peer that goes on asking, and does not read the answers, is given up.
MAX_UNREAD: Final = 1 << 20
_NOTHING: Final = memoryview(b"")


class _PeerEndedError(Exception):
    """The peer said that the session is over: no frame after that counts, and there is nothing to tell it."""

    def __init__(self, cause: Error) -> None:
        super().__init__()
        self.cause = cause


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
        self._requests: dict[int, int] = {}  # open calls: id to method
        self._unnamed: set[int] = set()
        self._reported = 0
        self._limit = 1
        self._handlers = _QUEUE_FRAMES[role]
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
            self._limit = accept.command_window

    # -- client: control calls and queue traffic ------------------------------------------------------------------------------

    def request(self, body: Call) -> int:
        """Client: send a call; `Responded` with the id returned here brings the answer. Raises BusyError with too many open."""
        self._expect(Role.CLIENT)
        if len(self._requests) >= MAX_REQUESTS:
            raise BusyError(f"{MAX_REQUESTS} requests are open; wait for one of them")
        request_id = self._counter % 0xFFFFFFFF + 1
        self._write(encode_control(Request(request_id, body)))
        self._counter += 1
        self._requests[request_id] = method_of(body)
        return request_id

    def provisional(self, kind: ResourceType) -> int:
        """Client: an id for a resource that the server is about to make; usable at once."""
        self._counter += 1
        return make_provisional(kind, self._counter)

    def command(self, axis: int, op: int, waits: Frontier, body: bytes) -> int:
        """Client: submit a command and return its epoch. Raises BusyError when the window is full; then nothing was consumed."""
        if self.state is not State.OPERATIONAL:
            self.check()
        if len(waits) > MAX_FRONTIER:
            raise UsageError(f"a command may wait for {MAX_FRONTIER} axes, this one has {len(waits)}")
        epoch = self.submission.take(axis)
        self._queue_out += frames.encode_command(op, axis, epoch, waits, body)
        return epoch

    def allocate(self, device: int, size: int) -> int:
        """Client: have a buffer made; returns its provisional id."""
        self._expect(Role.CLIENT)
        resource = self.provisional(ResourceType.BUFFER)
        self._queue_out += frames.encode_allocate(device, resource, size)
        self._unnamed.add(resource)
        return resource

    def event(self, action: int, event: int, *, device: int = 0, number: int = 0) -> None:
        """Client: do something with an event on the server (wire.queue); `EventTold` answers a query or wait."""
        self._expect(Role.CLIENT)
        self._queue_out += frames.encode_event(action, device, event, number)

    def release(self, ids: list[int]) -> None:
        """Client: give resources back, after everything submitted so far."""
        self._expect(Role.CLIENT)
        for start in range(0, len(ids), frames.MAX_RELEASE):
            self._queue_out += frames.encode_release(self.submission.submissions, ids[start : start + frames.MAX_RELEASE])

    @property
    def open_requests(self) -> int:
        """Calls that are not answered yet."""
        return len(self._requests)

    # -- server: answers ------------------------------------------------------------------------------------------------------

    def respond(self, request_id: int, body: Loaded | Error) -> None:
        """Server: answer a call. Raises UsageError when no such call is open."""
        self._expect(Role.SERVER)
        if request_id not in self._requests:
            raise UsageError(f"the request {request_id} is not open: it was answered, or never came")
        self._write(encode_control(Response(request_id, self._requests[request_id], body)))
        del self._requests[request_id]

    def advance(self, axis: int, names: list[tuple[int, int]] | None = None) -> None:
        """Server: report an axis's progress, resolutions, and its failure if it has ended. Writes nothing when there is no news.

        Each ALLOCATE is to be resolved once, here or by `unname`.
        """
        if self.state is not State.OPERATIONAL:
            self.check()
        window = self.completion[axis]
        before = window.reported
        epoch = window.report()
        if epoch:
            self._reported += epoch - before
        if epoch or names:
            while names and len(names) > frames.MAX_NAMES:
                self._queue_out += frames.encode_advance(axis, min(before, window.done), names[: frames.MAX_NAMES])
                names = names[frames.MAX_NAMES :]
            self._queue_out += frames.encode_advance(axis, window.done, names)
        if window.failed is not None and window.reported <= window.done:
            failed, error = window.failed
            window.reported = failed
            self._queue_out += frames.encode_advance(axis, failed, None, error)

    def result(self, axis: int, epoch: int, data: bytearray) -> None:
        """Server: what a READ read; must come before the ADVANCE of its epoch."""
        if self.state is not State.OPERATIONAL:
            self.check()
        self._queue_out += frames.encode_result(axis, epoch, data)

    def event_state(self, action: int, event: int, number: int, state: bool | Error) -> None:
        """Server: answer a query or wait of an event."""
        self._expect(Role.SERVER)
        self._queue_out += frames.encode_state(action, event, number, state)

    def unname(self, provisional: int, error: Error) -> None:
        """Server: a resource could not be made."""
        if self.state is not State.OPERATIONAL:
            self.check()
        self._queue_out += frames.encode_unnamed(provisional, error)

    # -- input ----------------------------------------------------------------------------------------------------------------

    def receive(self, lane: Lane, view: memoryview) -> list[Event]:
        """Feed what arrived on the control or queue lane. A malformed frame fails the session: then the list ends with Failed."""
        events: list[Event] = []
        if self.failure is not None:
            return events
        self.heartbeat.heard = True
        splitter = self._splitters[lane]
        try:
            data, end = splitter.feed(view)
            if lane is Lane.QUEUE:
                self._on_queue_frames(data, end, events)
            else:
                self._on_control_frames(data, end, events)
            if splitter.broken:
                splitter.feed(_NOTHING)
        except _PeerEndedError as ended:
            events += self._end(Stimulus.FAIL, ended.cause)
        except UsageError as error:
            events += self.fail(PeerError(error.message))
        except Error as error:
            events += self.fail(error)
        return events

    def _on_control_frames(self, data: memoryview, end: int, events: list[Event]) -> None:
        pos = 0
        while pos < end:
            size, kind, _, _ = HEADER.unpack_from(data, pos)
            frame = data[pos : pos + size]
            if self.state in (State.IDLE, State.GREETING):
                message = decode_bootstrap(frame)
                if isinstance(message, Join | Joined):
                    raise PeerError(f"{type(message).__name__} on the control lane: it opens a lane of its own")
                check_frame(self.role, self.state, kind)
                self._on_bootstrap(message, events)
            else:
                check_frame(self.role, self.state, kind)
                self._on_control(decode_control(frame), events)
            pos += size

    def _on_bootstrap(self, message: Hello | Accept | Reject, events: list[Event]) -> None:
        match message:
            case Hello():
                self._move(Stimulus.HELLO)
                self.hello = message
                events.append(Greeted(message))
            case Accept():
                self._check_capabilities(message.capabilities)
                self._move(Stimulus.ACCEPT)
                self._set_accepted(message)
                events.append(Accepted(message))
            case _:
                raise _PeerEndedError(message.error)

    def _check_capabilities(self, capabilities: int) -> None:
        hello = self.hello
        if hello is not None and (hello.required & ~capabilities or capabilities & ~hello.capabilities):
            raise PeerError(
                f"accepted with the capabilities {capabilities:#x}; asked for {hello.required:#x} of {hello.capabilities:#x}"
            )

    def _on_control(self, message: Control, events: list[Event]) -> None:
        match message:
            case Ping():
                if len(self._out[Lane.CONTROL]) > MAX_UNREAD:
                    raise PeerError("the peer goes on asking and does not read the answers")
                self._write(encode_control(Pong(message.nonce)))
            case Pong():
                self.heartbeat.answer(message.nonce)
            case Goaway():
                text = f"{self.peer} ended the session: {message.error.message}"
                raise _PeerEndedError(BrokenError(text, code=message.error.code))
            case Failure():
                cause = message.error
                cause.origin = f"{self.peer}, {cause.origin}" if cause.origin else self.peer
                raise _PeerEndedError(cause)
            case Request():
                if message.id in self._requests or len(self._requests) >= MAX_REQUESTS:
                    raise PeerError(f"the request {message.id} is open already, or {MAX_REQUESTS} others are")
                self._requests[message.id] = method_of(message.body)
                events.append(RequestReceived(message.id, message.body))
            case _:
                if self._requests.get(message.id) != message.method:
                    raise PeerError(f"a response {message.method:#x} to the request {message.id}, which is not open")
                del self._requests[message.id]
                events.append(Responded(message.id, message.body))

    def _on_queue_frames(self, data: memoryview, end: int, events: list[Event]) -> None:
        if end and self.state is not State.OPERATIONAL:
            raise PeerError(f"a queue frame while the session is {self.state.value}")
        handlers = self._handlers
        pos = 0
        while pos < end:
            size, kind, _, _ = HEADER.unpack_from(data, pos)
            handler = handlers.get(kind)
            if handler is None:
                raise PeerError(f"a queue frame {kind:#x}, unknown or from the wrong side")
            handler(self, data, pos, size, events)
            pos += size

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
        if self.received - self._reported > self._limit:
            self._check_window()
        events.append(CommandReceived(op, axis, epoch, waits, decoder(view, body, pos + size)))

    def _check_waits(self, waits: Frontier, axis: int, epoch: int) -> None:
        """A wait names an epoch that was received before: on this lane it cannot be otherwise."""
        for other, until in waits:
            window = self.completion.get(other)
            if window is None or until > window.received:
                raise PeerError(f"a COMMAND waits for epoch {until} on axis {other:#x}, which was not submitted before it")

    def _check_window(self) -> None:
        """Count again: what was received on an axis after its failure was reported needs no answer and is not in flight."""
        in_flight = sum(window.in_flight for window in self.completion.values())
        self._reported = self.received - in_flight
        if in_flight > self._limit:
            raise PeerError(f"{in_flight} commands are in flight; the window is {self._limit}")

    def _on_allocate(self, view: memoryview, pos: int, size: int, events: list[Event]) -> None:
        events.append(AllocateReceived(*frames.decode_allocate(view, pos, size)))

    def _on_release(self, view: memoryview, pos: int, size: int, events: list[Event]) -> None:
        submissions, ids = frames.decode_release(view, pos, size)
        if submissions > self.received:
            raise PeerError(f"a RELEASE after {submissions} commands; {self.received} have come")
        events.append(ReleaseReceived(submissions, ids))

    def _on_advance(self, view: memoryview, pos: int, size: int, events: list[Event]) -> None:
        axis, epoch, names, failure = frames.decode_advance(view, pos, size)
        if names:
            self._name(axis, names, events)
        if epoch and self.submission.advance(axis, epoch, failure):
            events.append(Advanced(axis, epoch, failure))

    def _name(self, axis: int, names: tuple[tuple[int, int], ...], events: list[Event]) -> None:
        self.submission.tracker.reached(axis)  # a known axis, even at epoch 0
        for provisional, canonical in names:
            self._resolve(provisional)
            events.append(Named(provisional, canonical))

    def _resolve(self, provisional: int) -> None:
        if provisional not in self._unnamed:
            raise PeerError(f"{provisional:#x} was resolved before, or never asked for")
        self._unnamed.remove(provisional)

    def _on_result(self, view: memoryview, pos: int, size: int, events: list[Event]) -> None:
        axis, epoch, data = frames.decode_result(view, pos, size)
        self.submission.check_open(axis, epoch)
        events.append(ResultReceived(axis, epoch, data))

    def _on_unnamed(self, view: memoryview, pos: int, size: int, events: list[Event]) -> None:
        provisional, error = frames.decode_unnamed(view, pos, size)
        self._resolve(provisional)
        events.append(Unnamed(provisional, error))

    def _on_event(self, view: memoryview, pos: int, size: int, events: list[Event]) -> None:
        events.append(EventAsked(*frames.decode_event(view, pos, size)))

    def _on_state(self, view: memoryview, pos: int, size: int, events: list[Event]) -> None:
        events.append(EventTold(*frames.decode_state(view, pos, size)))

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
        self._move(stimulus)
        self.failure = cause
        return [Failed(cause)]

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


#: Which queue frames a role receives, and what takes them.
_QUEUE_FRAMES: dict[Role, dict[int, Callable[[Session, memoryview, int, int, list[Event]], None]]] = {
    Role.SERVER: {
        frames.COMMAND: Session._on_command,
        frames.ALLOCATE: Session._on_allocate,
        frames.RELEASE: Session._on_release,
        frames.EVENT: Session._on_event,
    },
    Role.CLIENT: {
        frames.ADVANCE: Session._on_advance,
        frames.RESULT: Session._on_result,
        frames.UNNAMED: Session._on_unnamed,
        frames.STATE: Session._on_state,
    },
}
