"""Events on the server (H21). The host's changes travel between the commands, so they happen in the program's order.

`signal` and `reset` do not wait for the server. `query` costs a round trip; `wait` is answered once the event is set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from remora.drivers.remote.semaphore import RemoteSemaphore
from remora.errors import Error
from remora.hal.event import Event
from remora.hal.host_queue import signal_all
from remora.hal.semaphore import Semaphore, Timepoint
from remora.wire.queue import EVENT_QUERY, EVENT_RESET, EVENT_SIGNAL, EVENT_WAIT

if TYPE_CHECKING:
    from remora.drivers.remote.device import RemoteDevice

__all__ = ["RemoteEvent"]


class RemoteEvent(Event):
    """`resource` is its provisional id, which stays. Two local semaphores count the answers to its queries and waits."""

    __slots__ = ("__weakref__", "_answers", "_asked", "_fresh", "_state", "_waited", "resource")
    device: RemoteDevice

    def __init__(self, device: RemoteDevice, resource: int, answers: Semaphore, waits: Semaphore) -> None:
        super().__init__(device, waits)
        self.resource = resource
        self._answers = answers
        assert isinstance(answers, RemoteSemaphore)
        answers.answers = _always
        self._state = False
        self._asked = self._waited = 0
        self._fresh = True  # whether the next wait must ask anew, because the event was cleared since the last one asked

    def __repr__(self) -> str:
        return f"<Event {'set' if self._state else 'clear'} when last looked at>"

    def query(self) -> bool:
        """See `Event.query`; one round trip."""
        with self._change:
            self._answers.query()
            self._asked += 1
            point = self._answers.at(self._asked)
            self.device.host.event(EVENT_QUERY, self.resource, self._asked)
        point.wait()
        return self._state

    def told(self, action: int, number: int, state: bool | Error) -> None:
        """The answer to a query or wait."""
        counter = self._answers if action == EVENT_QUERY else self._timeline
        if isinstance(state, Error):
            self._answers.fail(state)
            self._timeline.fail(state)
            return
        self._state = state
        signal_all((counter.at(number),))

    def _turn(self, state: int) -> None:
        self._answers.query()
        with self._change:
            self._fresh = self._fresh or not state
            self._state = bool(state)
            self.device.host.event(EVENT_SIGNAL if state else EVENT_RESET, self.resource, 0)

    def _set_point(self) -> Timepoint:
        self._timeline.query()
        with self._change:
            if self._fresh or self._timeline._value >= self._waited:
                self._fresh = False
                self._waited += 1
                self.device.host.event(EVENT_WAIT, self.resource, self._waited)
            return self._timeline.at(self._waited)

    def __del__(self) -> None:
        try:
            self.device.host.forget(self.resource)
        except AttributeError:  # an interruption came before it was made
            return


def _always(_: int) -> bool:
    return True
