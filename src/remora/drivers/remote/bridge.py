"""This program's files on a remote device: their bytes travel over bulk in pieces, each a transfer of its own (H23).

A command says which transfers they are; the server takes or sends them when its turn comes. Here a job touches the file only when
everything before its command on the queue, and all that it waits for, is done: so a read sees what earlier writes have written.
One thread a connection reads and writes, two pieces a job at most in memory; nothing else ever waits for a disk.

A job that fails aborts its transfers, the server fails the command with that cause, and the queue hears of it as of any failure.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final

from remora.errors import DeviceError, Error
from remora.hal.file import HostFile
from remora.hal.semaphore import Timepoint
from remora.wire.file_commands import AHEAD, FILE_READ, PIECE, piece_count

if TYPE_CHECKING:
    from remora.link.link import Link

__all__ = ["FileBridge"]

#: Pieces of a job in memory: one on its way while the other is read or written.
BLOCKS: Final = 2
#: Blocks that are kept for the next job.
MAX_KEPT: Final = 4


class FileBridge:
    """The jobs of one connection, and their thread. Any thread may call."""

    def __init__(self, link: Link) -> None:
        self.bulk = link.bulk
        self._link = link
        self._lock = threading.Lock()
        self._actions: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._jobs: set[_Job] = set()
        self._thread: threading.Thread | None = None
        self._ended = False
        self._kept: list[memoryview] = []

    def job(self, op: int, file: HostFile, file_offset: int, length: int, transfer_id: int) -> _Job:
        """What a FILE_READ or FILE_WRITE with this transfer id needs here."""
        return (_Reading if op == FILE_READ else _Writing)(self, file, file_offset, length, transfer_id)

    def begin(self, job: _Job, after: tuple[Timepoint, ...]) -> None:
        """The job's command is on its way: do the job when all of `after` is reached. The link's lock may be held."""
        with self._lock:
            if self._ended:
                return
            job.file._hold()
            self._jobs.add(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"remora files {self._link.session.peer}", daemon=True)
                self._thread.start()
        self.put(lambda: job.start_after(after))

    def put(self, action: Callable[[], None]) -> None:
        """Have the thread do something."""
        self._actions.put(action)

    def finish(self, job: _Job) -> None:
        """The job is over: the file is not touched any more."""
        with self._lock:
            if job not in self._jobs:
                return
            self._jobs.remove(job)
        job.file._give_back()

    def block(self, size: int) -> memoryview:
        """Memory for a piece of at most `size` bytes. For the thread."""
        return self._kept.pop() if size == PIECE and self._kept else memoryview(bytearray(size))

    def keep(self, block: memoryview) -> None:
        """Take a block back. For the thread."""
        if len(block) == PIECE and len(self._kept) < MAX_KEPT:
            self._kept.append(block)

    def stop(self) -> None:
        """The session ended: end the thread after what it is doing, and give every file back."""
        with self._lock:
            self._ended = True
        self._actions.put(None)

    def join(self) -> None:
        """Wait for the thread, after `stop`."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            while (action := self._actions.get()) is not None:
                action()
        except BaseException as error:
            self._link.fail(DeviceError(f"the thread that moves files failed: {type(error).__name__}: {error}"))
            raise
        finally:
            for job in tuple(self._jobs):
                self.finish(job)


class _Job(ABC):
    """One command's file. All methods run on the bridge's thread."""

    def __init__(self, bridge: FileBridge, file: HostFile, file_offset: int, length: int, transfer_id: int) -> None:
        self.bridge = bridge
        self.file = file
        self.transfer_id = transfer_id
        self._offset = file_offset
        self._length = length
        self._count = piece_count(length)
        self._transfers = self._count  # in its row
        self._next = 0  # the piece that begins next
        self._open: set[int] = set()  # pieces that have begun and not ended
        self._failed = False

    def start_after(self, after: tuple[Timepoint, ...]) -> None:
        """Begin when all points are reached; if one never will be, the server does not run the command either."""
        for point in after:
            semaphore = point.semaphore
            if semaphore._value >= point.value:
                continue
            if semaphore._failure is not None:
                self.bridge.finish(self)
                return
            point.on_done(lambda: self.bridge.put(lambda: self.start_after(after)))
            return
        for _ in range(min(BLOCKS, self._count)):
            self._advance(self.bridge.block(min(PIECE, self._length)))

    def _advance(self, block: memoryview) -> None:
        """Begin the next piece in this block, if there is one."""
        index = self._next
        if self._failed or index == self._count:
            self.bridge.keep(block)
            return
        self._next = index + 1
        self._open.add(index)
        try:
            self._begin(index, block[: min(PIECE, self._length - index * PIECE)], self._told(index, block))
        except Error as error:
            self._fail(error)

    def _told(self, index: int, block: memoryview) -> Callable[[Error | None], None]:
        """What a transfer calls at its end, from anywhere."""
        return lambda error: self.bridge.put(lambda: self._ended(index, block, error))

    def _ended(self, index: int, block: memoryview, error: Error | None) -> None:
        self._open.discard(index)
        if self._failed:
            return
        try:
            if error is not None:
                raise error
            self._end(index, block[: min(PIECE, self._length - index * PIECE)])
        except Error as failure:
            self._fail(failure)
            return
        self._advance(block)

    def _fail(self, error: Error) -> None:
        """Give up everything that has begun or may have begun on either side."""
        self._failed = True
        for index in (*self._open, *range(self._next, min(self._next + AHEAD, self._transfers))):
            self.bridge.bulk.abort(self._id(index), error)
        self.bridge.finish(self)

    def _id(self, index: int) -> int:
        return self.transfer_id + 2 * index

    def _place(self, index: int) -> int:
        return self._offset + index * PIECE

    @abstractmethod
    def _begin(self, index: int, piece: memoryview, told: Callable[[Error | None], None]) -> None: ...

    @abstractmethod
    def _end(self, index: int, piece: memoryview) -> None: ...


class _Reading(_Job):
    """The file goes to the server."""

    def _begin(self, index: int, piece: memoryview, told: Callable[[Error | None], None]) -> None:
        self.file.read_at(self._place(index), piece)
        self.bridge.bulk.send(self._id(index), piece, told)

    def _end(self, index: int, piece: memoryview) -> None:
        if self._next == self._count and not self._open:
            self.bridge.finish(self)


class _Writing(_Job):
    """The file comes from the server. The last transfer, of nothing, says that it is written."""

    def __init__(self, bridge: FileBridge, file: HostFile, file_offset: int, length: int, transfer_id: int) -> None:
        super().__init__(bridge, file, file_offset, length, transfer_id)
        self._transfers = self._count + 1

    def _begin(self, index: int, piece: memoryview, told: Callable[[Error | None], None]) -> None:
        self.bridge.bulk.expect(self._id(index), piece, told)

    def _end(self, index: int, piece: memoryview) -> None:
        self.file.write_at(self._place(index), piece)
        if self._next == self._count and not self._open:
            self.bridge.finish(self)
            self.bridge.bulk.send(self._id(self._count), memoryview(b""), _ignore)


def _ignore(_: Error | None) -> None:
    """The answer to the command tells the same."""
