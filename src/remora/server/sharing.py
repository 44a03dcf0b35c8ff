"""Memory of a session that its client maps: which files it is in, and loans of it for transfers (H20, H32).

A file is a segment under a number that is used once. The client asks for the descriptor of one that it does not know yet; it only
ever gets files in which this session's own devices keep their buffers.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from remora.errors import Error, NotFoundError, UnsupportedError
from remora.hal.late import NotMadeError
from remora.hal.memory_file import MemoryFile, MemoryPlace
from remora.link.borrowing import Loan
from remora.link.link import Link
from remora.wire.bootstrap import CAPABILITY_SHARED
from remora.wire.bulk import MIN_LENT
from remora.wire.sharing_calls import PLACE_SIZE, SegmentOpen, SegmentOpened, encode_place

if TYPE_CHECKING:
    from remora.hal.buffer import Buffer, BufferView
    from remora.hal.queue import Queue
    from remora.hal.semaphore import Timepoint
    from remora.link.transfer import Done
    from remora.server.dispatch import Dispatcher

__all__ = ["Sharing"]

#: Seconds between two looks for segments that the client may let go.
LOOK: Final = 0.5
#: Seconds that a client's control lane may have no room for a descriptor.
PATIENCE: Final = 5.0


class Sharing:
    """Part of the dispatcher. `on` says whether the client maps memory at all. Any thread may call."""

    def __init__(self, dispatcher: Dispatcher, link: Link) -> None:
        accepted = link.session.accepted
        self.on = accepted is not None and bool(accepted.capabilities & CAPABILITY_SHARED)
        self._dispatcher = dispatcher
        self._link = link
        self._lock = threading.Lock()
        self._numbers: WeakKeyDictionary[MemoryFile, int] = WeakKeyDictionary()
        self._files: WeakValueDictionary[int, MemoryFile] = WeakValueDictionary()
        self._last = 0
        self._declined: set[int] = set()
        self._opened: dict[int, ref[MemoryFile]] = {}
        self._gone: deque[int] = deque()
        if self.on:
            link.chore(self._tell_gone)

    def number_of(self, file: MemoryFile) -> int:
        """The number of the segment that this file is."""
        with self._lock:
            number = self._numbers.get(file)
            if number is None:
                number = self._last = self._last + 1
                self._numbers[file] = number
                self._files[number] = file
            return number

    def open(self, request: int, body: SegmentOpen) -> None:
        """Answer with a segment's descriptor."""
        file = self._files.get(body.segment) if self.on else None
        if file is None:
            self._dispatcher.answer(request, NotFoundError(f"there is no segment {body.segment} in this session (any more)"))
            return
        found = os.fstat(file.fd)
        answer = SegmentOpened(file.size, found.st_dev, found.st_ino)
        self._opened[body.segment] = ref(file, lambda _: self._gone.append(body.segment))
        self._link.send_with_descriptor(lambda: self._respond(request, answer), file.fd, PATIENCE)

    def _respond(self, request: int, answer: SegmentOpened) -> None:
        if self._link.session.failure is None:
            self._link.session.respond(request, answer)

    def locate(self, queue: Queue, buffer: Buffer | BufferView, wait: tuple[Timepoint, ...]) -> tuple[Timepoint, bytearray]:
        """When the bytes may be used in place, and where they are (`wire.sharing_calls`): zeros where the client has to copy.

        Raises UnsupportedError in a session that shares no memory.
        """
        if not self.on:
            raise UnsupportedError("a LOCATE in a session that shares no memory")
        place, found = buffer.buffer.place_at_turn(), bytearray(PLACE_SIZE)
        point = queue.barrier(wait=wait)
        if place is not None:
            with suppress(NotMadeError):
                file, offset = place()
                found[:] = encode_place(self.number_of(file), offset + buffer.offset)
        return point, found

    def lend(
        self,
        transfer_id: int,
        size: int,
        place: Callable[[], MemoryPlace] | None,
        offset: int,
        done: Done,
        stream: Callable[[], None],
    ) -> None:
        """Let the client move a transfer by itself, to or from `offset` of what is at `place`; `stream()` where it cannot.

        Raises what `stream` or the lane does.
        """
        found = place() if place is not None and self.on and size >= MIN_LENT else None
        number = 0 if found is None else self.number_of(found.file)
        if found is None or number in self._declined:
            stream()
            return

        def declined() -> None:
            self._declined.add(number)
            try:
                stream()
            except Error as error:
                done(error)

        self._link.bulk.lend(transfer_id, number, found.offset + offset, Loan(size, done, declined))

    def _tell_gone(self, now: float) -> float:
        """A chore of the link: the client lets go what is gone here, which keeps its memory otherwise."""
        gone = [self._gone.popleft() for _ in range(len(self._gone))]
        for number in gone:
            del self._opened[number]
            self._declined.discard(number)
        if gone:
            with suppress(Error):
                self._link.bulk.tell_gone(gone)
        return now + LOOK
