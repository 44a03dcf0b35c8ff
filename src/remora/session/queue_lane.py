"""The queue lane: commands, allocations and releases one way, their answers the other; epochs and the window (H12, H14, H15)."""

from __future__ import annotations

from collections.abc import Callable

from remora.base.frontier import MAX_FRONTIER, Frontier
from remora.base.ids import ResourceType, make_provisional
from remora.errors import Error, PeerError, UsageError
from remora.session.bootstrap import Bootstrap
from remora.session.events import (
    Advanced,
    AllocateReceived,
    CommandReceived,
    Event,
    EventAsked,
    EventTold,
    Named,
    ReleaseReceived,
    ResultReceived,
    Unnamed,
)
from remora.session.keepalive import HeartbeatOptions
from remora.session.state import Role, State
from remora.wire import queue as frames
from remora.wire.commands import DECODERS
from remora.wire.layout import HEADER

__all__ = ["QueueLane"]


class QueueLane(Bootstrap):
    """What an operational session says and hears on its queue lane."""

    def __init__(self, role: Role, peer: str, now: float, heartbeat: HeartbeatOptions) -> None:
        super().__init__(role, peer, now, heartbeat)
        self.received = 0
        """Commands received so far (server)."""
        self._counter = 0
        self._unnamed: set[int] = set()
        self._reported = 0
        self._handlers = _QUEUE_FRAMES[role]

    # -- client ---------------------------------------------------------------------------------------------------------------

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

    def allocate(self, device: int, size: int, *, late: bool = False) -> int:
        """Client: have a buffer made, with its memory or without; returns its provisional id."""
        self._expect(Role.CLIENT)
        resource = self.provisional(ResourceType.BUFFER)
        self._queue_out += frames.encode_allocate(device, resource, size, late)
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

    # -- server: answers ------------------------------------------------------------------------------------------------------

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

    @property
    def owed_answers(self) -> int:
        """Client: commands whose answers may still be on the queue lane after a GOAWAY, which overtook them, ended the session."""
        return self.submission.in_flight if self.dismissed else 0

    def _on_queue_frames(self, data: memoryview, end: int, events: list[Event]) -> None:
        if end and self.state is not State.OPERATIONAL and not self.owed_answers:
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


#: Which queue frames a role receives, and what takes them.
_QUEUE_FRAMES: dict[Role, dict[int, Callable[[QueueLane, memoryview, int, int, list[Event]], None]]] = {
    Role.SERVER: {
        frames.COMMAND: QueueLane._on_command,
        frames.ALLOCATE: QueueLane._on_allocate,
        frames.RELEASE: QueueLane._on_release,
        frames.EVENT: QueueLane._on_event,
    },
    Role.CLIENT: {
        frames.ADVANCE: QueueLane._on_advance,
        frames.RESULT: QueueLane._on_result,
        frames.UNNAMED: QueueLane._on_unnamed,
        frames.STATE: QueueLane._on_state,
    },
}
