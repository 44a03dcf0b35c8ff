"""Memory that one side registers and the other reads and writes directly, past the stream (H32, H33): the contract.

    owner   region = carrier.register(size)      memory of this side, zeroed; `region.view`
    owner   tells the peer `region.key` and passes it `region.fds`, in whatever message it likes
    peer    remote = carrier.attach(key, fds)    then `remote.write(offset, data)` and `remote.read(offset, into)`

Direct access is one-sided: the other side notices nothing and takes no part. What was written before bytes were sent on the same
carrier is there when those bytes have arrived, and so is what the owner wrote in its own view.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

    from remora.carriers.carrier import Span

__all__ = ["Registered", "RemoteRegion"]


class _Closing(ABC):
    @abstractmethod
    def close(self) -> None:
        """Let go of it. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Registered(_Closing):
    """Memory of this side that the peer may read and write. Comes from `Carrier.register`; `close` it before the carrier.

    After `close` the peer's accesses no longer reach anything of this side. UsageError while a part of `view` is in use.
    """

    #: The memory, `size` bytes.
    view: memoryview
    #: What the peer needs to attach, at most 64 bytes.
    key: bytes
    #: What has to travel with the key by `send_fds`; empty where the key alone will do. Borrowed.
    fds: tuple[int, ...]


class RemoteRegion(_Closing):
    """The peer's memory. Comes from `Carrier.attach`. Any thread may use it; accesses of several threads are in no order."""

    #: Bytes.
    size: int

    @abstractmethod
    def write(self, offset: int, data: Span) -> None:
        """Copy `data` to `offset` in the peer's memory; `data` may be used again afterwards.

        Raises UsageError for a range outside the region, ClosedError after `close`, and the carrier's failure.
        """

    @abstractmethod
    def read(self, offset: int, into: Span) -> None:
        """Fill `into` from `offset` of the peer's memory. Raises as `write` does."""
