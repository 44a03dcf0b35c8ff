"""Events of one session (H21): what the client's host does with them, in the order in which it did it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from remora.base.ids import ResourceType
from remora.errors import Error, PeerError, UsageError
from remora.hal.device import Device
from remora.hal.event import Event
from remora.hal.semaphore import Timepoint
from remora.session.events import EventAsked
from remora.session.state import Lane
from remora.wire.queue import EVENT_CREATE, EVENT_QUERY, EVENT_RESET, EVENT_SIGNAL, EVENT_WAIT

if TYPE_CHECKING:
    from remora.server.dispatch import Dispatcher

__all__ = ["Events"]


class Events:
    """Part of the dispatcher, whose lock guards it; only the end of a wait comes from any thread."""

    def __init__(self, dispatcher: Dispatcher, devices: Sequence[Device]) -> None:
        self._dispatcher = dispatcher
        self._devices = devices
        self._lock = threading.Lock()
        self._waiting: dict[tuple[int, int], int] = {}  # (event, the value that it waits for) to the number of the last wait

    def act(self, asked: EventAsked) -> None:
        """Do it now. What cannot be done is told to whoever asks for the state; the dispatcher's lock is held."""
        try:
            if asked.action == EVENT_CREATE:
                self._create(asked.device, asked.event)
                return
            event: Event = self._dispatcher.table.find(asked.event, ResourceType.EVENT)
            if asked.action == EVENT_SIGNAL:
                event.signal()
            elif asked.action == EVENT_RESET:
                event.reset()
            elif asked.action == EVENT_QUERY:
                self._tell(EVENT_QUERY, asked.event, asked.number, event.query())
            else:
                self._wait(asked.event, asked.number, event._set_point())
        except PeerError:
            raise
        except Error as error:
            if asked.number:
                self._tell(asked.action, asked.event, asked.number, error)

    def _create(self, device: int, resource: int) -> None:
        table = self._dispatcher.table
        try:
            if device >= len(self._devices):
                raise UsageError(f"there is no device {device}; the server has {len(self._devices)}")
            table.add(resource, ResourceType.EVENT, self._devices[device].event())
        except PeerError:
            raise
        except Error as error:
            table.fail(resource, error)

    def _wait(self, event: int, number: int, point: Timepoint) -> None:
        """Answer when the event is set. Waits for the same moment share one answer, so a peer that gives up cannot pile them up."""
        key = event, point.value
        with self._lock:
            known = key in self._waiting
            self._waiting[key] = number
        if not known:
            point.on_done(lambda: self._ended(key, point))

    def _ended(self, key: tuple[int, int], point: Timepoint) -> None:
        with self._lock:
            number = self._waiting.pop(key)
        failure = point.semaphore.failure if point.semaphore._value < point.value else None
        self._tell(EVENT_WAIT, key[0], number, failure or True)
        self._dispatcher.link.flush(Lane.QUEUE)

    def _tell(self, action: int, event: int, number: int, state: bool | Error) -> None:
        link = self._dispatcher.link
        with link.lock:
            if link.session.failure is None:
                link.session.event_state(action, event, number, state)
