"""Traces: what a program asked of devices, and what they did, on one clock in one file (requirement H24).

The program is one process of the trace, with a span for each submission and each wait that blocks; each device is another, with a
span for each operation on the track of its queue. An arrow leads from the submission to the operation.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from time import monotonic_ns
from typing import TYPE_CHECKING, Final, NamedTuple, final

from remora.errors import Error
from remora.hal import access
from remora.hal.operation import OperationKind
from remora.hal.semaphore import Semaphore
from remora.hal.trace_file import Event, TraceFile

if TYPE_CHECKING:
    from types import TracebackType

    from remora.hal.device import Device
    from remora.hal.operation import Draft, OperationRecord
    from remora.hal.profile import Profile
    from remora.hal.queue import Queue
    from remora.hal.semaphore import Timepoint

__all__ = ["OperationTime", "Trace", "TracedDevice", "trace"]

PROGRAM: Final = 1
"""The program's process in the trace; devices follow."""
#: Spans of the program that wait to be written, and kinds of operations that are told apart in the summary.
MAX_SPANS: Final = 1 << 16
MAX_TITLES: Final = 10_000
#: Seconds between two writes of the program's spans, and that a device has at the end to give its last records.
WRITE_EVERY: Final = 0.2
PATIENCE: Final = 10.0


class OperationTime(NamedTuple):
    """How often an operation ran, and how long: all runs together, and the longest one. Nanoseconds."""

    title: str
    kind: OperationKind
    runs: int
    total_ns: int
    longest_ns: int


class _Span(NamedTuple):
    """Something that the program did."""

    thread: int
    thread_name: str
    name: str
    start_ns: int
    end_ns: int
    flow: str
    args: Event


class TracedDevice:
    """One device of a trace: a sink of its profile. `ended` says why its records end early, if they do."""

    def __init__(self, trace: Trace, device: Device, number: int) -> None:
        self.uri = device.uri
        self.name = device.name
        self.number = number
        self.ended = ""
        self.profile: Profile | None = None
        self._trace = trace

    def begin(self, device: Device) -> None:
        """Begin to profile the device. Raises what `Device.profile` does."""
        self.profile = device.profile(self)
        self.profile._submitted = self._submitted

    def take(self, records: Sequence[OperationRecord]) -> None:
        """See `Sink`."""
        self._trace._take(self, records)

    def end(self) -> None:
        """Take what is left, and end the profile."""
        try:
            if self.profile is not None:
                self.profile.end(PATIENCE)
        except Error as error:
            self.ended = str(error)

    def facts(self) -> Event:
        """What the trace says of the device."""
        profile = self.profile
        told: Event = {"device": self.uri, "name": self.name, "ended": self.ended}
        if profile is not None:
            offset_ns, error_ns = profile.clock
            told |= {"records": profile.taken, "dropped": profile.dropped}
            told |= {"clock_offset_ns": offset_ns, "clock_error_ns": error_ns}
        return told

    def _submitted(self, queue: Queue, draft: Draft, point: Timepoint, returned_ns: int) -> None:
        flow = f"{self.number}.{queue.ordinal}.{point.value}"
        title = draft.name or draft.label or draft.kind.name.lower()
        args = {"device": self.uri, "queue": queue.ordinal, "value": point.value}
        self._trace._span(f"submit {title}", draft.submit_ns, returned_ns, flow, args)


@final
class Trace:
    """A trace that is being written. Made by `remora.trace`; `close()` it or use `with`.

    Example: `with remora.trace("out.json") as trace: main()`, then `print(trace.summary()[0])` tells what took the longest.

    The file is valid after every write, five times a second, so it can be looked at meanwhile, and survives the program's death.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.file = TraceFile(path)
        self.devices: list[TracedDevice] = []
        self.dropped = 0
        """Spans of the program that were lost, because they came faster than they could be written."""
        self._begin_ns = monotonic_ns()
        self._writing = threading.Lock()
        self._spans: deque[_Span] = deque()
        self._threads: set[int] = set()
        self._times: dict[tuple[str, OperationKind], list[int]] = {}
        self._stop = threading.Event()
        self._closed = False
        self._watcher: Callable[[str, Device], None] | None = None
        self._write([_named("process_name", PROGRAM, 0, f"program, process {os.getpid()}")])
        _ACTIVE.append(self)
        Semaphore.watch = _watch
        self._thread = threading.Thread(target=self._run, name="remora trace", daemon=True)
        self._thread.start()

    def add(self, device: Device) -> TracedDevice:
        """Trace this device too, from now on. Raises UsageError when it is profiled already."""
        traced = TracedDevice(self, device, len(self.devices) + 1)
        self.devices.append(traced)
        try:
            traced.begin(device)
        except Error as error:
            traced.ended = str(error)
            raise
        process, place = PROGRAM + traced.number, "server" if device.uri.startswith("remote-") else "device"
        names = [_named("process_name", process, 0, f"{place} {device.uri}: {device.name}")]
        names += [_named("thread_name", process, queue.ordinal + 1, f"queue {queue.ordinal}") for queue in device.queues]
        self._write(names)
        return traced

    def follow(self, uris: Collection[str] = ()) -> None:
        """Trace every device that this process opens from now on, or those that it opens by these URIs."""

        def opened(uri: str, device: Device) -> None:
            if not uris or uri in uris:
                with suppress(Error):  # `TracedDevice.ended` says why it cannot be traced; the program can use it
                    self.add(device)

        self._watcher = opened
        access.WATCHERS.append(opened)

    def summary(self) -> tuple[OperationTime, ...]:
        """What ran, the longest in all first."""
        with self._writing:
            times = [OperationTime(title, kind, *numbers) for (title, kind), numbers in self._times.items()]
        return tuple(sorted(times, key=lambda time: -time.total_ns))

    def close(self) -> None:
        """End the profiles and the file. Safe to repeat. That a device was lost is no error: `devices` and the file say so."""
        if self._closed:
            return
        self._closed = True
        _ACTIVE.remove(self)
        if self._watcher is not None:
            access.WATCHERS.remove(self._watcher)
        if not _ACTIVE:
            Semaphore.watch = None
        for traced in self.devices:
            traced.end()
        self._stop.set()
        self._thread.join()
        try:
            self._write([])
        finally:
            self.file.close()

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- what happens ---------------------------------------------------------------------------------------------------------

    def _span(self, name: str, start_ns: int, end_ns: int, flow: str, args: Event) -> None:
        """The program did something on this thread."""
        if len(self._spans) >= MAX_SPANS:
            self.dropped += 1
            return
        self._spans.append(_Span(threading.get_native_id(), threading.current_thread().name, name, start_ns, end_ns, flow, args))

    def _take(self, device: TracedDevice, records: Sequence[OperationRecord]) -> None:
        """Operations ran. The thread of the device's profile."""
        events: list[Event] = []
        with self._writing:
            for record in records:
                self._count(record)
        for record in records:
            where = {"pid": PROGRAM + device.number, "tid": record.queue + 1, "ts": self._us(record.start_ns)}
            events.append({"ph": "X", "name": record.title, "cat": record.kind.name.lower(), **where, **_told(record)})
            if record.kind is not OperationKind.LABEL:
                flow = f"{device.number}.{record.queue}.{record.value}"
                events.append({"ph": "f", "bp": "e", "name": "submit", "cat": "submit", "id": flow, **where})
        self._write(events)

    def _count(self, record: OperationRecord) -> None:
        key = record.title, record.kind
        if key not in self._times and len(self._times) >= MAX_TITLES:
            key = "others", OperationKind.OTHER
        spent = record.end_ns - record.start_ns
        count, total, longest = self._times.get(key, (0, 0, 0))
        self._times[key] = [count + 1, total + spent, max(longest, spent)]

    # -- writing --------------------------------------------------------------------------------------------------------------

    def _us(self, time_ns: int) -> float:
        return (time_ns - self._begin_ns) / 1000

    def _write(self, events: list[Event]) -> None:
        """Write events, and what the program did meanwhile."""
        with self._writing:
            spans = [self._spans.popleft() for _ in range(len(self._spans))]
            for span in spans:
                events += self._events_of(span)
            facts = {"clock": "CLOCK_MONOTONIC of the program, 0 is when the trace began", "dropped": self.dropped}
            self.file.write(events, facts | {"devices": [device.facts() for device in self.devices]})

    def _events_of(self, span: _Span) -> list[Event]:
        where = {"pid": PROGRAM, "tid": span.thread, "ts": self._us(span.start_ns)}
        category = span.name.partition(" ")[0]
        duration = (span.end_ns - span.start_ns) / 1000
        events: list[Event] = [{"ph": "X", "name": span.name, "cat": category, "dur": duration, "args": span.args, **where}]
        if span.flow:
            events.append({"ph": "s", "name": "submit", "cat": "submit", "id": span.flow, **where})
        if span.thread not in self._threads:
            self._threads.add(span.thread)
            events.insert(0, _named("thread_name", PROGRAM, span.thread, span.thread_name))
        return events

    def _run(self) -> None:
        """Write what the program does, though no device has anything to say."""
        while not self._stop.wait(WRITE_EVERY):
            if self._spans:
                with suppress(Error):  # the disk is full: `close` says so
                    self._write([])


def trace(path: str | os.PathLike[str], *devices: Device) -> Trace:
    """Write a trace to `path` until the end of the `with` block: of these devices, or with none given, of all opened inside it.

    Example: `with remora.trace("out.json", device): queue.dispatch(kernel, grid, buffers).wait(5)`, and open it in ui.perfetto.dev.
    Raises UsageError for a path that cannot be written, and for a device that is profiled already.
    """
    begun = Trace(path)
    try:
        for device in devices:
            begun.add(device)
    except BaseException:
        begun.close()
        raise
    if not devices:
        begun.follow()
    return begun


_ACTIVE: Final[list[Trace]] = []


def _watch(semaphore: Semaphore, value: int, deadline: float | None) -> bool:
    """A wait that blocks, for every trace that is being written."""
    start_ns = monotonic_ns()
    try:
        return semaphore._wait_until(value, deadline)
    finally:
        end_ns = monotonic_ns()
        for active in tuple(_ACTIVE):
            active._span(f"wait {semaphore.name}", start_ns, end_ns, "", {"value": value})


def _named(kind: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _told(record: OperationRecord) -> Event:
    """A record's duration, and what else it says that is not nothing."""
    told: Event = {"value": record.value, "queued_us": (record.start_ns - record.submit_ns) / 1000}
    if record.label:
        told["label"] = record.label
    if record.bytes:
        told["bytes"] = record.bytes
    if any(record.grid):
        told["grid"] = record.grid
    if record.dispatches:
        told["dispatches"] = record.dispatches
    if record.failed:
        told["failed"] = True
    return {"dur": (record.end_ns - record.start_ns) / 1000, "args": told}
