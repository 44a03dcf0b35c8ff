"""One connection: the link, the devices behind it, and what is on its way back."""

from __future__ import annotations

import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

from remora.base.ids import ResourceType, split_axis
from remora.base.snapshot import LinkStatistics
from remora.base.uri import Uri
from remora.drivers.remote.buffer import RemoteBuffer
from remora.drivers.remote.device import RemoteDevice
from remora.drivers.remote.event import RemoteEvent
from remora.drivers.remote.queue import RemoteQueue
from remora.drivers.remote.semaphore import RemoteSemaphore
from remora.errors import DeadlineError, Error, PeerError, UsageError
from remora.hal.device import Device, DeviceInfo, Heap
from remora.hal.target import Target
from remora.link.connect import CONNECT_TIMEOUT, connect_session
from remora.link.link import Link
from remora.link.pump import QueuePump
from remora.session.events import Advanced, Event, EventTold, Named, Responded, ResultReceived, Unnamed
from remora.session.keepalive import HeartbeatOptions
from remora.session.state import Lane
from remora.wire.bootstrap import Hello
from remora.wire.calls import MAX_INLINE_ARTIFACT, MAX_INLINE_STREAM, Call, CommandBufferUpload, ExecutableLoad
from remora.wire.catalog import DeviceEntry
from remora.wire.control import MAX_REQUESTS
from remora.wire.queue import EVENT_CREATE

__all__ = ["RemoteHost", "open_devices"]

#: Bytes in the outbox above which submissions wait.
MAX_OUTBOX = 4 << 20
#: Seconds that loading an executable may take.
LOAD_TIMEOUT = 120.0


class _Call:
    """A request that is not answered yet. `answered` hears of the answer, or of the failure that there is instead."""

    __slots__ = ("answer", "answered", "done")

    def __init__(self, answered: Callable[[Any], None] | None = None) -> None:
        self.done = threading.Event()
        self.answer: Any = None
        self.answered = answered

    def finish(self, answer: Any) -> None:
        self.answer = answer
        self.done.set()
        if self.answered is not None:
            self.answered(answer)


class RemoteHost:
    """The client's end of a session. Made by `open_devices`; ends with the last of its devices."""

    def __init__(self, uri: Uri, timeout: float, heartbeat: HeartbeatOptions) -> None:
        hello = Hello(client=f"{socket.gethostname()} pid {os.getpid()}")
        session, carriers = connect_session(uri.carrier, hello, timeout, heartbeat)
        accepted = session.accepted
        assert accepted is not None
        self.uri = uri
        self.link = Link(session, carriers, self)
        self.pump = QueuePump(self.link)
        self.names: dict[int, RemoteBuffer] = {}
        self._results: dict[tuple[int, int], memoryview] = {}
        self._calls: dict[int, _Call] = {}
        self.events: WeakValueDictionary[int, RemoteEvent] = WeakValueDictionary()
        self.stalled: set[RemoteQueue] = set()
        """Queues whose held operations could go if the window and the outbox had room; any progress may make some."""
        self._garbage: deque[int] = deque()
        self._transfers = 1
        axes = [axis for axis, _ in accepted.axes]
        self.devices = tuple(
            RemoteDevice(self, ordinal, _info(entry), [axis for axis in axes if split_axis(axis)[3] == ordinal])
            for ordinal, entry in enumerate(accepted.devices)
        )
        self._queues: dict[int, RemoteQueue] = {queue.axis: queue for device in self.devices for queue in device.queues}
        self.link.chore(self._collect)
        self.link.start()

    # -- for queues and devices -----------------------------------------------------------------------------------------------

    def owns(self, semaphore: RemoteSemaphore) -> bool:
        """Whether the semaphore is one of this connection's."""
        return semaphore._pump is self.pump

    def crowded(self) -> bool:
        """Whether the outbox holds so much that submissions should wait."""
        return self.link.session.pending(Lane.QUEUE) > MAX_OUTBOX

    def wait_for_room(self) -> None:
        """Read answers until the window or the outbox may have room again. Raises the failure of the link."""
        self.pump.wait_for_room(None)
        self.link.session.check()

    def next_transfer(self) -> int:
        """An id for a bulk transfer: odd ones are the client's."""
        with self.link.lock:
            self._transfers += 2
            return self._transfers - 2

    def send(self, transfer_id: int, data: memoryview) -> None:
        """Begin an upload."""
        self.link.bulk.send(transfer_id, data, _ignore)

    def expect_result(self, axis: int, epoch: int, into: memoryview) -> None:
        """Say where the data of a READ goes. The link's lock is held."""
        self._results[axis, epoch] = into

    def expect_transfer(self, queue: RemoteQueue, epoch: int, transfer_id: int, into: memoryview) -> None:
        """Say where a download goes. The link's lock is held."""
        queue.expect_transfer(epoch)
        self.link.bulk.expect(transfer_id, into, lambda error: queue.transfer_done(epoch, error))

    def allocate(self, device: RemoteDevice, size: int) -> RemoteBuffer:
        """A buffer under a provisional id: no round trip (H16)."""
        self.flush_garbage()
        with self.link.lock:
            resource = self.link.session.allocate(device.ordinal, size)
            buffer = RemoteBuffer(device, size, resource)
            self.names[resource] = buffer
        self.pump.written(False)
        return buffer

    def create_event(self, device: RemoteDevice) -> RemoteEvent:
        """An event, usable at once: no round trip."""
        answers, waits = device.semaphore(), device.semaphore()
        with self.link.lock:
            resource = self.link.session.provisional(ResourceType.EVENT)
            self.link.session.event(EVENT_CREATE, resource, device=device.ordinal)
        self.events[resource] = event = RemoteEvent(device, resource, answers, waits)
        self.pump.written(False)
        return event

    def event(self, action: int, resource: int, number: int) -> None:
        """Do something with an event, after what was submitted so far and before what will be."""
        with self.link.lock:
            self.link.session.event(action, resource, number=number)
        self.pump.flush()

    def forget(self, resource: int) -> None:
        """A resource is not used any more. Takes no lock: a destructor may call it anywhere."""
        self._garbage.append(resource)

    def flush_garbage(self) -> None:
        """Release what was forgotten, unless an operation that is held here may still name it (H15)."""
        if not self._garbage or any(queue.holding for queue in self._queues.values()):
            return
        with self.link.lock:
            ids = [self._garbage.popleft() for _ in range(len(self._garbage))]
            if not ids or self.link.session.failure is not None:
                return
            self.link.session.release(ids)
        self.pump.written(False)

    def load(self, device: int, target: Target, manifest: bytes, artifact: memoryview) -> int:
        """Load an executable and return its id; one round trip. Raises what the server found wrong with it."""
        size, place = artifact.nbytes, (target.family, target.key)
        inline, transfer_id = self._split(artifact, MAX_INLINE_ARTIFACT)
        call = _Call()
        self._request(
            call,
            ResourceType.EXECUTABLE,
            lambda resource: ExecutableLoad(resource, device, place, manifest, size, inline, transfer_id),
        )
        if transfer_id:
            self.send(transfer_id, artifact)
        self.link.round_trips += 1
        if not call.done.wait(LOAD_TIMEOUT):
            raise DeadlineError(f"{self.uri} did not load the executable within {LOAD_TIMEOUT:g} s")
        if isinstance(call.answer, Error):
            raise call.answer.copy()
        return int(call.answer.resource)

    def upload(self, device: int, slots: int, stream: bytes, answered: Callable[[Any], None]) -> int:
        """Give the server a recording and return its id, which is usable at once; `answered` hears what it says (H18)."""
        inline, transfer_id = self._split(memoryview(stream), MAX_INLINE_STREAM)
        resource = self._request(
            _Call(answered),
            ResourceType.COMMAND_BUFFER,
            lambda resource: CommandBufferUpload(resource, device, slots, len(stream), inline, transfer_id),
        )
        if transfer_id:
            self.send(transfer_id, memoryview(stream))
        return resource

    def _split(self, data: memoryview, most: int) -> tuple[bytes, int]:
        """(data, 0) for what fits into a request, or nothing and the id of the transfer that brings it."""
        return (bytes(data), 0) if data.nbytes <= most else (b"", self.next_transfer())

    def _request(self, call: _Call, kind: ResourceType, body: Callable[[int], Call]) -> int:
        """Ask the server to make something, under the provisional id returned here. Waits while too many requests are open."""
        while (resource := self._try_request(call, kind, body)) is None:
            oldest = next(iter(self._calls.values()), call)
            if oldest is not call and not oldest.done.wait(LOAD_TIMEOUT):
                raise DeadlineError(f"{self.uri} has not answered any of {MAX_REQUESTS} requests within {LOAD_TIMEOUT:g} s")
        self.link.flush(Lane.CONTROL)
        return resource

    def _try_request(self, call: _Call, kind: ResourceType, body: Callable[[int], Call]) -> int | None:
        """The provisional id under which it was asked for, or None while too many requests are open."""
        with self.link.lock:
            if len(self._calls) >= MAX_REQUESTS:
                return None
            session = self.link.session
            resource = session.provisional(kind)
            self._calls[session.request(body(resource))] = call
        return resource

    def statistics(self) -> LinkStatistics:
        """Counts of this connection."""
        counts = [carrier.statistics() for carrier in self.link.carriers.values()]
        return LinkStatistics(
            round_trips=self.link.round_trips,
            bytes_sent=sum(count.bytes_sent for count in counts),
            bytes_received=sum(count.bytes_received for count in counts),
            commands=self.link.session.submission.submissions,
            sends=sum(count.sends for count in counts),
        )

    def device_closed(self) -> bool:
        """One of the devices was closed; the last one ends the connection, and then this says True."""
        last = all(device.closed for device in self.devices)
        if last:
            self.link.close("the client closed its device")
        return last

    def _collect(self, now: float) -> float:
        self.flush_garbage()
        return now + 1.0

    # -- events of the session ------------------------------------------------------------------------------------------------

    def on_event(self, event: Event) -> None:
        """See `link.Handler`."""
        if type(event) is Advanced:
            axis, epoch, failure = event
            queue = self._queues[axis]
            if failure is not None:
                queue.fail(failure)
                return
            queue.advanced(epoch)
            if self.stalled:
                for stalled in tuple(self.stalled):
                    stalled.drain()
            return
        match event:
            case Named(provisional, canonical):
                buffer = self.names.pop(provisional, None)
                if buffer is not None:
                    buffer.resource = canonical
            case Unnamed(provisional, error):
                buffer = self.names.pop(provisional, None)
                if buffer is not None:
                    buffer.fail(error)
            case EventTold(action, resource, number, state):
                told = self.events.get(resource)
                if told is not None:
                    told.told(action, number, state)
            case ResultReceived(axis, epoch, data):
                self._on_result(axis, epoch, data)
            case Responded(request, body):
                self._calls.pop(request).finish(body)

    def _on_result(self, axis: int, epoch: int, data: memoryview) -> None:
        into = self._results.pop((axis, epoch), None)
        if into is None or len(data) != len(into):
            self.link.fail(PeerError(f"a RESULT of {len(data)} bytes for epoch {epoch}, which read something else"))
            return
        into[:] = data

    def on_failed(self, error: Error) -> None:
        """See `link.Handler`."""
        for queue in self._queues.values():
            queue.fail(error)
        for device in self.devices:
            device._fail_semaphores(error)
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.finish(error)
        self._results.clear()


def _ignore(_: Error | None) -> None:
    """An upload's end: the ADVANCE of its command tells the same."""


def _info(entry: DeviceEntry) -> DeviceInfo:
    heaps = tuple(Heap(heap.name, heap.size, heap.max_allocation, heap.alignment) for heap in entry.heaps)
    return DeviceInfo(entry.name, entry.driver, tuple(Target(*target) for target in entry.targets), heaps, entry.queue_count)


def _number(query: dict[str, str], key: str, default: float) -> float:
    text = query.pop(key, None)
    try:
        return default if text is None else float(text)
    except ValueError:
        raise UsageError(f"{key}={text}: give a number of seconds") from None


def open_devices(uri: Uri) -> Sequence[Device]:
    """Connect. The query may hold `timeout`, `keepalive` (interval) and `deadline`, all in seconds."""
    query = dict(uri.query)
    default = HeartbeatOptions()
    timeout = _number(query, "timeout", CONNECT_TIMEOUT)
    heartbeat = HeartbeatOptions(_number(query, "keepalive", default.interval), _number(query, "deadline", default.deadline))
    if query:
        raise UsageError(f"{uri}: unknown key {', '.join(query)}; known: device, timeout, keepalive, deadline")
    return RemoteHost(uri, timeout, heartbeat).devices
