"""What a region does when its turn comes: play a recording, move host memory, or call the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from remora.graph.uses import Use

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from remora.graph.storage import Storage
    from remora.hal.buffer import BufferView
    from remora.hal.command_buffer import CommandBuffer
    from remora.hal.queue import Queue
    from remora.hal.semaphore import Timepoint

__all__ = ["Call", "Launchable", "Recording", "SharedUses", "Transfer"]

SharedUses = tuple[tuple["Storage", int], ...]


class Launchable(Protocol):
    """`lane`: the index of its lane. `shared`: how it uses allocations that two engines share. `by_host`: no queue runs it."""

    lane: int
    shared: SharedUses
    by_host: bool

    def uses(self, table: Sequence[BufferView], keys: Sequence[Use]) -> Sequence[Use]:
        """What it touches in a submission with this binding table; `keys` says which bytes each entry is."""

    def launch(self, queue: Queue, wait: tuple[Timepoint, ...], table: Sequence[BufferView]) -> Timepoint:
        """Submit it. Raises what the queue raises."""

    def run(self) -> object:
        """Do it on the host, when everything before it is done."""

    def close(self) -> None:
        """Let go of what was made for it."""


class _Fixed:
    """A region whose bytes do not depend on the binding table."""

    __slots__ = ("fixed", "lane", "shared")
    by_host = False

    def __init__(self, lane: int, fixed: tuple[Use, ...], shared: SharedUses) -> None:
        self.lane = lane
        self.fixed = fixed
        self.shared = shared

    def uses(self, table: Sequence[BufferView], keys: Sequence[Use]) -> Sequence[Use]:
        """Always the same."""
        return self.fixed

    def launch(self, queue: Queue, wait: tuple[Timepoint, ...], table: Sequence[BufferView]) -> Timepoint:
        raise AssertionError("the host runs it")

    def run(self) -> object:
        raise AssertionError("a queue runs it")

    def close(self) -> None:
        """Most have nothing of their own."""


class Recording(_Fixed):
    """Operations that were recorded once. Those of `slots` (table index, start, stop, access) follow the binding table."""

    __slots__ = ("commands", "slots")

    def __init__(
        self,
        lane: int,
        fixed: tuple[Use, ...],
        shared: SharedUses,
        commands: CommandBuffer,
        slots: tuple[tuple[int, int, int, int], ...],
    ) -> None:
        super().__init__(lane, fixed, shared)
        self.commands = commands
        self.slots = slots

    def uses(self, table: Sequence[BufferView], keys: Sequence[Use]) -> Sequence[Use]:
        if not self.slots:
            return self.fixed
        bound = (
            Use(keys[index].allocation, keys[index].start + start, keys[index].start + stop, access)
            for index, start, stop, access in self.slots
        )
        return (*self.fixed, *bound)

    def launch(self, queue: Queue, wait: tuple[Timepoint, ...], table: Sequence[BufferView]) -> Timepoint:
        return queue.execute(self.commands, table, wait=wait)

    def close(self) -> None:
        self.commands.close()


class Transfer(_Fixed):
    """Bytes between host memory of this process and a buffer."""

    __slots__ = ("buffer", "data", "upload")

    def __init__(
        self, lane: int, fixed: tuple[Use, ...], shared: SharedUses, buffer: BufferView, data: memoryview, *, upload: bool
    ) -> None:
        super().__init__(lane, fixed, shared)
        self.buffer = buffer
        self.data = data
        self.upload = upload

    def launch(self, queue: Queue, wait: tuple[Timepoint, ...], table: Sequence[BufferView]) -> Timepoint:
        move = queue.update if self.upload else queue.read
        return move(self.buffer, self.data, wait=wait)


class Call(_Fixed):
    """A function of the host."""

    __slots__ = ("_call",)
    by_host = True

    def __init__(self, lane: int, fixed: tuple[Use, ...], shared: SharedUses, call: Callable[[], object]) -> None:
        super().__init__(lane, fixed, shared)
        self._call = call

    def run(self) -> object:
        return self._call()
