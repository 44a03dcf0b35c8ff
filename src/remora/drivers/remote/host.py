"""One connection: the link, the devices behind it, and what is on its way back."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

from remora.base.frontier import Frontier
from remora.base.ids import ResourceType, split_axis
from remora.base.snapshot import LinkStatistics
from remora.base.uri import Uri
from remora.drivers.remote.bridge import FileBridge
from remora.drivers.remote.buffer import RemoteBuffer
from remora.drivers.remote.calls import Call, Calls
from remora.drivers.remote.device import RemoteDevice
from remora.drivers.remote.event import RemoteEvent
from remora.drivers.remote.profile import Profiles
from remora.drivers.remote.queue import RemoteQueue
from remora.drivers.remote.segments import Segments
from remora.drivers.remote.semaphore import RemoteSemaphore
from remora.errors import ClosedError, Error, PeerError, UsageError
from remora.hal.device import Device, DeviceInfo, Heap
from remora.hal.extension import Extension
from remora.hal.target import Target
from remora.link.borrowing import Borrower
from remora.link.connect import CONNECT_TIMEOUT, connect_session
from remora.link.link import Link
from remora.link.pump import QueuePump
from remora.session.events import Advanced, Event, EventTold, Named, Profiled, Responded, ResultReceived, Unnamed
from remora.session.keepalive import HeartbeatOptions
from remora.session.session import Session
from remora.session.state import Lane
from remora.wire.bootstrap import CAPABILITY_BULK, CAPABILITY_SHARED, MAX_BULK, Hello
from remora.wire.bulk import MIN_LENT
from remora.wire.catalog import DeviceEntry
from remora.wire.command_buffer_calls import MAX_INLINE_STREAM, CommandBufferUpload
from remora.wire.profile import Records
from remora.wire.queue import EVENT_CREATE

__all__ = ["RemoteHost", "open_devices"]

#: Bytes in the outbox above which submissions wait.
MAX_OUTBOX = 4 << 20


class RemoteHost:
    """The client's end of a session. Made by `open_devices`; ends with the last of its devices."""

    def __init__(self, uri: Uri) -> None:
        self.uri = uri
        self._made = False

    def connect(self, address: Uri, timeout: float, heartbeat: HeartbeatOptions, bulk: int, shared: bool) -> Sequence[Device]:
        """Open the connection: its devices. Whatever ends this, an interruption too, nothing is left of it. See `open_devices`."""
        capabilities = CAPABILITY_BULK | (CAPABILITY_SHARED if shared else 0)
        hello = Hello(capabilities, client=f"{socket.gethostname()} pid {os.getpid()}", bulk=bulk)
        session, carriers = connect_session(address, hello, timeout, heartbeat)
        try:
            self.link = Link(session, carriers, self)
        except BaseException:
            for carrier in carriers.values():
                carrier.close()
            raise
        try:
            self._begin(session)
        except BaseException as error:
            self.link.fail(error if isinstance(error, Error) else ClosedError(f"{type(error).__name__} came while connecting"))
            self.link.join()
            raise
        return self.devices

    def _begin(self, session: Session) -> None:
        """Publish what the server has and run the link. Raises BusyError when the system gives no thread for it."""
        accepted = session.accepted
        assert accepted is not None
        self.pump = QueuePump(self.link)
        self.names: dict[int, RemoteBuffer] = {}
        self._results: dict[tuple[int, int], memoryview] = {}
        self.calls = Calls(self.link, self.uri)
        self.segments = self._share(shared=bool(accepted.capabilities & CAPABILITY_SHARED))
        self.bridge = FileBridge(self.link)
        self.profiles = Profiles(self.link, self.calls)
        self.events: WeakValueDictionary[int, RemoteEvent] = WeakValueDictionary()
        self.stalled: set[RemoteQueue] = set()
        """Queues whose held operations could go if the window and the outbox had room; any progress may make some."""
        self.behind: set[RemoteQueue] = set()
        """Queues whose operations are done on the server, and wait here for what they followed on other queues."""
        self._garbage: deque[int] = deque()
        self._transfers = 1
        axes = [axis for axis, _ in accepted.axes]
        self.devices = tuple(
            RemoteDevice(self, ordinal, _info(entry), [axis for axis in axes if split_axis(axis)[3] == ordinal])
            for ordinal, entry in enumerate(accepted.devices)
        )
        self._queues: dict[int, RemoteQueue] = {queue.axis: queue for device in self.devices for queue in device.queues}
        self.link.chore(self._collect)
        self._made = True
        self.link.start()

    def _share(self, *, shared: bool) -> Segments | None:
        """Map memory of the server, if both sides can."""
        if not shared:
            return None
        segments = Segments(self.link, self.calls)
        self.link.bulk.borrow_by(Borrower(segments.get, self.link.commands_moved), segments.forget)
        return segments

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

    def next_transfer(self, count: int = 1) -> int:
        """An id for a bulk transfer, or the first of `count` that follow one another: odd ones are the client's.

        Raises BusyError while the bulk lane's threads cannot start.
        """
        with self.link.step:
            self.link.bulk.start()
            with self.link.lock:
                self._transfers += 2 * count
                return self._transfers - 2 * count

    def send(self, transfer_id: int, data: memoryview) -> None:
        """Begin to send what a request or a recording needs. Part of a step: it may be called with the link's lock held."""
        self.link.bulk.send(transfer_id, data, _ignore)

    def upload_data(self, transfer_id: int, data: memoryview) -> None:
        """Begin an UPLOAD."""
        lent = self.segments is not None and data.nbytes >= MIN_LENT
        self.link.bulk.send(transfer_id, data, _ignore, lent=lent)

    def expect_result(self, axis: int, epoch: int, into: memoryview) -> None:
        """Say where the data of a READ goes. The link's lock is held."""
        self._results[axis, epoch] = into

    def expect_transfer(self, queue: RemoteQueue, epoch: int, transfer_id: int, into: memoryview) -> None:
        """Say where a download goes. The link's lock is held."""
        queue.expect_transfer(epoch)
        self.link.bulk.expect(transfer_id, into, lambda error: queue.transfer_done(epoch, error))

    def allocate(self, device: RemoteDevice, size: int, *, late: bool = False) -> RemoteBuffer:
        """A buffer under a provisional id, with its memory or without: no round trip (H16)."""
        with self.link.step:
            self.flush_garbage()
            with self.link.lock:
                resource = self.link.session.allocate(device.ordinal, size, late=late)
                buffer = RemoteBuffer(device, size, resource)
                self.names[resource] = buffer
            self.pump.written(False)
            return buffer

    def create_event(self, device: RemoteDevice) -> RemoteEvent:
        """An event, usable at once: no round trip."""
        answers, waits = device.semaphore(), device.semaphore()
        with self.link.step:
            with self.link.lock:
                resource = self.link.session.provisional(ResourceType.EVENT)
                self.link.session.event(EVENT_CREATE, resource, device=device.ordinal)
            self.events[resource] = event = RemoteEvent(device, resource, answers, waits)
            self.pump.written(False)
            return event

    def event(self, action: int, resource: int, number: int) -> None:
        """Do something with an event, after what was submitted so far and before what will be."""
        with self.link.step:
            with self.link.lock:
                self.link.session.event(action, resource, number=number)
            self.pump.flush()

    def forget(self, resource: int) -> None:
        """A resource is not used any more. Takes no lock: a destructor may call it anywhere."""
        self._garbage.append(resource)

    def holds_beside(self, queue: RemoteQueue) -> bool:
        """Whether operations are held here on another queue than this one."""
        return any(other.holding for other in self._queues.values() if other is not queue)

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

    def upload(self, device: int, slots: int, stream: bytes, answered: Callable[[Any], None]) -> int:
        """Give the server a recording and return its id, which is usable at once; `answered` hears what it says (H18).

        What was forgotten before is released now, so that a program that keeps few recordings meets no quota of them (H07).
        """
        self.flush_garbage()
        inline, transfer_id = self._split(memoryview(stream), MAX_INLINE_STREAM)
        resource = self.calls.make(
            Call(answered),
            ResourceType.COMMAND_BUFFER,
            lambda resource: CommandBufferUpload(resource, device, slots, len(stream), inline, transfer_id),
        )
        if transfer_id:
            with self.link.step:
                self.send(transfer_id, memoryview(stream))
        return resource

    def _split(self, data: memoryview, most: int) -> tuple[bytes, int]:
        """(data, 0) for what fits into a request, or nothing and the id of the transfer that brings it."""
        return (bytes(data), 0) if data.nbytes <= most else (b"", self.next_transfer())

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
            self.bridge.join()
            if self.segments is not None:
                self.segments.drop()
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
        else:
            self._on_other(event)

    def _on_other(self, event: Event) -> None:
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
                self.calls.answered(request, body)
            case Profiled(Records() as records):
                self.profiles.arrived(records)

    def _on_result(self, axis: int, epoch: int, data: memoryview) -> None:
        into = self._results.pop((axis, epoch), None)
        if into is None or len(data) != len(into):
            self.link.fail(PeerError(f"a RESULT of {len(data)} bytes for epoch {epoch}, which read something else"))
            return
        into[:] = data

    def all_here(self) -> bool:
        """Whether no download of any queue is on its way."""
        return all(queue.all_here for queue in self._queues.values())

    def are_here(self, waits: Frontier) -> tuple[bool, Error | None]:
        """Whether the queues have come so far on this side, and why one never will."""
        for axis, epoch in waits:
            timeline = self._queues[axis].timeline
            failure = timeline._failure  # before the value: a queue may fail after it has come so far
            if timeline._value < epoch:
                return False, failure
        return True, None

    def go_on_behind(self, queue: RemoteQueue) -> None:
        """A queue has come further, or failed: others may have waited for it here."""
        if self.behind:
            for other in tuple(self.behind):
                if other is not queue:
                    other.advanced(0)

    def arriving(self) -> bool:
        """See `link.Handler`."""
        return any(queue.arriving() for queue in self._queues.values())

    def on_failed(self, error: Error) -> None:
        """See `link.Handler`."""
        if not self._made:
            return
        for queue in self._queues.values():
            queue.fail(error)
        for device in self.devices:
            device._fail_semaphores(error)
        if self.segments is not None:
            self.segments.fail(error)
        self.calls.fail(error)
        self.bridge.stop()
        self.profiles.fail(error)
        self._results.clear()


def _ignore(_: Error | None) -> None:
    """An upload's end: the ADVANCE of its command tells the same."""


def _info(entry: DeviceEntry) -> DeviceInfo:
    heaps = tuple(Heap(heap.name, heap.size, heap.max_allocation, heap.alignment) for heap in entry.heaps)
    targets = tuple(Target(*target) for target in entry.targets)
    extensions = tuple(Extension(*extension) for extension in entry.extensions)
    return DeviceInfo(entry.name, entry.driver, targets, heaps, entry.queue_count, entry.page_size, extensions)


def _number(query: dict[str, str], key: str, default: float) -> float:
    text = query.pop(key, None)
    try:
        return default if text is None else float(text)
    except ValueError:
        raise UsageError(f"{key}={text}: give a number of seconds") from None


def _bulk(query: dict[str, str]) -> int:
    text = query.pop("bulk", "1")
    if text not in map(str, range(1, MAX_BULK + 1)):
        raise UsageError(f"bulk={text}: give the number of connections for transfers, 1 to {MAX_BULK}")
    return int(text)


def _shared(query: dict[str, str]) -> bool:
    text = query.pop("shared", "1")
    if text not in ("0", "1"):
        raise UsageError(f"shared={text}: give 1 to use memory of a server on this machine in place, 0 to move all bytes")
    return text == "1"


def open_devices(uri: Uri) -> Sequence[Device]:
    """Connect. The query may hold `timeout`, `keepalive` (interval) and `deadline`, all in seconds.

    `bulk`: connections for transfers, 1 (default) to 8; the server may allow fewer. `spin_us` is the carrier's. `shared=0`: map no
    memory of a server on this machine, so that all bytes go over the connection.
    """
    query = dict(uri.query)
    default = HeartbeatOptions()
    timeout = _number(query, "timeout", CONNECT_TIMEOUT)
    heartbeat = HeartbeatOptions(_number(query, "keepalive", default.interval), _number(query, "deadline", default.deadline))
    bulk, shared = _bulk(query), _shared(query)
    address = replace(uri.carrier, query={key: query.pop(key) for key in ("spin_us",) if key in query})
    if query:
        raise UsageError(
            f"{uri}: unknown key {', '.join(query)}; known: device, timeout, keepalive, deadline, bulk, shared, spin_us"
        )
    return RemoteHost(uri).connect(address, timeout, heartbeat, bulk, shared)
