"""A driver's memory, as its buffers and the operations in flight hold it.

A buffer that is closed *retires* its memory: it counts no more, though operations may still use it. The memory itself goes with the
last reference.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

from remora.errors import Error
from remora.hal.late import NotMadeError

if TYPE_CHECKING:
    from typing import Self

__all__ = ["HostMemory", "LateMemory", "Memory"]


class Memory(Protocol):
    """What all memories have in common. They can be named by a weak reference."""

    size: int
    """In bytes: that of the buffer."""

    def retire(self) -> None:
        """The buffer was closed: it counts no more, though operations may still use the memory. Safe to repeat."""


class HostMemory(Memory, Protocol):
    """Memory that the host addresses."""

    def at(self, offset: int, size: int) -> memoryview:
        """The bytes of a range. Raises NotMadeError before they are there, and why when they never will be."""


class LateMemory(ABC):
    """Memory that is there from `make` on: at once, or when the turn of `Queue.allocate` has come (requirement H17)."""

    __slots__ = ("__weakref__", "_counted", "_failure", "_retired", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._failure: Error | None = None
        self._counted = self._retired = False

    def make(self) -> Self:
        """Allocate. Raises OutOfMemoryError."""
        try:
            self._allocate()
        except Error as error:
            self._failure = error.copy()
            raise
        if self._retired:  # the buffer was closed before its memory came
            self.retire()
        return self

    def retire(self) -> None:
        """See `Memory.retire`."""
        self._retired = True
        counted, self._counted = self._counted, False
        if counted:
            self._count_out()

    def _missing(self) -> Error:
        """Why it is not there: NotMadeError, or why it never will be."""
        return NotMadeError() if self._failure is None else self._failure.copy()

    @abstractmethod
    def _allocate(self) -> None:
        """Driver: get the memory, and set `_counted` as soon as it counts. Raises OutOfMemoryError."""

    @abstractmethod
    def _count_out(self) -> None:
        """Driver: it counts no more. Called once, by the garbage collector too where the driver's `__del__` retires it."""
