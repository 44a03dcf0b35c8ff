"""The class that a queue has while its device is profiled: the queue's own, whose operations say what they are.

Only while a profile is on do queues have it; at all other times they run the same code as ever. `DESCRIBE` knows each operation by
the arguments of the driver's method; what a driver makes of it goes through a method of its own, which it overrides here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from remora.hal.operation import Draft, OperationKind
from remora.hal.records import count_dispatches

if TYPE_CHECKING:
    from remora.hal.command_buffer import CommandBuffer
    from remora.hal.device import Device
    from remora.hal.queue import Queue
    from remora.hal.semaphore import Timepoint

__all__ = ["Overrides", "profile_queues"]

#: Method name -> a function that gets the queue's own method and returns the one to use instead.
Overrides: TypeAlias = Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]]


def _execute(commands: CommandBuffer, *_: Any) -> Draft:
    return Draft(OperationKind.EXECUTE, label=commands.label, dispatches=count_dispatches(commands.records))


#: Driver's method -> what it does, from its arguments.
DESCRIBE: Final[dict[str, Callable[..., Draft]]] = {
    "_barrier": lambda *_: Draft(OperationKind.BARRIER),
    "_dispatch": lambda kernel, grid, *_: Draft(OperationKind.DISPATCH, kernel.name, grid=grid, dispatches=1),
    "_dispatch_indirect": lambda kernel, *_: Draft(OperationKind.DISPATCH, kernel.name, dispatches=1),
    "_fill": lambda buffer, *_: Draft(OperationKind.FILL, size=buffer.size),
    "_update": lambda *args: Draft(OperationKind.UPDATE, size=args[2].nbytes),
    "_read": lambda *args: Draft(OperationKind.READ, size=args[2].nbytes),
    "_copy": lambda source, *_: Draft(OperationKind.COPY, size=source.size),
    "_execute": _execute,
    "_read_file": lambda *args: Draft(OperationKind.READ_FILE, size=args[2].size),
    "_write_file": lambda *args: Draft(OperationKind.WRITE_FILE, size=args[0].size),
    "_provide": lambda buffer, *_: Draft(OperationKind.ALLOCATE, size=buffer.size),
    "_deallocate": lambda buffer, *_: Draft(OperationKind.DEALLOCATE, size=buffer.size),
    "_host_call": lambda *_: Draft(OperationKind.HOST_CALL),
}


def profile_queues(device: Device, overrides: Overrides) -> Callable[[], None]:
    """Give every queue of a device its profiled class, with these overrides; returns what gives each its own again."""
    before = [(queue, type(queue)) for queue in device.queues]
    for queue, own in before:
        cast("Any", queue).__class__ = _profiled(own, tuple(overrides.items()))

    def give_back() -> None:
        for queue, own in before:
            cast("Any", queue).__class__ = own

    return give_back


@cache
def _profiled(own: type[Queue], overrides: tuple[tuple[str, Callable[..., Any]], ...]) -> type[Queue]:
    """The same layout as the queue's own class, so that a queue can change between the two at any moment."""
    methods = {name: override(getattr(own, name)) for name, override in overrides}
    methods |= {name: _described(methods.get(name, getattr(own, name)), describe) for name, describe in DESCRIBE.items()}
    return cast("type[Queue]", type(f"Profiled{own.__name__}", (own,), {"__slots__": (), "__module__": own.__module__, **methods}))


def _described(submit: Callable[..., Timepoint], describe: Callable[..., Draft]) -> Callable[..., Timepoint]:
    def described(queue: Queue, *args: Any) -> Timepoint:
        profile = queue.device._profile
        if profile is None:
            return submit(queue, *args)
        return profile._submit(queue, describe(*args), submit, args)

    return described
