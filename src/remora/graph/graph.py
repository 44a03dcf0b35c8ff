"""Describing a pipeline: nodes in the order in which they must appear to run (requirements G04, G05)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from remora.errors import Status, UnsupportedError, UsageError
from remora.graph.contract import KernelContract, check_bindings, contract_of
from remora.graph.lane import LaneName
from remora.graph.nodes import CallNode, CopyNode, FillNode, KernelNode, Node, Operation, Place, TransferNode, lane_of
from remora.graph.placement import Kind
from remora.graph.prepare import prepare
from remora.graph.scoped import scoped_call
from remora.graph.slot import GraphSlot, SlotKey
from remora.graph.staging import move
from remora.graph.uses import WRITE
from remora.graph.view import View
from remora.hal.dlpack import host_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from remora.graph.executable import ExecutableGraph
    from remora.graph.runtime import Runtime
    from remora.hal.buffer import Access
    from remora.hal.executable import Constants, Grid, Kernel

__all__ = ["Graph"]


class Graph:
    """A builder. Made by `runtime.graph()`; every method appends one node, or raises UsageError and appends none.

    Example:
        graph = runtime.graph()
        graph.upload(a, data)
        graph.kernel(double, [a, b], (n,))
        graph.download(b, result)
        graph.prepare().submit().wait()
    What depends on what follows from the bytes that nodes touch. Recording is for one thread at a time.
    """

    def __init__(self, runtime: Runtime, name: str) -> None:
        self.runtime = runtime
        self.name = name
        self._operations: list[Operation] = []
        self._slots: list[SlotKey] = []
        self._aliases: list[tuple[str, KernelContract, tuple[Place, ...]]] = []
        self._prepared = False

    def __repr__(self) -> str:
        return f"<Graph {self.name}: {len(self._operations)} nodes>"

    def __len__(self) -> int:
        """The number of nodes."""
        return len(self._operations)

    def slot(self, size: int) -> GraphSlot:
        """`size` bytes that each submission binds: `submit(bindings={slot: view})`."""
        slot = GraphSlot(SlotKey(len(self._slots), size), 0, size)
        self._slots.append(slot.key)
        return slot

    def fill(self, target: Place, pattern: bytes = b"\0") -> Node:
        """Repeat a pattern of 1, 2 or 4 bytes."""
        self._check(target)
        if len(pattern) not in (1, 2, 4) or target.size % len(pattern) or target.offset % len(pattern):
            raise UsageError(f"{target.size} bytes at {target.offset} are no whole number of patterns of {len(pattern)} bytes")
        return self._add(FillNode(target, bytes(pattern), lane_of(_home(target))))

    def copy(self, source: Place, target: Place, lane: LaneName | None = None) -> Node:
        """Copy all of `source` to `target`, which is as large. Bytes of one allocation must not overlap.

        The lane is UPLOAD from host-visible memory to the device's own, DOWNLOAD the other way, COMPUTE otherwise, or what `lane`
        says; order follows the bytes, whatever the lane. Between two engines the host copies, on its own lane.
        """
        self._check(source)
        self._check(target)
        if source.size != target.size:
            raise UsageError(f"the source has {source.size} bytes, the target {target.size}", code=Status.OUT_OF_RANGE)
        if source.key == target.key and abs(source.offset - target.offset) < source.size:
            raise UsageError("source and target overlap; copy through another buffer")
        engine = _common_engine(source, target)
        if engine is None:
            assert isinstance(source, View)
            assert isinstance(target, View)
            near, far = source.on(_home(source)), target.on(_home(target))
            return self._add(CallNode(lambda: move(near, far), "copy", ((source, 1), (target, WRITE))))
        if engine:
            return self._add(CopyNode(source, target, lane_of(engine)))
        return self._add(CopyNode(source, target, _copy_lane(source, target) if lane is None else lane))

    def kernel(
        self,
        kernel: Kernel,
        views: Sequence[Place],
        constants: Constants = b"",
        *,
        grid: Grid | None = None,
        contract: KernelContract | None = None,
        aliasing: bool = False,
    ) -> Node:
        """Run `kernel`. Without `grid` it covers as many elements as its first constant says.

        `contract` is what the manifest says if None. Raises UsageError when the bindings do not keep it; `aliasing` allows bindings
        that share written bytes.
        """
        engine = self.runtime.engine_of(kernel.executable.device)
        for view in views:
            self._check(view)
            if isinstance(view, View):
                view.on(engine)
        packed = kernel.pack(constants)
        told = contract_of(kernel, [view.size for view in views], packed)
        if contract is not None:
            if contract.constants != packed:
                raise UsageError(f"{kernel.name}: the contract is for the constants {contract.constants.hex()}, not {packed.hex()}")
            check_bindings(kernel.name, contract, views, aliasing=aliasing)
        check_bindings(kernel.name, told, views, aliasing=aliasing)
        if grid is None:
            grid = kernel.grid_for(*([] if kernel.info.grid.fixed else [_first_count(kernel, packed)]))
        kernel.check_grid(grid)
        if not aliasing:
            self._aliases.append((kernel.name, contract or told, tuple(views)))
        return self._add(KernelNode(kernel, grid, tuple(views), packed, contract or told, lane_of(engine)))

    def upload(self, target: Place, data: Any) -> Node:
        """Copy host memory of this process (buffer protocol, contiguous) to `target`, as it is when the submission's turn has come.

        It must not change from `submit` until the completion.
        """
        return self._transfer(target, host_bytes(data), upload=True)

    def download(self, source: Place, into: Any) -> Node:
        """Copy `source` to writable host memory of this process, which is valid when the completion is there."""
        return self._transfer(source, host_bytes(into, writable=True), upload=False)

    def _transfer(self, view: Place, data: memoryview, *, upload: bool) -> Node:
        self._check(view)
        if isinstance(view, GraphSlot) or 0 not in view.storage.replicas:
            raise UnsupportedError("host memory moves to and from buffers of the first engine: copy from there")
        if data.nbytes != view.size:
            raise UsageError(f"the host memory has {data.nbytes} bytes, the view {view.size}", code=Status.OUT_OF_RANGE)
        return self._add(TransferNode(view, data, upload=upload))

    def call(
        self, function: Callable[..., object], uses: Sequence[tuple[Place, Access]], *, mapped: bool = True, name: str = ""
    ) -> Node:
        """Call `function(*memory)` on a thread of the runtime when everything before it on these bytes is done (requirement G10).

        It gets a memoryview of each view, valid during the call; with `mapped=False` the HAL's views instead, for code that knows
        the device, which must have finished with them when it returns. What it raises fails the graph.
        """
        views: list[tuple[View, Access]] = []
        for view, access in uses:
            self._check(view)
            if isinstance(view, GraphSlot):
                raise UnsupportedError("a callback takes buffers, no slots")
            views.append((view, access))
        places = tuple((view, int(access) & 3) for view, access in views)
        call = scoped_call(function, views, mapped=mapped)
        return self._add(CallNode(call, name or getattr(function, "__name__", "call"), places))

    def prepare(self) -> ExecutableGraph:
        """End the description, infer dependencies, and make what is submitted. Raises UsageError for an empty graph."""
        if self._prepared:
            raise UsageError("the graph is prepared already: describe a new one", code=Status.FAILED_PRECONDITION)
        if not self._operations:
            raise UsageError("the graph is empty: add nodes, then prepare it")
        executable = prepare(self.runtime, self.name, tuple(self._operations), tuple(self._slots), tuple(self._aliases))
        self._prepared = True
        return executable

    def _add(self, operation: Operation) -> Node:
        if self._prepared:
            raise UsageError("the graph is prepared already: describe a new one", code=Status.FAILED_PRECONDITION)
        self._operations.append(operation)
        return Node(len(self._operations) - 1, operation.name)

    def _check(self, place: Place) -> None:
        if isinstance(place, GraphSlot):
            if not (place.key.index < len(self._slots) and self._slots[place.key.index] is place.key):
                raise UsageError("the slot belongs to another graph; use one of this graph.slot()")
        elif not self.runtime.owns(place):
            raise UsageError("the view belongs to another runtime; use buffers of this one")


def _home(place: Place) -> int:
    return 0 if isinstance(place, GraphSlot) else place.placement.engines[0]


def _engines(place: Place) -> tuple[int, ...]:
    return (0,) if isinstance(place, GraphSlot) else place.placement.engines


def _common_engine(source: Place, target: Place) -> int | None:
    """The engine that can copy by itself, or None."""
    return next((engine for engine in _engines(source) if engine in _engines(target)), None)


def _copy_lane(source: Place, target: Place) -> int:
    near, far = (isinstance(place, View) and place.placement.kind is Kind.HOST_VISIBLE for place in (source, target))
    if near == far:
        return LaneName.COMPUTE
    return LaneName.UPLOAD if near else LaneName.DOWNLOAD


def _first_count(kernel: Kernel, packed: bytes) -> int:
    if not kernel.info.constants:
        raise UsageError(f"{kernel.name} has no constants to take a number of elements from: give grid=(x, y, z)")
    return int(kernel._pack.unpack(packed)[0])
