"""Content by its SHA-256: what one session uploaded, others load without uploading it again (H19).

Content lies in a sealed memory file: whoever has its descriptor can read it, and nobody can change it. The server's parent keeps
such files by digest, as many as fit into its limit, and forgets what was not asked for longest. It never reads them: a session
process computes the digest of what it hands over, and again of what it takes, so a wrong entry is at worst a miss.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import stat
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import final

from remora.errors import UsageError

__all__ = ["MAX_ENTRIES", "Content", "ContentStatistics", "ContentStore", "seal"]

SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
#: Entries of a store: each holds a descriptor.
MAX_ENTRIES = 256


@final
class Content:
    """Bytes in a sealed memory file. Owns the descriptor; `with` closes it. Code that was loaded from it holds one of its own."""

    __slots__ = ("descriptor", "size")

    def __init__(self, descriptor: int) -> None:
        """Take over a descriptor. Raises UsageError, and closes it, when the file is not sealed or is empty."""
        self.descriptor = descriptor
        try:
            sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS == SEALS
            status = os.fstat(descriptor)
        except OSError:
            sealed, status = False, None
        if not sealed or status is None or not stat.S_ISREG(status.st_mode) or not status.st_size:
            self.close()
            raise UsageError("content has to lie in a sealed memory file that is not empty")
        self.size = status.st_size

    def view(self) -> memoryview:
        """The bytes, mapped for reading; valid as long as the view is there."""
        return memoryview(mmap.mmap(self.descriptor, self.size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ))

    def digest(self) -> bytes:
        """The SHA-256 of the bytes."""
        return hashlib.sha256(self.view()).digest()

    def copy(self) -> Content:
        """Another descriptor of the same file."""
        return Content(os.dup(self.descriptor))

    def close(self) -> None:
        """Close the descriptor. Safe to repeat."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Content:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


def seal(data: memoryview) -> Content:
    """A sealed copy of the bytes."""
    descriptor = os.memfd_create("remora-content", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(data)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return Content(descriptor)


@dataclass(frozen=True, slots=True)
class ContentStatistics:
    """What a store holds and has been asked."""

    entries: int
    bytes: int
    hits: int
    misses: int


class ContentStore:
    """Content by digest, at most `limit` bytes and MAX_ENTRIES files of it. Any thread may call."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._entries: OrderedDict[bytes, Content] = OrderedDict()  # the last was used last
        self._bytes = self._hits = self._misses = 0
        self._lock = threading.Lock()

    def find(self, digest: bytes) -> Content | None:
        """A copy of the content with this digest, which the caller closes, or None."""
        with self._lock:
            content = self._entries.get(digest)
            if content is None:
                self._misses += 1
                return None
            self._hits += 1
            self._entries.move_to_end(digest)
            return content.copy()

    def keep(self, digest: bytes, content: Content) -> None:
        """Keep content, which is the store's from here, in place of what had this digest; the caller vouches for the digest."""
        with self._lock:
            self._drop(digest)
            if content.size > self.limit:
                content.close()
                return
            self._entries[digest] = content
            self._bytes += content.size
            while self._bytes > self.limit or len(self._entries) > MAX_ENTRIES:
                self._drop(next(iter(self._entries)))

    def statistics(self) -> ContentStatistics:
        """What it holds and has been asked."""
        with self._lock:
            return ContentStatistics(len(self._entries), self._bytes, self._hits, self._misses)

    def close(self) -> None:
        """Drop everything. Safe to repeat."""
        with self._lock:
            while self._entries:
                self._drop(next(iter(self._entries)))

    def _drop(self, digest: bytes) -> None:
        content = self._entries.pop(digest, None)
        if content is not None:
            self._bytes -= content.size
            content.close()
