"""How a session reaches the store of content: in the same process, or in the parent over a socket pair of its own.

    FIND   1   session -> parent   kind u8 | 7 x 0 | number u64 | digest 32 bytes
    KEEP   2   session -> parent   kind u8 | 7 x 0 | 0 u64      | digest 32 bytes      + the descriptor of the sealed file
    FOUND  3   parent -> session   kind u8 | 7 x 0 | number u64 | digest 32 bytes      + its descriptor, or none for a miss

Nobody waits: the parent answers what it reads, and drops the answer if the session does not read; the session counts an answer
that does not come in time as a miss. A session that breaks the rules loses its line, and with it the cache, not its life.
"""

from __future__ import annotations

import math
import os
import socket
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import TypeAlias

from remora.errors import UsageError
from remora.link.link import Link
from remora.server.content import Content, ContentStore

__all__ = ["ContentLine", "Contents", "Found", "ParentContents", "StoreContents", "content_pair"]

FIND, KEEP, FOUND = 1, 2, 3
MESSAGE = struct.Struct("<B7xQ32s")
#: Seconds that a session waits for the parent's answer.
PATIENCE = 2.0
#: Messages that are still read from a session that is gone.
MAX_LEFT = 64
_INT = struct.Struct("i")

#: Hears once what there is: the content, which the callee closes, or None.
Found: TypeAlias = Callable[[Content | None], None]


class Contents(ABC):
    """What a session asks of the store. Any thread may call."""

    @abstractmethod
    def find(self, digest: bytes, found: Found) -> None:
        """Call `found` with the content of this digest: at once, or from the link's thread. Its bytes are not checked yet."""

    @abstractmethod
    def keep(self, digest: bytes, content: Content) -> None:
        """Offer content, whose digest this is, to other sessions. The caller goes on owning its descriptor."""

    def attach(self, link: Link) -> None:  # noqa: B027  (only one that asks another process has something to listen to)
        """The session begins: the link's thread listens for answers."""


class StoreContents(Contents):
    """A store in this process."""

    def __init__(self, store: ContentStore) -> None:
        self._store = store

    def find(self, digest: bytes, found: Found) -> None:
        """See `Contents.find`."""
        found(self._store.find(digest))

    def keep(self, digest: bytes, content: Content) -> None:
        """See `Contents.keep`."""
        self._store.keep(digest, content.copy())


class ParentContents(Contents):
    """The parent's store, asked by a session process."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._lock = threading.Lock()
        self._asked: dict[int, tuple[float, Found]] = {}  # by number: when to give up, whom to tell
        self._last = 0
        self._wake: Callable[[], None] = lambda: None

    def attach(self, link: Link) -> None:
        """See `Contents.attach`."""

        def on_answer() -> None:
            if not self._read():
                link.watch(self._line.fileno(), None)

        self._wake = link.wake
        link.watch(self._line.fileno(), on_answer)
        link.chore(self._give_up)

    def find(self, digest: bytes, found: Found) -> None:
        """See `Contents.find`."""
        with self._lock:
            self._last += 1
            number = self._last
            self._asked[number] = monotonic() + PATIENCE, found
        try:
            _send(self._line, MESSAGE.pack(FIND, number, digest))
        except OSError:
            self._answer(number, None)
        else:
            self._wake()

    def keep(self, digest: bytes, content: Content) -> None:
        """See `Contents.keep`. What the parent has no room to hear of now is not kept."""
        with suppress(OSError):
            _send(self._line, MESSAGE.pack(KEEP, 0, digest), content)

    def _read(self) -> bool:
        """Take one answer; False when there will be no more."""
        try:
            data, descriptors = _receive(self._line)
        except BlockingIOError:
            return True
        except OSError:
            data, descriptors = b"", []
        kind, number, _ = MESSAGE.unpack(data) if len(data) == MESSAGE.size else (0, 0, b"")
        if kind != FOUND:
            _close_all(descriptors)
            with self._lock:
                left = tuple(self._asked)
            self._miss(left)
            return False
        self._answer(number, _content_of(descriptors))
        return True

    def _give_up(self, now: float) -> float:
        """A chore of the link: what was not answered in time is a miss."""
        with self._lock:
            late = tuple(number for number, (deadline, _) in self._asked.items() if deadline <= now)
        self._miss(late)
        with self._lock:
            return min((deadline for deadline, _ in self._asked.values()), default=math.inf)

    def _miss(self, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            self._answer(number, None)

    def _answer(self, number: int, content: Content | None) -> None:
        with self._lock:
            _, found = self._asked.pop(number, (0.0, None))
        if found is not None:
            found(content)
        elif content is not None:  # it came too late
            content.close()


class ContentLine:
    """The parent's end of a session's line. `serve` it when `fileno` is readable."""

    def __init__(self, line: socket.socket, store: ContentStore) -> None:
        self._line = line
        self._store = store

    def fileno(self) -> int:
        """The descriptor, or -1 once the line is closed."""
        return self._line.fileno()

    def serve(self) -> None:
        """Answer one message. Never waits, never raises."""
        if self.fileno() < 0:
            return
        try:
            data, descriptors = _receive(self._line)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        kind, number, digest = MESSAGE.unpack(data) if len(data) == MESSAGE.size else (0, 0, b"")
        if kind == FIND and not descriptors:
            self._find(number, digest)
        elif kind == KEEP and (content := _content_of(descriptors)) is not None:
            self._store.keep(digest, content)
        else:
            _close_all(descriptors)
            self.close()

    def _find(self, number: int, digest: bytes) -> None:
        content = self._store.find(digest)
        with suppress(OSError):  # a session that does not read its answers, or is gone
            _send(self._line, MESSAGE.pack(FOUND, number, digest), content)
        if content is not None:
            content.close()

    def finish(self) -> None:
        """The session is gone: take what it has handed over, and close the line."""
        for _ in range(MAX_LEFT):
            self.serve()
        self.close()

    def close(self) -> None:
        """Close the line. Safe to repeat."""
        self._line.close()


def content_pair() -> tuple[socket.socket, socket.socket]:
    """(the parent's end, the session's end)"""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _send(line: socket.socket, message: bytes, content: Content | None = None) -> None:
    """Send a message, with the content's descriptor. Raises OSError, BlockingIOError for example, when it cannot go now."""
    rights = [] if content is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, _INT.pack(content.descriptor))]
    line.sendmsg([message], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def _receive(line: socket.socket) -> tuple[bytes, list[int]]:
    """One message and the descriptor that came with it, if one did; no bytes at the end. Raises as `_send` does."""
    data, rights, _, _ = line.recvmsg(MESSAGE.size + 1, socket.CMSG_LEN(_INT.size), socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC)
    whole = [bytes(part) for level, kind, part in rights if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)]
    return data, [descriptor for part in whole for (descriptor,) in _INT.iter_unpack(part[: len(part) // _INT.size * _INT.size])]


def _content_of(descriptors: list[int]) -> Content | None:
    """The content that came with a message, or None; what is not sealed is closed. The list is empty afterwards."""
    descriptor = descriptors.pop() if descriptors else -1
    if descriptor < 0:
        return None
    with suppress(UsageError):
        return Content(descriptor)
    return None


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
