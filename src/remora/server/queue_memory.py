"""The memory of a session's buffers, charged to its quota for as long as it is really held (H07, H17)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from remora.errors import Error
from remora.hal.semaphore import Semaphore, Timepoint

if TYPE_CHECKING:
    from remora.hal.buffer import Buffer
    from remora.hal.device import Device
    from remora.hal.queue import Queue
    from remora.server.dispatch import Dispatcher
    from remora.server.quotas import Charge

__all__ = ["allocate", "deallocate", "provide"]


def allocate(dispatcher: Dispatcher, device: Device, size: int) -> Buffer:
    """Allocate at once, within the quota. Raises which limit is reached; then nothing is held."""
    memory = dispatcher.quotas.memory
    memory.take(size)
    try:
        buffer = device.allocate(size)
    except BaseException:
        memory.give_back(size)
        raise
    if memory.limit is not None:
        dispatcher.quotas.charge_memory(buffer.holder, size)
    return buffer


def provide(dispatcher: Dispatcher, queue: Queue, buffer: Buffer, wait: tuple[Timepoint, ...]) -> Timepoint:
    """Give a late buffer its memory. The quota is asked at the operation's turn, when what goes before it has gone."""
    quotas = dispatcher.quotas
    if quotas.memory.limit is None:
        return queue.provide(buffer, wait=wait)
    holder, size = buffer.holder, buffer.size
    charges: list[Charge] = []
    gate = Semaphore(name="quota of memory")
    ready = queue.barrier(wait=wait)

    def take() -> None:
        if ready.semaphore._value < ready.value:  # the queue has failed, and with it what waits for the gate
            return
        try:
            quotas.memory.take(size)
        except Error as error:
            gate.fail(error)
            return
        charges.append(quotas.charge_memory(holder, size))
        gate.signal(1)

    def provided() -> None:
        if point.semaphore._value < point.value:
            for charge in charges:
                charge.settle()

    ready.on_done(take)
    point = queue.provide(buffer, wait=gate.at(1))
    point.on_done(provided)
    return point


def deallocate(dispatcher: Dispatcher, queue: Queue, buffer: Buffer, wait: tuple[Timepoint, ...]) -> Timepoint:
    """Give memory back at the operation's turn; from then on the quota has room for what comes behind it."""
    charge = dispatcher.quotas.charge_of(buffer.holder)
    point = queue.deallocate(buffer, wait=wait)
    if charge is not None:
        point.on_done(charge.settle)
    return point
