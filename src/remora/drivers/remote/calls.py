"""Calls of the control lane that wait for their answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from remora.base.ids import ResourceType
from remora.base.uri import Uri
from remora.errors import DeadlineError, Error
from remora.link.latch import Latch
from remora.link.link import Link
from remora.session.state import Lane
from remora.wire.control import MAX_REQUESTS

__all__ = ["CALL_TIMEOUT", "Call", "Calls"]

#: Seconds that the server may take for a call, such as loading an executable.
CALL_TIMEOUT = 120.0


class Call:
    """A request that is not answered yet. `answered` hears of the answer, or of the Error that there is instead."""

    __slots__ = ("_answered", "answer", "done")

    def __init__(self, answered: Callable[[Any], None] | None = None) -> None:
        self.done = Latch()
        self.answer: Any = None
        self._answered = answered

    def finish(self, answer: Any) -> None:
        """The answer is here."""
        self.answer = answer
        self.done.set()
        if self._answered is not None:
            self._answered(answer)


class Calls:
    """The open calls of one connection. Any thread may call."""

    def __init__(self, link: Link, uri: Uri) -> None:
        self._link = link
        self._uri = uri
        self._open: dict[int, Call] = {}

    def ask(self, body: Any, what: str) -> Any:
        """Send a call, wait for its answer and return that; one round trip. `what` the server is to do, for messages.

        Raises the error that the server answered, DeadlineError after CALL_TIMEOUT.
        """
        call = Call()
        self.post(call, body)
        return self.answer(call, what)

    def post(self, call: Call, body: Any) -> None:
        """Send a call; `call` gets the answer."""
        self._send(call, None, lambda _: body)

    def make(self, call: Call, kind: ResourceType, body: Callable[[int], Any], fd: int = -1) -> int:
        """Ask the server to make something under the provisional id returned here; `call` gets the answer.

        A descriptor goes along if one is given: for a connection that passes descriptors.
        """
        return self._send(call, kind, body, fd)

    def answer(self, call: Call, what: str, timeout: float = CALL_TIMEOUT) -> Any:
        """Wait for the answer to what was asked. `timeout` in seconds."""
        self._link.round_trips += 1
        if not call.done.wait(timeout):
            raise DeadlineError(f"{self._uri} did not {what} within {timeout:g} s")
        if isinstance(call.answer, Error):
            raise call.answer.copy()
        return call.answer

    def answered(self, request: int, body: Any) -> None:
        """The session brought an answer."""
        self._open.pop(request).finish(body)

    def fail(self, error: Error) -> None:
        """The session ended: so do all calls."""
        calls, self._open = self._open, {}
        for call in calls.values():
            call.finish(error)

    def _send(self, call: Call, kind: ResourceType | None, body: Callable[[int], Any], fd: int = -1) -> int:
        """Waits while too many requests are open."""
        while (resource := self._try_send(call, kind, body, fd)) is None:
            oldest = next(iter(self._open.values()), call)
            if oldest is not call and not oldest.done.wait(CALL_TIMEOUT):
                raise DeadlineError(f"{self._uri} has not answered any of {MAX_REQUESTS} requests within {CALL_TIMEOUT:g} s")
        self._link.flush(Lane.CONTROL)
        return resource

    def _try_send(self, call: Call, kind: ResourceType | None, body: Callable[[int], Any], fd: int) -> int | None:
        with self._link.step:
            if fd >= 0:
                return self._link.send_with_descriptor(lambda: self._write(call, kind, body), fd)
            with self._link.lock:
                return self._write(call, kind, body)

    def _write(self, call: Call, kind: ResourceType | None, body: Callable[[int], Any]) -> int | None:
        """The provisional id under which it was asked for (0 for no resource), or None while too many requests are open."""
        if len(self._open) >= MAX_REQUESTS:
            return None
        session = self._link.session
        resource = 0 if kind is None else session.provisional(kind)
        self._open[session.request(body(resource))] = call
        return resource
