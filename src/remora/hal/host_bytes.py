"""How the host gets at the bytes of a buffer at an operation's turn, to fill them from a file or to write them into one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from remora.hal.file import HostFile

__all__ = ["PIECE", "BytesInPieces", "BytesInPlace", "HostBytes"]

#: Bytes that are in host memory at a time where the host does not address the buffer's.
PIECE: Final = 4 << 20


class HostBytes(Protocol):
    """The bytes of a buffer or view. They keep its memory."""

    def pull(self, file: HostFile, file_offset: int) -> None:
        """Fill them with what is at an offset of a file. Raises what `HostFile.read_at` does, and what the memory does."""

    def push(self, file: HostFile, file_offset: int) -> None:
        """Write them at an offset of a file. Raises what `HostFile.write_at` does, and what the memory does."""


class BytesInPlace(NamedTuple):
    """The host addresses them: `memory` is called at the operation's turn."""

    memory: Callable[[], memoryview]

    def pull(self, file: HostFile, file_offset: int) -> None:
        """See `HostBytes`."""
        file.read_at(file_offset, self.memory())

    def push(self, file: HostFile, file_offset: int) -> None:
        """See `HostBytes`."""
        file.write_at(file_offset, self.memory())


class BytesInPieces(NamedTuple):
    """They are copied by way of host memory: when `read(start, into)` and `write(start, data)` return, they have done it."""

    size: int
    read: Callable[[int, memoryview], None]
    write: Callable[[int, memoryview], None]

    def pull(self, file: HostFile, file_offset: int) -> None:
        """See `HostBytes`."""
        for start, piece in self._pieces():
            file.read_at(file_offset + start, piece)
            self.write(start, piece)

    def push(self, file: HostFile, file_offset: int) -> None:
        """See `HostBytes`."""
        for start, piece in self._pieces():
            self.read(start, piece)
            file.write_at(file_offset + start, piece)

    def _pieces(self) -> Iterator[tuple[int, memoryview]]:
        """Where each begins, and the host memory of all of them."""
        host = memoryview(bytearray(min(self.size, PIECE)))
        return ((start, host[: self.size - start]) for start in range(0, self.size, PIECE))
