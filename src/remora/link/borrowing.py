"""Transfers by one copy: the peer lends the memory at its end, and a thread here copies to or from there (H20, H32).

The thread takes one piece of each loan in turn, so a small transfer passes large ones. From its LEND on it is the only one that
touches a transfer's memory: whoever ends the lane leaves the end of the transfer to it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from remora.errors import BrokenError, Error
from remora.hal.copy_team import CopyTeam, helpers_here
from remora.hal.copying import copy_memory
from remora.hal.threads import start_thread
from remora.link.courtesy import Courtesy
from remora.link.incoming import Incoming
from remora.link.outgoing import Outgoing
from remora.link.shared_memory import SharedSegment
from remora.wire.bulk import Lent

__all__ = ["Borrowed", "Borrower", "Loan", "copy_in_pieces"]

#: Bytes of a copy while no small commands come and go: some 2 ms. Smaller pieces cost more, see performance.md.
PIECE = 16 << 20


def copy_in_pieces(target: memoryview, source: memoryview, courtesy: Courtesy) -> None:
    """Copy all of `source` to the beginning of `target`, in this thread, and let small commands go first between the pieces."""
    at = 0
    while at < source.nbytes:
        size = courtesy.step(min(PIECE, source.nbytes - at))
        copy_memory(target[at : at + size], source[at : at + size])
        at += size
        courtesy.give_way()


class Loan:
    """Lender: memory that the peer uses. `done` hears of the end; `declined` says that the peer cannot and has not."""

    __slots__ = ("declined", "done", "error", "size")

    def __init__(self, size: int, done: Callable[[Error | None], None], declined: Callable[[], None]) -> None:
        self.size = size
        self.done = done
        self.declined = declined
        self.error: Error | None = None


class Borrowed:
    """Borrower: a transfer, and where the peer's end of it is."""

    __slots__ = ("at", "lent", "offset", "segment", "transfer", "transfer_id")

    def __init__(self, transfer_id: int, transfer: Outgoing | Incoming, lent: Lent, offset: int) -> None:
        self.transfer_id = transfer_id
        self.transfer = transfer
        self.lent = lent
        self.offset = offset
        self.segment: SharedSegment | None = None
        self.at = 0

    def done(self, error: Error | None) -> None:
        """Tell who asked for the transfer. Nothing touches its memory any more."""
        if self.transfer.done is not None:
            self.transfer.done(error)

    def copy(self, size: int, team: CopyTeam) -> bool:
        """Copy at most this many bytes; True when all are there."""
        assert self.segment is not None
        assert self.transfer.view is not None
        begin, end = self.at, min(self.at + size, self.lent.size)
        own, shared = self.transfer.view[begin:end], self.segment.part(self.offset + begin, end - begin)
        if isinstance(self.transfer, Outgoing):
            self.segment.warm(self.offset + begin, end - begin)
            team.copy(shared, own)
        else:
            team.copy(own, shared)
        self.at = end
        return end == self.lent.size


class Borrower:
    """The thread that copies. `segment(id)` gives mapped memory of the peer or None. May block, raises why the session ended."""

    def __init__(self, segment: Callable[[int], SharedSegment | None], activity: Callable[[], int]) -> None:
        self._segment = segment
        self._courtesy = Courtesy(activity)
        self._lock = threading.Lock()  # entered by itself: Ctrl-C may come in the middle of entering a Condition
        self._work = threading.Condition(self._lock)
        self._loans: deque[Borrowed] = deque()
        self._failure: Error | None = None
        self._thread: threading.Thread | None = None

    def start(
        self,
        name: str,
        returned: Callable[[Borrowed], None],
        declined: Callable[[Borrowed], None],
        broken: Callable[[Error], None],
    ) -> None:
        """Run the thread. `returned` takes a loan that is copied, `declined` one that cannot be, `broken` why the lane fails.

        Safe to repeat. Raises BusyError when the system gives no more threads.
        """
        if self._thread is None:
            self._returned, self._declined, self._broken = returned, declined, broken
            self._team = CopyTeam(helpers_here(), f"remora bulk copy {name}")
            self._thread = start_thread(self._run, f"remora bulk copy {name}")

    def take(self, loan: Borrowed) -> None:
        """Copy this one. Any thread may call, without locks that a transfer's `done` needs."""
        with self._lock:
            failure = self._failure
            if failure is None:
                self._loans.append(loan)
                self._work.notify()
        if failure is not None:
            loan.done(failure)

    def stop(self, error: Error) -> None:
        """The lane failed: after the piece that it is at, the thread ends what it has with this. Safe to repeat."""
        with self._lock:
            self._failure = self._failure or error
            self._work.notify()

    def join(self) -> None:
        """Wait for the thread, after `stop`."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _next(self) -> Borrowed | None:
        with self._work:
            while not self._loans and self._failure is None:
                self._work.wait()
            return None if self._failure is not None else self._loans.popleft()

    def _run(self) -> None:
        while (loan := self._next()) is not None:
            failure = self._attempt(loan)
            if failure is not None:
                loan.done(failure)
                self._broken(failure)
            loan = None  # it holds memory
        self._team.stop()
        with self._work:
            left = tuple(self._loans)
            self._loans.clear()
        for loan in left:
            loan.done(self._failure)

    def _attempt(self, loan: Borrowed) -> Error | None:
        """Do a piece; why the lane fails, without the frames that hold memory."""
        try:
            self._serve(loan)
        except Error as error:
            return error.copy()
        except MemoryError:
            return BrokenError("this process has no memory for a transfer; close something here")
        return None

    def _serve(self, loan: Borrowed) -> None:
        if loan.segment is None:
            loan.segment = self._segment(loan.lent.segment)
            if loan.segment is None:
                self._declined(loan)
                return
            loan.segment.part(loan.offset, loan.lent.size)  # all of it, before anything is copied
            self._courtesy.begin()
        complete = loan.copy(self._courtesy.step(PIECE * (self._team.count + 1)), self._team)
        self._courtesy.give_way()
        if complete:
            self._returned(loan)
            loan.done(None)
        else:
            self.take(loan)
