"""One direction of a shared-memory stream: a ring of bytes with one writer and one reader, mostly in two processes.

    control block, 64 bytes a line     line 0  TAIL   bytes written since the beginning; the writer's
                                       line 1  HEAD   bytes read since the beginning; the reader's
                                       line 2  READER_ASLEEP   set by the reader, cleared by the writer, which then signals `data`
                                       line 3  WRITER_ASLEEP   set by the writer, cleared by the reader, which then signals `room`
                                       line 4  READER_GONE     set by the reader when it will not read any more
    data       `capacity` bytes, a power of two: byte n of the stream lies at n % capacity

Nobody sleeps in vain: who is about to sleep sets the flag, passes a fence, and looks once more; who moves a number passes a fence
and looks at the flag. A reader arms (sets its flag) only before it sleeps, so a writer ahead of it signals nothing.

Nobody reads the `data` event to take it down: the reader sleeps in an edge-triggered poll, where each signal counts once. Only when
somebody else polls the event (`watched`) does the reader keep it true: after each call an empty ring is armed and the event down,
any other has it up.

The other side is not trusted: numbers that cannot be raise OSError EBADMSG, and nothing outside the ring is touched.
"""

from __future__ import annotations

import errno
import os
import platform
import threading
from collections.abc import Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from remora.carriers.shm.copy import LARGE, read_at, write_at

if TYPE_CHECKING:
    from remora.carriers.carrier import Span

__all__ = ["CONTROL_BYTES", "Ring", "RingReader", "RingWriter"]

CONTROL_BYTES: Final = 320
#: Indexes of u64 numbers in the control block, each on a cache line of its own.
TAIL, HEAD, READER_ASLEEP, WRITER_ASLEEP, READER_GONE = 0, 8, 16, 24, 32
#: A locked instruction orders everything on x86; elsewhere acquire and release keep one side each in order, so it takes two.
FENCES: Final = 1 if platform.machine() in {"x86_64", "AMD64"} else 2


class Ring:
    """Where one direction lies: a part of a memfd, mapped, and its two eventfds. Used through its reader or its writer."""

    __slots__ = ("capacity", "control", "data", "data_event", "fd", "mask", "offset", "room_event")

    def __init__(self, region: memoryview, fd: int, offset: int, capacity: int, data_event: int, room_event: int) -> None:
        start = offset + CONTROL_BYTES
        self.control = region[offset:start].cast("Q")
        self.data = region[start : start + capacity]
        self.fd = fd
        self.offset = start
        self.capacity = capacity
        self.mask = capacity - 1
        self.data_event = data_event
        self.room_event = room_event


class _End:
    """What both ends have. A fence is a lock that nobody else has, taken and released: that orders all memory accesses."""

    __slots__ = ("_acquire", "_capacity", "_control", "_data", "_mask", "_release", "_ring")

    def __init__(self, ring: Ring) -> None:
        lock = threading.Lock()
        self._ring = ring
        self._control, self._data = ring.control, ring.data
        self._capacity, self._mask = ring.capacity, ring.mask
        self._acquire, self._release = lock.acquire, lock.release

    def _held(self, tail: int, head: int) -> int:
        """Bytes between the two. Raises OSError for numbers that no sound peer writes."""
        held = tail - head
        if 0 <= held <= self._capacity:
            return held
        raise OSError(errno.EBADMSG, f"the peer broke the shared memory: {held} bytes in a ring of {self._capacity}")

    def _fence(self) -> None:
        for _ in range(FENCES):
            self._acquire()
            self._release()


class RingWriter(_End):
    """The writing end. One thread at a time, except `full` and `give_up`."""

    __slots__ = ("_end", "_tail")

    def __init__(self, ring: Ring) -> None:
        super().__init__(ring)
        self._tail: int = ring.control[TAIL]
        self._end = self._tail  # up to where there was room when the reader's number was last read

    def put(self, spans: Sequence[Span]) -> int:
        """Copy in what there is room for; 0 when there is none: then `room` is signalled when there is again."""
        control, tail = self._control, self._tail
        if control[READER_GONE]:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        start = tail & self._mask
        if (
            len(spans) == 1
            and (size := len(span := _flat(spans[0]))) < LARGE
            and start + size <= self._capacity
            and (tail + size <= self._end or self._room(tail) >= size)
        ):
            self._data[start : start + size] = span
        else:
            size = self._put_long(spans, self._room(tail) or self._room_or_sleep())
        if size:
            if FENCES > 1:
                self._fence()
            control[TAIL] = self._tail = tail + size
            self._acquire()
            self._release()
            if control[READER_ASLEEP]:
                control[READER_ASLEEP] = 0
                _signal(self._ring.data_event)
        return size

    def _room(self, tail: int) -> int:
        head = self._control[HEAD]
        room = self._capacity - self._held(tail, head)
        self._end = head + self._capacity
        return room

    def _put_long(self, spans: Sequence[Span], room: int) -> int:
        """Several spans, or one that wraps, is cut, or is large."""
        ring, tail = self._ring, self._tail
        for span in spans:
            view = memoryview(span).cast("B")[:room]
            self._copy_in(view, tail & ring.mask)
            tail += len(view)
            room -= len(view)
        return tail - self._tail

    def full(self) -> bool:
        """Whether there is no room; then `room` is signalled when there is again. Any thread."""
        _drain(self._ring.room_event)
        return not self._room_or_sleep()

    def give_up(self) -> None:
        """The reader has died without a word: the next `put` fails. Any thread."""
        self._control[READER_GONE] = 1

    def _room_or_sleep(self) -> int:
        self._control[WRITER_ASLEEP] = 1
        self._fence()
        return self._capacity - self._held(self._tail, self._control[HEAD])

    def _copy_in(self, view: memoryview, start: int) -> None:
        ring, size = self._ring, len(view)
        first = min(size, ring.capacity - start)
        if size >= LARGE:
            write_at(ring.fd, view[:first], ring.offset + start)
            write_at(ring.fd, view[first:], ring.offset)
        else:
            ring.data[start : start + first] = view[:first]
            ring.data[: size - first] = view[first:]


class RingReader(_End):
    """The reading end. One thread at a time, except `waiting`, `leave` and `wake`.

    `watched`: somebody polls the `data` event; set it, and `rest` once while nobody reads.
    """

    __slots__ = ("_head", "watched")

    def __init__(self, ring: Ring) -> None:
        super().__init__(ring)
        self._head: int = ring.control[HEAD]
        self.watched = False

    def take(self, room: Span, arm: bool = False) -> int:
        """Copy out what is there and fits; 0 when nothing is: then, with `arm`, the writer signals `data` when it writes."""
        control, head = self._control, self._head
        count = control[TAIL] - head
        if not count and arm:
            control[READER_ASLEEP] = 1
            self._acquire()
            self._release()
            if FENCES > 1:
                self._fence()
            if count := control[TAIL] - head:
                control[READER_ASLEEP] = 0
        if not count:
            if self.watched and not arm:
                self.rest()
            return 0
        if not 0 < count <= self._capacity:
            self._held(count, 0)
        if FENCES > 1:
            self._fence()
        count = min(count, len(room))
        start = head & self._mask
        if count < LARGE and start + count <= self._capacity:
            room[:count] = self._data[start : start + count]  # type: ignore[index]  # a receive is given writable room
        else:
            self._copy_out(memoryview(room)[:count], start)
        if FENCES > 1:
            self._fence()
        control[HEAD] = self._head = head + count
        self._acquire()
        self._release()
        if control[WRITER_ASLEEP]:
            control[WRITER_ASLEEP] = 0
            _signal(self._ring.room_event)
        if self.watched:
            self.rest()
        return count

    def look(self, until_ns: int) -> bool:
        """Look again and again until then (perf_counter_ns), or until `leave`: whether bytes came. The writer need not signal."""
        control, head = self._control, self._head
        control[READER_ASLEEP] = 0
        while control[TAIL] == head:
            if perf_counter_ns() >= until_ns or control[READER_GONE]:
                return False
        return True

    def waiting(self) -> bool:
        """Whether bytes are there. Any thread."""
        return bool(self._control[TAIL] != self._head)

    def leave(self) -> None:
        """Tell the writer that nothing is read any more. Any thread."""
        self._control[READER_GONE] = 1

    def wake(self) -> None:
        """Wake the thread that sleeps for bytes, if one does. Any thread."""
        _signal(self._ring.data_event)

    def rest(self) -> None:
        """Leave the ring and the event as somebody who polls it expects them."""
        _drain(self._ring.data_event)
        if not self.arm():
            _signal(self._ring.data_event)

    def arm(self) -> bool:
        """From now on the writer signals `data` when it writes. False when bytes are there already."""
        control = self._control
        control[READER_ASLEEP] = 1
        self._fence()
        if control[TAIL] == self._head:
            return True
        control[READER_ASLEEP] = 0
        return False

    def _copy_out(self, room: memoryview, start: int) -> None:
        ring, count = self._ring, len(room)
        first = min(count, ring.capacity - start)
        if count >= LARGE:
            read_at(ring.fd, room[:first], ring.offset + start)
            read_at(ring.fd, room[first:], ring.offset)
        else:
            room[:first] = ring.data[start : start + first]
            room[first:] = ring.data[: count - first]


def _flat(span: Span) -> Span:
    return span if type(span) is bytearray or type(span) is bytes else memoryview(span).cast("B")


def _signal(event: int) -> None:
    try:
        os.eventfd_write(event, 1)
    except BlockingIOError:  # a counter at its end is up already
        return


def _drain(event: int) -> None:
    try:
        os.eventfd_read(event)
    except BlockingIOError:
        return
