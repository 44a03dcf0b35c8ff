"""How a server ends a session that works: drained when the server stops, or because nothing was asked of it for too long (H06).

Both are judged from the times that are passed in, by the session's link thread, each time around.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from remora.session.state import Lane

if TYPE_CHECKING:
    from remora.server.runner import SessionRunner

__all__ = ["Drain", "IdleWatch"]

#: Seconds between two looks at a session that drains.
LOOK = 0.01
#: Seconds that commands which go on coming are still taken: what was on its way when the server was told to stop is run.
LAST_CALL = 0.2
#: Seconds that the client has to take the last answers.
SETTLE = 1.0


class Drain:
    """Ends a session once what it has in flight is done, or when its time is over.

    taking     until the queue lane has nothing more, at most LAST_CALL; commands that come later are not run
    waiting    until every command taken is done and reported, and every request answered
    asking     two PINGs: between its two answers the client's link thread reads the queue lane, so it has the last ADVANCE
    """

    def __init__(self, runner: SessionRunner, reason: str, timeout: float, now: float) -> None:
        self._runner = runner
        self._reason = reason
        self._timeout = timeout
        self._last_call = now + min(LAST_CALL, timeout)
        self._deadline = now + timeout
        self._settled = 0.0
        self._received = -1
        self._until: dict[int, int] | None = None
        self._asked: list[int] = []

    def look(self, now: float) -> float:
        """Go on; returns when to look again."""
        if self._until is None:
            self._listen(now)
        left = self._left()
        if now < self._deadline and (left or not self._told(now)):
            return min(now + LOOK, self._deadline)
        missing = f"; {left} commands or requests were not done within {self._timeout:g} s" if left else ""
        self._runner.stop(self._reason + missing)
        return math.inf

    def _listen(self, now: float) -> None:
        """Take commands until two looks find none, or for LAST_CALL: what is taken then is what will be done."""
        runner = self._runner
        with runner.dispatcher.lock, runner.link.lock:
            received = runner.link.carriers[Lane.QUEUE].statistics().bytes_received
            if received == self._received or now >= self._last_call:
                runner.takes_commands = False
                self._until = {axis: window.received for axis, window in runner.link.session.completion.items()}
            self._received = received

    def _left(self) -> int:
        """What is not done, or not even read."""
        link, until = self._runner.link, self._until
        with link.lock:
            windows = link.session.completion
            commands = sum(
                min(window.in_flight, max(0, (until[axis] if until else window.received) - window.reported))
                for axis, window in windows.items()
            )
            left = commands + link.session.open_requests
        return left or int(until is None or link.unsent(Lane.QUEUE) > 0)

    def _told(self, now: float) -> bool:
        """Whether the client has the last answers, as far as one can know."""
        link = self._runner.link
        heartbeat = link.session.heartbeat
        if not self._asked:
            self._settled = now + SETTLE
        elif not heartbeat.answered(self._asked[-1]):
            return now >= self._settled
        elif len(self._asked) == 2:
            return True
        with link.lock:
            if link.session.failure is None:
                self._asked.append(link.session.ask())
        link.flush(Lane.CONTROL)
        return False


class IdleWatch:
    """Tells when nothing was asked for `timeout` seconds. Heartbeats ask for nothing."""

    def __init__(self, timeout: float, now: float) -> None:
        self.timeout = timeout
        self._since = now
        self._activity = 0

    def look(self, now: float, activity: int, unfinished: int) -> float:
        """When to look again; `now` when the session is idle for too long. `activity` is a count that every request moves."""
        if unfinished or activity != self._activity:
            self._activity = activity
            self._since = now
        return max(now, self._since + self.timeout)
