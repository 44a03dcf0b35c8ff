"""The session machine. Both roles are this class; `Role` only decides what it may send and what it expects.

The contract, in the order a shell uses it:

    client: greet() ... receive(CONTROL) -> Accepted ... lane_joined() twice -> LanesUp
    server: receive(CONTROL) -> Greeted, accept() or reject(), lane_joined() twice -> LanesUp
    both:   receive(lane, bytes) -> events; take(lane) -> bytes to send; tick(now) at next_tick(); fail(error) or close()

After every call that may have written, the shell must send what `take` gives. Not thread-safe: the shell holds a lock.
Whatever goes wrong, the first cause stays in `failure`, `Failed` comes once, and every later call raises that cause (H05).

It is one object in four layers, each of which knows only those below it:

    session.py      calls on the control lane, and which frame goes where
    queue_lane.py   commands, resources and their answers: epochs and the window
    bootstrap.py    HELLO to the last lane
    life.py         state, what is still to be sent, the clock, the end
"""

from __future__ import annotations

from typing import Any, Final

from remora.errors import BrokenError, BusyError, Error, PeerError, UsageError
from remora.session.events import Event, Profiled, RequestReceived, Responded
from remora.session.keepalive import HeartbeatOptions
from remora.session.life import PeerEndedError
from remora.session.queue_lane import QueueLane
from remora.session.state import Lane, Role, State, Stimulus, check_frame
from remora.wire.bootstrap import Join, Joined, decode_bootstrap
from remora.wire.calls import method_of
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
from remora.wire.profile import Records, Taken

__all__ = ["Session"]

#: Unsent control bytes above which a peer that goes on asking, and does not read the answers, is given up.
MAX_UNREAD: Final = 1 << 20
_NOTHING: Final = memoryview(b"")


class Session(QueueLane):
    """One session, as one side sees it. `peer` names the other side in messages (its URI)."""

    def __init__(self, role: Role, peer: str, now: float, heartbeat: HeartbeatOptions = HeartbeatOptions()) -> None:  # noqa: B008
        super().__init__(role, peer, now, heartbeat)
        self._requests: dict[int, int] = {}  # open calls: id to method
        self._splitters = {
            Lane.CONTROL: FrameSplitter("control", MAX_CONTROL_FRAME),
            Lane.QUEUE: FrameSplitter("queue", MAX_QUEUE_FRAME),
        }

    # -- calls ----------------------------------------------------------------------------------------------------------------

    def request(self, body: Any) -> int:
        """Client: send a call; `Responded` with the id returned here brings the answer. Raises BusyError with too many open."""
        self._expect(Role.CLIENT)
        if len(self._requests) >= MAX_REQUESTS:
            raise BusyError(f"{MAX_REQUESTS} requests are open; wait for one of them")
        request_id = self._counter % 0xFFFFFFFF + 1
        self._write(encode_control(Request(request_id, body)))
        self._counter += 1
        self._requests[request_id] = method_of(body)
        return request_id

    @property
    def open_requests(self) -> int:
        """Calls that are not answered yet."""
        return len(self._requests)

    def respond(self, request_id: int, body: Any) -> None:
        """Server: answer a call with its method's answer or an Error. Raises UsageError when no such call is open."""
        self._expect(Role.SERVER)
        if request_id not in self._requests:
            raise UsageError(f"the request {request_id} is not open: it was answered, or never came")
        self._write(encode_control(Response(request_id, self._requests[request_id], body)))
        del self._requests[request_id]

    def profile(self, frame: bytes) -> None:
        """Send an encoded RECORDS (server) or TAKEN (client): encoding many records is nothing to do under the shell's lock."""
        self.check()
        self._write(frame)

    # -- input ----------------------------------------------------------------------------------------------------------------

    def receive(self, lane: Lane, view: memoryview) -> list[Event]:
        """Feed what arrived on the control or queue lane. A malformed frame fails the session: then the list ends with Failed.

        Lanes are connections of their own. A client that was dismissed goes on to hear on the queue lane what was sent before.
        """
        events: list[Event] = []
        if self.failure is not None and not (self.owed_answers and lane is Lane.QUEUE):
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
        except PeerEndedError as ended:
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

    def _on_control(self, message: Control, events: list[Event]) -> None:
        match message:
            case Ping():
                if len(self._out[Lane.CONTROL]) > MAX_UNREAD:
                    raise PeerError("the peer goes on asking and does not read the answers")
                self._write(encode_control(Pong(message.nonce)))
            case Pong():
                self.heartbeat.answer(message.nonce)
            case Goaway():
                self.dismissed = True
                text = f"{self.peer} ended the session: {message.error.message}"
                raise PeerEndedError(BrokenError(text, code=message.error.code))
            case Failure():
                cause = message.error
                cause.origin = f"{self.peer}, {cause.origin}" if cause.origin else self.peer
                raise PeerEndedError(cause)
            case Request():
                if message.id in self._requests or len(self._requests) >= MAX_REQUESTS:
                    raise PeerError(f"the request {message.id} is open already, or {MAX_REQUESTS} others are")
                self._requests[message.id] = method_of(message.body)
                events.append(RequestReceived(message.id, message.body))
            case Records() | Taken():
                events.append(Profiled(message))
            case _:
                if self._requests.get(message.id) != message.method:
                    raise PeerError(f"a response {message.method:#x} to the request {message.id}, which is not open")
                del self._requests[message.id]
                events.append(Responded(message.id, message.body))
