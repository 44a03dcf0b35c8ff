"""Profiles of remote devices: the server's records, in order, on this side's clock (H24).

The link's thread takes RECORDS in and goes on; the profile's own thread gives them to the sink, then says TAKEN. The server sends
no more than a window ahead, so nothing piles up here, and `flush` is answered behind every record that it asks for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Any, Final

from remora.drivers.remote.calls import CALL_TIMEOUT, Call, Calls
from remora.errors import Error, PeerError
from remora.hal.operation import Clock, Draft, OperationKind, OperationRecord
from remora.hal.profile import Profile, Sink
from remora.hal.profiled_queue import Overrides, profile_queues
from remora.link.clock import clock_name
from remora.link.link import Link
from remora.session.clock import ClockEstimate
from remora.session.state import Lane
from remora.wire.control import encode_control
from remora.wire.profile import MAX_RECORDS, WINDOW, ProfileRecord, Records, Taken
from remora.wire.profile_calls import ClockIs, ClockRead, ProfileBegin, ProfileEnd, ProfileFlush

if TYPE_CHECKING:
    from remora.drivers.remote.device import RemoteDevice
    from remora.drivers.remote.queue import RemoteQueue
    from remora.hal.semaphore import Timepoint

__all__ = ["Profiles", "RemoteProfile"]

#: Exchanges of times at the beginning, of which the shortest round trip counts most; then one every so many nanoseconds.
EXCHANGES: Final = 4
EXCHANGE_EVERY_NS: Final = 1_000_000_000
#: What is known of operations whose records have not come, a queue.
MAX_DRAFTS: Final = 1 << 16


class Profiles:
    """The profiles of one connection by number, and what is known of the server's clock. Any thread may call any method."""

    def __init__(self, link: Link, calls: Calls) -> None:
        self.link = link
        self.calls = calls
        self.clock = ClockEstimate()
        self._asked_ns = 0
        self._on: dict[int, RemoteProfile] = {}
        self._last = 0

    def add(self, profile: RemoteProfile) -> int:
        """A number for a profile."""
        with self.link.lock:
            self._last += 1
            self._on[self._last] = profile
            return self._last

    def remove(self, number: int) -> None:
        """A profile has ended: what still comes for it is thrown away."""
        self._on.pop(number, None)

    def arrived(self, records: Records) -> None:
        """Records came. The link's thread."""
        profile = self._on.get(records.profile)
        if profile is not None:
            profile.arrived(records)

    def fail(self, error: Error) -> None:
        """The session ended, and with it all profiles, when their sinks have taken what came."""
        for profile in tuple(self._on.values()):
            profile._conclude(error, discard=False)

    def exchange(self) -> Call:
        """Ask for the server's time; the estimate is better when the call is done."""
        self._asked_ns = sent = monotonic_ns()

        def answered(answer: Any) -> None:
            received = monotonic_ns()
            if isinstance(answer, ClockIs):
                same = answer.clock != 0 and answer.clock == clock_name()
                with self.link.lock:
                    self.clock.add(sent, answer.now_ns, received, same=same)

        call = Call(answered)
        self.calls.post(call, ClockRead())
        return call

    def refresh(self) -> None:
        """Exchange times if that was a while ago; the answer is not waited for."""
        if monotonic_ns() - self._asked_ns > EXCHANGE_EVERY_NS:
            self.exchange()

    def align(self) -> Clock:
        """The server's clock minus this one's, now."""
        with self.link.lock:
            return Clock(*self.clock.offset(monotonic_ns()))


class RemoteProfile(Profile):
    """See `Profile`. Beginning and flushing cost round trips; records move in between by themselves."""

    device: RemoteDevice

    def __init__(self, device: RemoteDevice, sink: Sink, profiles: Profiles) -> None:
        super().__init__(device, sink, (WINDOW + 1) * MAX_RECORDS)
        self._profiles = profiles
        self._number = 0
        self._arrived: deque[tuple[int, int]] = deque()  # (records added so far, sequence) of what the sink has not taken
        self._drafts: dict[int, deque[tuple[int, Draft]]] = {}
        self._floor: dict[int, int] = {}  # where the last operation of each queue ended

    @property
    def clock(self) -> Clock:
        """See `Profile.clock`."""
        return self._profiles.align()

    def note(self, queue: int, epoch: int, draft: Draft) -> None:
        """An operation is on its way. Called before its record can come."""
        self._drafts[queue].append((epoch, draft))

    def arrived(self, records: Records) -> None:
        """Take records in. The link's thread; a server that sends more than the window fails the link."""
        if len(self._arrived) >= WINDOW:
            error = PeerError(f"RECORDS {records.sequence} of a profile while {WINDOW} others wait for the sink")
            self._profiles.link.fail(error)
            return
        self.dropped = records.dropped
        self._arrived.append((self._added + len(records.records), records.sequence))
        for record in records.records:
            self._add(record)

    def _on(self) -> Callable[[], None]:
        self._drafts = {queue.ordinal: deque(maxlen=MAX_DRAFTS) for queue in self.device.queues}
        self._number = self._profiles.add(self)
        queues = profile_queues(self.device, OVERRIDES)

        def off() -> None:
            queues()
            self._profiles.remove(self._number)

        try:
            self._profiles.calls.ask(ProfileBegin(self._number, self.device.ordinal), "begin a profile")
            for _ in range(EXCHANGES):
                self._profiles.calls.answer(self._profiles.exchange(), "tell its time")
                if self.clock.error_ns == 0:
                    break
        except BaseException:
            off()
            raise

        def end() -> None:
            off()
            with suppress(Error):  # a session that has ended has no profiles either
                self._post(ProfileEnd(self._number))

        return end

    def _post(self, body: Any) -> Call:
        call = Call()
        self._profiles.calls.post(call, body)
        return call

    def _collect(self, deadline: float | None) -> None:
        timeout = CALL_TIMEOUT if deadline is None else max(0.0, deadline - monotonic())
        try:
            call = self._post(ProfileFlush(self._number))
            self._profiles.calls.answer(call, "send its records, or the sink did not take them,", timeout)
        except Error:
            failure = self._profiles.link.session.failure
            if failure is None:
                raise
            self._conclude(failure, discard=False)  # what came before the end is for the sink

    def _took_batch(self) -> None:
        """Tell the server how far the sink is, if that makes room in the window."""
        sequence = 0
        while self._arrived and self._arrived[0][0] <= self._taken:
            sequence = self._arrived.popleft()[1]
        if not sequence:
            return
        link = self._profiles.link
        with suppress(Error):
            with link.lock:
                link.session.profile(encode_control(Taken(self._number, sequence)))
            link.flush(Lane.CONTROL)
            self._profiles.refresh()

    def _prepare(self, batch: list[Any]) -> Sequence[OperationRecord]:
        offset = self.clock.offset_ns
        return [self._translate(record, offset) for record in batch]

    def _translate(self, record: ProfileRecord, offset: int) -> OperationRecord:
        """A record on this side's clock, with what this side knows better: when, and as what, the program submitted it."""
        kind, queue = OperationKind(record.kind), record.queue
        submit, start, end = record.submit - offset, record.start - offset, record.end - offset
        name, label, grid, count, size = record.name, record.label, record.grid, record.dispatches, record.bytes
        if kind is not OperationKind.LABEL:
            draft = self._draft_of(queue, record.value)
            if draft is not None:
                kind, name, label, grid, count, size = draft.what()
                submit = draft.submit_ns
                start, end = draft.ran_ns or (start, end)
            start = max(start, self._floor.get(queue, 0))  # a better estimate must not make operations of a queue overlap
            end = self._floor[queue] = max(end, start)
        return OperationRecord(kind, name, label, queue, record.value, submit, start, end, size, grid, count, record.failed)

    def _draft_of(self, queue: int, epoch: int) -> Draft | None:
        drafts = self._drafts.get(queue)
        while drafts and drafts[0][0] <= epoch:
            found, draft = drafts.popleft()
            if found == epoch:
                return draft
        return None


def _noted(submit: Callable[..., Timepoint]) -> Callable[..., Timepoint]:
    def noted(queue: RemoteQueue, op: int, encode: Any, wait: Any, signal: Any, record: Any = None) -> Timepoint:
        profile = queue.device._profile
        draft = None if profile is None else profile._local.draft
        if draft is None or not isinstance(profile, RemoteProfile):
            return submit(queue, op, encode, wait, signal, record)

        def sent(epoch: int) -> None:
            profile.note(queue.ordinal, epoch, draft)
            if record is not None:
                record(epoch)

        return submit(queue, op, encode, wait, signal, sent)

    return noted


def _timed_call(host_call: Callable[..., Timepoint]) -> Callable[..., Timepoint]:
    """The server sees only a barrier of a host call: its time is taken here."""

    def called(queue: RemoteQueue, call: Callable[[], object], *args: Any) -> Timepoint:
        profile = queue.device._profile
        draft = None if profile is None else profile._local.draft
        if draft is None:
            return host_call(queue, call, *args)

        def timed() -> None:
            start_ns = monotonic_ns()
            try:
                call()
            finally:
                draft.ran_ns = start_ns, monotonic_ns()

        return host_call(queue, timed, *args)

    return called


OVERRIDES: Final[Overrides] = {"_submit": _noted, "_host_call": _timed_call}
