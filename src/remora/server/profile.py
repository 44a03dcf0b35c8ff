"""Profiles of one session: what its commands ran is relayed to the client's sink, in order and within a window (H24).

The records come from the device's own profile, whose sink is a `_Relay`: it sends them in RECORDS frames, and while WINDOW of these
are not taken by the client it waits. Then the device's profile fills up, and drops and counts: a slow client costs memory and work
nothing. Each command is submitted under a stamp with its epoch, so that a record has the value which the client knows.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

from remora.errors import BrokenError, Error, NotFoundError, PeerError, UsageError
from remora.hal.device import Device
from remora.hal.operation import OperationKind, OperationRecord, Stamp
from remora.hal.profile import Profile
from remora.hal.semaphore import Timepoint
from remora.link.clock import clock_name
from remora.server.axis import Axis
from remora.server.operations import Run
from remora.session.state import Lane
from remora.wire import commands
from remora.wire.control import encode_control
from remora.wire.file_commands import FILE_READ, FILE_WRITE
from remora.wire.method import Done
from remora.wire.profile import MAX_RECORDS, WINDOW, ProfileRecord, Records, Taken
from remora.wire.profile_calls import ClockIs, ClockRead, ProfileBegin, ProfileEnd, ProfileFlush

if TYPE_CHECKING:
    from remora.server.dispatch import Dispatcher

__all__ = ["Profiles", "stamped"]

#: What a transfer of the client is recorded as, whatever it takes here.
TRANSFERS: Final = {
    commands.UPLOAD: OperationKind.UPDATE,
    commands.DOWNLOAD: OperationKind.READ,
    FILE_READ: OperationKind.READ_FILE,
    FILE_WRITE: OperationKind.WRITE_FILE,
}


class Profiles:
    """Part of the dispatcher. Requests come from the control lane's thread."""

    def __init__(self, dispatcher: Dispatcher, devices: Sequence[Device]) -> None:
        self._dispatcher = dispatcher
        self._devices = devices
        self._relays: dict[int, _Relay] = {}

    def begin(self, request: int, body: ProfileBegin) -> None:
        """Record what runs on a device, under the number that the client gave."""
        if body.profile in self._relays:
            raise PeerError(f"the profile {body.profile} is on already")
        try:
            if body.device >= len(self._devices):
                raise UsageError(f"there is no device {body.device}; the server has {len(self._devices)}")
            relay = _Relay(self._dispatcher, body.profile)
            with self._dispatcher.lock:  # no command is being submitted, and the next ones are stamped
                relay.device_profile = self._devices[body.device].profile(relay)
                self._dispatcher.stamp(True)
        except Error as error:
            self._dispatcher.answer(request, error)
            return
        self._relays[body.profile] = relay
        self._dispatcher.answer(request, Done())

    def flush(self, request: int, body: ProfileFlush) -> None:
        """Answer once everything that is recorded has been sent."""
        relay = self._relays.get(body.profile)
        if relay is None or relay.device_profile is None:
            self._dispatcher.answer(request, NotFoundError(f"there is no profile {body.profile} in this session; it has ended"))
            return
        relay.device_profile._ask(lambda error: self._dispatcher.answer(request, error or Done()))

    def end(self, request: int, body: ProfileEnd) -> None:
        """Record no more. The end of a profile that has ended is no error."""
        relay = self._relays.pop(body.profile, None)
        if relay is not None:
            relay.end()
        self._dispatcher.stamp(bool(self._relays))
        self._dispatcher.answer(request, Done())

    def clock(self, request: int, _: ClockRead) -> None:
        """Say what time it is here."""
        self._dispatcher.answer(request, ClockIs(monotonic_ns(), clock_name()))

    def taken(self, body: Taken) -> None:
        """The client's sink took some: more may be sent. Raises PeerError for what was never sent."""
        relay = self._relays.get(body.profile)
        if relay is not None:
            relay.taken(body.sequence)

    def close(self) -> None:
        """The session ended."""
        for relay in tuple(self._relays.values()):
            relay.end()
        self._relays.clear()


class _Relay:
    """The sink of a device's profile on the server. `take` runs on that profile's thread."""

    def __init__(self, dispatcher: Dispatcher, number: int) -> None:
        self.device_profile: Profile | None = None
        self._dispatcher = dispatcher
        self._number = number
        self._room = threading.Condition(threading.Lock())
        self._sent = self._taken = 0
        self._ended = False

    def take(self, records: Sequence[OperationRecord]) -> None:
        """Send records once the window has room. Raises BrokenError when the profile or the session has ended."""
        for start in range(0, len(records), MAX_RECORDS):
            self._send(tuple(map(_translate, records[start : start + MAX_RECORDS])))

    def _send(self, records: tuple[ProfileRecord, ...]) -> None:
        profile, link = self.device_profile, self._dispatcher.link
        with self._room:
            while self._sent - self._taken >= WINDOW and not self._ended:
                self._room.wait()
            if self._ended:
                raise BrokenError("the client has ended this profile, or has left")
            self._sent += 1
        dropped = 0 if profile is None else profile.dropped
        frame = encode_control(Records(self._number, self._sent, dropped, records))
        with link.lock:
            link.session.profile(frame)
        link.flush(Lane.CONTROL)

    def taken(self, sequence: int) -> None:
        """The client's sink took everything up to this frame."""
        with self._room:
            if sequence > self._sent:
                raise PeerError(f"TAKEN {sequence} of the profile {self._number}; {self._sent} were sent")
            self._taken = max(self._taken, sequence)
            self._room.notify()

    def end(self) -> None:
        """Send nothing more, and let the device's profile end. Waits for no one."""
        with self._room:
            self._ended = True
            self._room.notify()
        if self.device_profile is not None:
            self.device_profile._conclude(None, discard=True)


def _translate(record: OperationRecord) -> ProfileRecord:
    return ProfileRecord(
        *(record.kind, record.failed, record.queue, record.name, record.label, record.grid, record.dispatches),
        *(record.value, record.submit_ns, record.start_ns, record.end_ns, record.bytes),
    )


def stamped(runs: Mapping[int, Run]) -> dict[int, Run]:
    """The dispatcher's table of operations, as it is while a profile is on: each is submitted under its epoch."""
    return {op: _stamped(run, TRANSFERS.get(op)) for op, run in runs.items()}


def _stamped(run: Run, kind: OperationKind | None) -> Run:
    def submit(dispatcher: Dispatcher, axis: Axis, epoch: int, body: Any, wait: tuple[Timepoint, ...]) -> Timepoint:
        profile: Profile | None = axis.queue.device._profile
        if profile is None:
            return run(dispatcher, axis, epoch, body, wait)
        profile._local.stamp = Stamp(epoch) if kind is None else Stamp(epoch, kind, body.length)
        try:
            return run(dispatcher, axis, epoch, body, wait)
        finally:
            profile._local.stamp = None

    return submit
