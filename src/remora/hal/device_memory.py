"""Memory that a device names by address: the blocks of buffers, the globals of code, and what a device has allocated."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from weakref import WeakSet

from remora.errors import ClosedError, OutOfMemoryError
from remora.hal.memory import LateMemory

__all__ = ["Block", "CodeMemory", "DeviceMemory"]


class Block(LateMemory):
    """The memory of one buffer. The buffer and every operation hold it; it goes with the last of them, or with the device."""

    __slots__ = ("_address", "_memory")

    def __init__(self, memory: DeviceMemory, size: int) -> None:
        super().__init__(size)
        self._memory = memory
        self._address = 0

    def _allocate(self) -> None:
        self._address = self._memory.take(self.size)
        self._counted = True
        self._memory.live.add(self)

    def _count_out(self) -> None:
        self._memory.drop(self.size)

    @property
    def address(self) -> int:
        """Where it is. Raises NotMadeError before it is there, and why when it never will be."""
        if not self._address:
            raise self._missing()
        return self._address

    def end(self) -> None:
        """The last reference was dropped, or the device was closed: the memory goes. Safe to repeat."""
        address, self._address = self._address, 0
        if address:
            self._failure = ClosedError("the device of this buffer was closed; open it again")
            self._memory.give_back(address)

    def __del__(self) -> None:
        self.retire()
        self.end()


class CodeMemory:
    """The memory of a global, which is its code's: `code` stays loaded as long as this."""

    def __init__(self, code: object, address: int, size: int) -> None:
        self.code = code
        self.address = address
        self.size = size

    def retire(self) -> None:
        """Nothing of the device's memory comes back."""


class DeviceMemory(ABC):
    """What a device has allocated. Any thread may call any method; `drop` and `give_back` are called by the collector too.

    Memory that nothing uses any more is freed with the next allocation, or with `end_all`.
    """

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._lock = threading.Lock()
        self.live: WeakSet[Block] = WeakSet()
        self._buffers = self._bytes = self._bytes_peak = 0
        self._taken: set[int] = set()
        self._dropped: deque[int] = deque()
        self._given_back: deque[int] = deque()

    def take(self, size: int) -> int:
        """The address of `size` fresh bytes. Raises OutOfMemoryError that says how much there is."""
        with self._lock:
            self._settle()
            address = self._take(max(size, 1))
            self._taken.add(address)
            self._count(size)
            return address

    def _count(self, size: int) -> None:
        self._buffers += 1
        self._bytes += size
        self._bytes_peak = max(self._bytes_peak, self._bytes)

    def drop(self, size: int) -> None:
        """Book a buffer out."""
        self._dropped.append(size)

    def give_back(self, address: int) -> None:
        """Nothing uses it any more."""
        self._given_back.append(address)

    def statistics(self) -> tuple[int, int, int]:
        """(buffers, bytes, most bytes)."""
        with self._lock:
            self._book()
            return self._buffers, self._bytes, self._bytes_peak

    def end_all(self) -> None:
        """The device is closed: everything is freed, whoever holds it or is dropping it just now."""
        for block in tuple(self.live):
            block.end()
        with self._lock:
            self._settle()
            while self._taken:
                self._free(self._taken.pop())

    def missing(self, size: int, free: int, total: int) -> OutOfMemoryError:
        """The error for `size` bytes that are not there."""
        return OutOfMemoryError(
            f"asked for {size:,} bytes, {free:,} of {total:,} are free on the GPU: close a buffer, or end what else uses it",
            origin=self._origin,
        )

    def _settle(self) -> None:
        self._book()
        while self._given_back:
            address = self._given_back.popleft()
            if address in self._taken:
                self._taken.remove(address)
                self._free(address)

    def _book(self) -> None:
        while self._dropped:
            self._buffers -= 1
            self._bytes -= self._dropped.popleft()

    @abstractmethod
    def _take(self, size: int) -> int:
        """Driver: allocate; the address. `_lock` is held. A driver whose calls need a context enters it in `take`, before this."""

    @abstractmethod
    def _free(self, address: int) -> None:
        """Driver: free. `_lock` is held. Raises nothing."""
