"""What a session owns on the server, by id (H14, H15).

Canonical ids are table slots with a generation; a slot whose generation is used up is retired. A provisional id stays an alias
until its resource is released, or until the failure it stands for is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from remora.base.ids import MAX_GENERATION, ResourceType, describe_id, is_provisional, make_id, split_id, type_of
from remora.errors import BusyError, Error, NotFoundError, PeerError, UsageError
from remora.wire.layout import is_id

if TYPE_CHECKING:
    from remora.hal.buffer import Buffer, BufferView
    from remora.hal.executable import Executable, Kernel

__all__ = ["ResourceTable"]

_NAMES = {
    ResourceType.PHYSICAL_MEMORY: "physical memory",
    ResourceType.BUFFER: "a buffer",
    ResourceType.EXECUTABLE: "an executable",
    ResourceType.COMMAND_BUFFER: "a command buffer",
    ResourceType.EVENT: "an event",
    ResourceType.FILE: "a file",
}


class ResourceTable:
    """Ids to objects. Not thread-safe: the dispatcher's lock guards it.

    `of(kind)` is the part of the table with one kind of object, for a look-up that has no time to ask what it found; `buffers` is
    one of these parts.
    """

    def __init__(self, capacity: int = 1 << 16) -> None:
        self.capacity = capacity
        self._objects: dict[int, Any] = {}
        self._of: dict[ResourceType, dict[int, Any]] = {kind: {} for kind in ResourceType}
        self.buffers: Mapping[int, Buffer] = self._of[ResourceType.BUFFER]
        self._executables: Mapping[int, Executable] = self._of[ResourceType.EXECUTABLE]
        self._aliases: dict[int, int] = {}
        self._provisional_of: dict[int, int] = {}  # what was adopted has only its canonical id, here too
        self._failed: dict[int, Error] = {}
        self.pending: set[int] = set()
        """Ids whose resources are still being made."""
        self._newest: dict[int, int] = {}  # the last provisional id of each kind that came here
        self._generations: list[int] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        return len(self._objects)

    def announce(self, provisional: int, kind: ResourceType) -> None:
        """A resource is being made under this id; until it is `add`ed or `fail`ed, commands that name it wait."""
        self._check_new(provisional, kind)
        self._note(provisional)
        self.pending.add(provisional)

    def add(self, provisional: int, kind: ResourceType, thing: Any, *, in_order: bool = True) -> int:
        """Put an object under a fresh canonical id; its provisional id stays an alias. Raises BusyError when the table is full.

        `in_order` says that provisional ids of this kind come one after the other on its lane (`coming`).
        """
        if provisional not in self.pending:
            self._check_new(provisional, kind)
            if in_order:
                self._note(provisional)
        canonical = make_id(kind, *self._take_slot())
        self.pending.discard(provisional)
        self._objects[canonical] = self._objects[provisional] = thing
        self._of[kind][canonical] = self._of[kind][provisional] = thing
        self._aliases[provisional] = canonical
        self._provisional_of[canonical] = provisional
        return canonical

    def adopt(self, kind: ResourceType, thing: Any) -> int:
        """Put an object under a canonical id that is its only one. Raises BusyError when the table is full."""
        canonical = make_id(kind, *self._take_slot())
        self._objects[canonical] = self._of[kind][canonical] = thing
        self._aliases[canonical] = self._provisional_of[canonical] = canonical
        return canonical

    def fail(self, provisional: int, error: Error) -> None:
        """The resource could not be made: commands that name it fail with this."""
        self.pending.discard(provisional)
        self._note(provisional)
        self._failed[provisional] = error.bare()

    def coming(self, resource: int) -> bool:
        """Whether this is being made, or is a provisional id newer than all of its kind that came: on its way on another lane."""
        if resource in self.pending:
            return True
        kind = resource >> 56
        return is_id(resource, kind, provisional=True) and resource > self._newest.get(kind, 0)

    def of(self, kind: ResourceType) -> Mapping[int, Any]:
        """The objects of one kind that are there now, by both of their ids. Stays up to date."""
        return self._of[kind]

    def get(self, resource: int) -> Any:
        """The object. Raises the failure it stands for, or NotFoundError for an id that is not there (any more)."""
        try:
            return self._objects[resource]
        except KeyError:
            failed = self._failed.get(resource)
            if failed is not None:
                raise failed.copy() from None
            raise NotFoundError(f"there is no {describe_id(resource)} in this session; it was released, or never made") from None

    def find(self, resource: int, kind: ResourceType) -> Any:
        """The object of this kind with this id. Raises NotFoundError, what it failed with, or UsageError for another kind."""
        found = self._of[kind].get(resource)
        if found is None:
            self.get(resource)  # raises why it is not there
            raise UsageError(f"{describe_id(resource)} does not name {_NAMES[kind]}")
        return found

    def view(self, buffer: int, offset: int, length: int) -> Buffer | BufferView:
        """Bytes of a buffer by its id. Raises as `find` does, and UsageError for a range that is not inside."""
        found = self.buffers.get(buffer)
        if found is None:
            found = self.find(buffer, ResourceType.BUFFER)
        return found if offset == 0 and length == found.size else found.view(offset, length)

    def kernel(self, executable: int, ordinal: int) -> Kernel:
        """A kernel by its place in an executable. Raises as `find` does, and UsageError when there is none."""
        found: Executable = self._executables.get(executable) or self.find(executable, ResourceType.EXECUTABLE)
        kernels = found.ordered
        if ordinal >= len(kernels):
            raise UsageError(f"there is no kernel {ordinal}; the executable has {len(kernels)}")
        return kernels[ordinal]

    def release(self, resource: int, give_back: Callable[[Any], None]) -> None:
        """Forget an id; a stale or unknown one is no error."""
        provisional = resource if is_provisional(resource) else self._provisional_of.get(resource, 0)
        self._failed.pop(provisional, None)
        canonical = self._aliases.pop(provisional, None)
        if canonical is None:
            return
        del self._provisional_of[canonical]
        thing, objects = self._objects[canonical], self._of[type_of(canonical)]
        for name in {canonical, provisional}:
            del objects[name], self._objects[name]
        _, generation, _, slot = split_id(canonical)
        if generation < MAX_GENERATION:
            self._free.append(slot)
        give_back(thing)

    def clear(self, give_back: Callable[[Any], None]) -> None:
        """Forget everything: the session ended."""
        for canonical in tuple(self._provisional_of):
            self.release(canonical, give_back)

    def _note(self, provisional: int) -> None:
        kind = provisional >> 56
        self._newest[kind] = max(provisional, self._newest.get(kind, 0))

    def _take_slot(self) -> tuple[int, int]:
        """(generation, slot)"""
        if self._free:
            slot = self._free.pop()
        elif len(self._generations) < self.capacity:
            slot = len(self._generations)
            self._generations.append(0)
        else:
            raise BusyError(
                f"the session's quota of resources: asked for 1, {self.capacity} of {self.capacity} are in use; "
                "release some, or serve with more --session-resources"
            )
        self._generations[slot] += 1
        return self._generations[slot], slot

    def _check_new(self, provisional: int, kind: ResourceType) -> None:
        if not is_provisional(provisional) or type_of(provisional) is not kind:
            raise PeerError(f"{describe_id(provisional)} is no provisional id of a {kind.name.lower()}")
        if provisional in self._aliases or provisional in self._failed or provisional in self.pending:
            raise PeerError(f"{describe_id(provisional)} was used before")
