"""Late buffers: usable at once, with memory that comes and goes when a queue's turn has come (requirement H17).

`Queue.allocate` makes one and provides its memory. Whatever is submitted behind that on the queue may name it; what another queue
does with it has to wait for the timepoint, like for anything else that this queue does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import ref

from remora.errors import Status, UsageError
from remora.hal.semaphore import Semaphore, Timepoint

if TYPE_CHECKING:
    from remora.hal.buffer import Buffer

__all__ = ["NotMadeError", "outcome"]


class NotMadeError(UsageError):
    """A late buffer is looked into before its memory is there.

    A driver that meets it while an operation is submitted looks again at the operation's turn; at its turn it is the failure.
    """

    default = Status.FAILED_PRECONDITION

    def __init__(self, message: str = "", *, code: Status | None = None, origin: str = "") -> None:
        text = "the buffer's memory is not there yet: wait for the timepoint that its allocation returned"
        super().__init__(message or text, code=code, origin=origin)


def outcome(buffer: Buffer) -> Timepoint:
    """What the operation that provides the memory is to signal. When that operation fails, the buffer fails with the cause."""
    made = Semaphore(name="allocation")
    weak = ref(buffer)

    def settled() -> None:
        failure, there = made.failure, weak()
        if failure is not None and there is not None:
            there.fail(failure.copy())

    made.on(1, settled)
    return made.at(1)
