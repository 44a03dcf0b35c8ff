"""What ACCEPT says about the devices: their facts as wire entries, and one axis for each of their queues."""

from __future__ import annotations

from collections.abc import Sequence

from remora.base.frontier import MAX_FRONTIER
from remora.base.ids import AxisDomain, make_axis
from remora.errors import UsageError
from remora.hal.device import DeviceInfo
from remora.wire.catalog import DeviceEntry, HeapEntry

__all__ = ["MACHINE", "axes_of", "entries_of"]

#: The server's machine index and the session epoch inside axes.
MACHINE = 1
SESSION_EPOCH = 1


def entries_of(infos: Sequence[DeviceInfo]) -> tuple[DeviceEntry, ...]:
    """The catalog. All devices together have at most MAX_FRONTIER queues; where there would be more, each gets its share."""
    if not 1 <= len(infos) <= MAX_FRONTIER:
        raise UsageError(f"a server has 1 to {MAX_FRONTIER} devices, not {len(infos)}")
    share = MAX_FRONTIER // len(infos)
    return tuple(
        DeviceEntry(
            info.name,
            info.driver,
            tuple((target.family, target.key) for target in info.targets),
            tuple(HeapEntry(heap.name, heap.size, heap.max_allocation, heap.alignment) for heap in info.heaps),
            min(info.queue_count, share),
            info.page_size,
            tuple((extension.namespace, extension.operations) for extension in info.extensions),
        )
        for info in infos
    )


def axes_of(entries: Sequence[DeviceEntry]) -> tuple[tuple[int, int], ...]:
    """(axis, epoch 0) for every queue, ascending."""
    return tuple(
        (make_axis(SESSION_EPOCH, MACHINE, AxisDomain.QUEUE, device, queue), 0)
        for device, entry in enumerate(entries)
        for queue in range(entry.queue_count)
    )
