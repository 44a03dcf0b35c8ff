"""The domain: devices, allocations, graphs, with limits that are fixed when it is made (requirements G01, G02, G10)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING

from remora.errors import DeadlineError, UnsupportedError, UsageError
from remora.graph.graph import Graph
from remora.graph.handoff import Handoff
from remora.graph.lane import HOST, Lane, LaneName
from remora.graph.placement import DEVICE, Kind, Placement
from remora.graph.scheduler import Scheduler
from remora.graph.storage import Storage
from remora.graph.trace import ExecutionTrace, Tracer
from remora.graph.uses import WRITE, Use
from remora.graph.view import GraphBuffer, View
from remora.hal.access import open as open_device
from remora.hal.device import Device

if TYPE_CHECKING:
    from types import TracebackType

    from remora.graph.budget import MemoryBudget, MemoryReservation
    from remora.graph.statistics import Statistics
    from remora.hal.buffer import Access, Buffer

__all__ = ["Runtime", "RuntimeOptions"]

_names = count(1)


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """Limits of a runtime. Raises UsageError for capacities below one.

    `max_submissions`: pending at once, over all graphs. `graph_slots`: of one graph, pending or looked at. `memory_budget`: a
    ceiling that may be shared with others. `whole_graph`: a graph waits for all of a conflicting one, not only for the regions that
    conflict.
    """

    memory_budget: MemoryBudget | None = None
    max_submissions: int = 64
    graph_slots: int = 2
    whole_graph: bool = False

    def __post_init__(self) -> None:
        if self.max_submissions < 1 or self.graph_slots < 1:
            raise UsageError("max_submissions and graph_slots are at least 1")


class Runtime:
    """Devices with one order of work. Made from devices, which stay the caller's, or from URIs, which are opened when first needed.

    Example: `with Runtime("cpu") as runtime: buffer = runtime.allocate(4096, HOST_VISIBLE)`. The first device has three lanes,
    upload, compute and download; each further one is an engine with a lane of its own. Any thread may call any method.
    """

    def __init__(self, *devices: Device | str, options: RuntimeOptions | None = None) -> None:
        if not devices:
            raise UsageError("give at least one device, or the URI of one")
        self.options = options or RuntimeOptions()
        self._given = devices
        self._devices: dict[int, Device] = {index: device for index, device in enumerate(devices) if isinstance(device, Device)}
        self._opened: list[Device] = []
        self._opening = threading.Lock()
        lanes = [Lane(index, name, 0 if index <= HOST else index - HOST, None) for index, name in enumerate(_lane_names(devices))]
        self.scheduler = Scheduler(lanes, self.options.max_submissions, whole_graph=self.options.whole_graph)
        self._tracer = Tracer(self.scheduler)
        for index in tuple(self._devices):
            self._connect(index)

    def __repr__(self) -> str:
        return f"<Runtime over {', '.join(map(str, self._given))}>"

    # -- devices --------------------------------------------------------------------------------------------------------------

    def device(self, engine: int = 0) -> Device:
        """A device of it, opened now if it was given as a URI. Raises UsageError for a number too many, and what opening raises."""
        self.scheduler.check_open()
        if not 0 <= engine < len(self._given):
            raise UsageError(f"there is no engine {engine}; this runtime has {len(self._given)}")
        with self._opening:
            if engine not in self._devices:
                device = open_device(str(self._given[engine]))
                self._opened.append(device)
                self._devices[engine] = device
                self._connect(engine)
            return self._devices[engine]

    def _connect(self, engine: int) -> None:
        """Give the lanes of an engine their queues. The first queue is the host's, whose maps wait for all that is on it."""
        queues, lanes = self._devices[engine].queues, self.scheduler.lanes
        if engine:
            lanes[HOST + engine].queue = queues[1 % len(queues)]
            return
        for name in LaneName:
            lanes[name].queue = queues[(name + 1) % len(queues)]

    def engine_of(self, device: Device) -> int:
        """The number of a device. Raises UsageError when it is none of this runtime's."""
        for engine, mine in self._devices.items():
            if mine is device:
                return engine
        raise UsageError("the kernel was loaded on a device that is none of this runtime's: load it on runtime.device()")

    def owns(self, view: View) -> bool:
        """Whether a view belongs to this domain."""
        return view.storage.scheduler is self.scheduler

    def same_domain(self, other: Runtime) -> bool:
        """Whether two handles are the same domain."""
        return self.scheduler is other.scheduler

    # -- memory ---------------------------------------------------------------------------------------------------------------

    @property
    def memory_budget(self) -> MemoryBudget | None:
        """The ceiling that was given."""
        return self.options.memory_budget

    def allocate(self, size: int, placement: Placement = DEVICE) -> GraphBuffer:
        """Zeroed memory. The budget is charged before it is made, and gets it back after it is gone.

        Raises UsageError for a size below one, UnsupportedError for a placement on an engine that is not there, OutOfMemoryError
        when the device has no room, BusyError when the budget has none now.
        """
        if size < 1:
            raise UsageError(f"an allocation has at least one byte, not {size}")
        self._check_placement(placement)
        reservation = None if self.memory_budget is None else self.memory_budget.reserve(size)
        made: dict[int, Buffer] = {}
        try:
            for engine in placement.engines:
                made[engine] = self.device(engine).allocate(size)
            buffer = self._store(size, placement, made, reservation)
        except BaseException:
            for each in made.values():
                each.close()
            if reservation is not None:
                reservation.release()
            raise
        with self.scheduler.lock:
            self._clear(buffer)
        return buffer

    def adopt(self, buffer: Buffer, placement: Placement = DEVICE) -> GraphBuffer:
        """Take a HAL buffer of one of the devices into this domain, with its contents. It stays the caller's to close, afterwards.

        All its uses must be done, and it may be used through this runtime alone from now on. Raises UsageError when it is of
        another device, UnsupportedError for `shared_with`.
        """
        engine = placement.engines[0]
        if placement.kind is Kind.SHARED:
            raise UnsupportedError("a shared allocation has memory on two engines: allocate one and copy")
        if buffer.device is not self.device(engine):
            raise UsageError(f"the buffer is not of engine {engine}")
        held = self.memory_budget is not None and self.memory_budget.covers(buffer)
        reservation = None if self.memory_budget is None or held else self.memory_budget.reserve(buffer.size)
        return self._store(buffer.size, placement, {engine: buffer}, reservation, adopted=True)

    def _check_placement(self, placement: Placement) -> None:
        if placement.kind in {Kind.LOCAL, Kind.SHARED} and not 0 < placement.engine < len(self._given):
            raise UnsupportedError(f"there is no further engine {placement.engine}; this runtime has {len(self._given)} devices")

    def _store(
        self,
        size: int,
        placement: Placement,
        made: dict[int, Buffer],
        reservation: MemoryReservation | None,
        *,
        adopted: bool = False,
    ) -> GraphBuffer:
        storage = Storage(self.scheduler, size, placement, made, reservation, adopted=adopted)
        with self.scheduler.lock:
            self.scheduler.counters.allocate(size)
            self.scheduler.counters.imports += placement.kind is Kind.SHARED
        return GraphBuffer(storage, 0, size)

    def _clear(self, buffer: GraphBuffer) -> None:
        """Fill each replica with zeros, in order before any use. Under the scheduler's lock."""
        for engine, memory in buffer.storage.replicas.items():
            lane = self.scheduler.lanes[HOST + engine if engine else LaneName.COMPUTE]
            assert lane.queue is not None  # the device is open
            if lane.held:  # nothing may overtake on a lane, and this should not stand behind a callback
                memory.device.queue.fill(memory, b"\0").wait()
                continue
            lane.planned += 1
            uses = (Use(buffer.key, 0, buffer.size, WRITE),)
            self.scheduler.frontier.add(lane.index, lane.planned, uses)
            lane.launch(lane.planned, lane.queue.fill(memory, b"\0").value)

    # -- work -----------------------------------------------------------------------------------------------------------------

    def graph(self, name: str = "") -> Graph:
        """Begin to describe a pipeline; `name` is for traces and pictures."""
        self.scheduler.check_open()
        self.device(0)
        return Graph(self, name or f"graph {next(_names)}")

    def handoff(
        self, *uses: tuple[View, Access], fence: Callable[[], object] | None = None, timeout: float | None = None
    ) -> Handoff:
        """Hand buffers over to other code for a `with` block, inside the order of work (requirement G10). See `Handoff`."""
        return Handoff(self, uses, fence, timeout)

    def start_trace(self, capacity: int = 4096) -> None:
        """Begin to keep when regions ran, at most `capacity` of them, the newest. Raises BusyError while a trace runs."""
        self._tracer.start(capacity, list(self._devices.items()))

    def finish_trace(self) -> ExecutionTrace | None:
        """End it and give what was kept; None when none runs. Wait for completions first: it waits for no work."""
        return self._tracer.finish()

    def statistics(self) -> Statistics:
        """The counters now."""
        with self.scheduler.lock:
            self.scheduler.look(poll=True)
            self.scheduler.settle_forgotten()
            return self.scheduler.counters.snapshot(sum(lane.planned > 0 for lane in self.scheduler.lanes))

    # -- the end --------------------------------------------------------------------------------------------------------------

    def close(self, timeout: float | None = None) -> None:
        """Take nothing more, let pending work end, and close the devices that it opened. Safe to repeat.

        Without `timeout` it waits as long as the devices take. Raises DeadlineError after `timeout` seconds; call it again then.
        """
        deadline = None if timeout is None else monotonic() + timeout
        scheduler = self.scheduler
        with scheduler.lock:
            scheduler.closed = True
            pending = tuple(scheduler.pending)
        for submission in pending:
            if not scheduler.wait_for(submission, deadline):
                raise DeadlineError("work of the runtime is still pending: close it again, or close the device")
        scheduler.host.stop()
        scheduler.watcher.stop()
        self._tracer.finish()
        for device in self._opened:
            device.close()
        scheduler.quarantined.clear()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _lane_names(devices: Sequence[Device | str]) -> list[str]:
    return ["compute", "upload", "download", "host", *(f"engine {index}" for index in range(1, len(devices)))]
