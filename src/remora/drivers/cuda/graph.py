"""A captured stream as a CUDA graph: launched by one call, the arguments of its kernels set anew where they differ.

Setting a node takes a quarter of launching a kernel (H200, cuda-bindings 13.3: 1.7 and 6.6 us), and what is unchanged is not set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from remora.drivers.cuda._ffi import call, driver
from remora.drivers.cuda.arguments import ArgumentBlock
from remora.drivers.cuda.places import Launching

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remora.drivers.cuda.device import CudaDevice
    from remora.drivers.cuda.stream import Stream
    from remora.hal.executable import Grid
    from remora.hal.host_queue import Step

__all__ = ["Graph"]

#: Other calls of the capturing thread do no harm: the collector may come, and what it gives back are calls of the driver.
CAPTURE = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED


class Node:
    """A kernel node: what it runs when no patch changes it. Of its bindings, those in `slots` (-1: none) come from a table.

    Its arguments are in memory of the graph's at every launch that sets it: `extra` is where, as the vendor's driver takes it.
    """

    __slots__ = ("_fixed", "_grid_now", "_parameters", "constants", "grid", "handle", "program", "slots")

    def __init__(self, handle: Any, launching: Launching, slots: Sequence[int], extra: int) -> None:
        self.handle = handle
        self.program = launching.program
        self.grid = launching.grid
        self.constants = launching.constants
        self.slots = slots
        self._fixed = launching.addresses()
        self._parameters = parameters = driver.CUDA_KERNEL_NODE_PARAMS()
        parameters.func = self.program.function
        parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ = self.program.workgroup
        parameters.sharedMemBytes = self.program.shared_bytes
        parameters.extra = extra
        self._grid_now: Grid = (0, 0, 0)

    def addresses(self, there: Sequence[int]) -> list[int]:
        """Of its bindings, under the addresses of the slots."""
        return [fixed if slot < 0 else there[slot] for fixed, slot in zip(self._fixed, self.slots, strict=True)]

    def parameters(self, grid: Grid) -> Any:
        """For a launch over this grid; until the next call."""
        parameters = self._parameters
        if grid != self._grid_now:
            parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ = self._grid_now = grid
        return parameters


class Graph:
    """Launched by one thread at a time; it runs once at a time, also in several streams. Its owner keeps memory and code alive.

    `slots` says of each dispatch which slots of the recording its bindings are, `there` where those are in this capture; a graph
    without `slots` always runs as captured.
    """

    def __init__(
        self,
        device: CudaDevice,
        stream: Stream,
        steps: Mapping[int, Step],
        slots: Mapping[int, Sequence[int]] | None,
        there: Sequence[int],
    ) -> None:
        self._device = device
        self.patchable = slots is not None
        self._nodes: dict[int, Node] = {}
        self._graph: Any = None
        self._run: Any = None
        self._block = ArgumentBlock()
        device.context.residents.add(self)
        call(driver.cuStreamBeginCapture, stream.handle, CAPTURE)
        try:
            for number, step in steps.items():
                step.work(*step.args)
                if slots is not None:
                    self._note(number, step.args, slots, stream)
        finally:
            self._graph = call(driver.cuStreamEndCapture, stream.handle)
        self._run = call(driver.cuGraphInstantiate, self._graph, 0)
        self._there = [*there]
        self._stale: set[int] = set()  # nodes that do not run as recorded

    def launch(self, stream: Stream, there: Sequence[int], patches: Mapping[int, Launching]) -> None:
        """Run it with the slots at these addresses, these nodes with these launches, and all else as recorded."""
        if self.patchable:
            stale = self._stale | {number for slot in self._moved(there) for number in self._takers[slot]}
            self._stale = stale | patches.keys()  # should a call fail, all of them are set again
            self._there = [*there]
            for number in stale - patches.keys():
                node = self._nodes[number]
                self._set(node, node.grid, node.constants, node.addresses(there))
            for number, patch in patches.items():
                self._set(self._nodes[number], patch.grid, patch.constants, patch.addresses())
            self._stale = set(patches)
        call(driver.cuGraphLaunch, self._run, stream.handle)

    def _moved(self, there: Sequence[int]) -> Iterable[int]:
        return (slot for slot, (now, then) in enumerate(zip(there, self._there, strict=True)) if now != then)

    @cached_property
    def _takers(self) -> list[list[int]]:
        """For each slot, the nodes with a binding from it."""
        takers: list[list[int]] = [[] for _ in self._there]
        for number, node in self._nodes.items():
            for slot in {*node.slots} - {-1}:
                takers[slot].append(number)
        return takers

    def _note(self, number: int, args: Sequence[Any], slots: Mapping[int, Sequence[int]], stream: Stream) -> None:
        """The node that was captured last, if it is a kernel's."""
        wanted = args[1]
        if isinstance(wanted, Launching) and all(wanted.grid):
            self._nodes[number] = Node(last_node(stream), wanted, slots[number], self._block.address)

    def _set(self, node: Node, grid: Grid, constants: bytes, addresses: Sequence[int]) -> None:
        self._block.fill(node.program, addresses, constants)
        call(driver.cuGraphExecKernelNodeSetParams, self._run, node.handle, node.parameters(grid))

    def end(self) -> None:
        """See `Resident.end`."""
        run, self._run = self._run, None
        graph, self._graph = self._graph, None
        if graph is not None:
            with self._device.context.lent():
                if run is not None:
                    driver.cuGraphExecDestroy(run)
                driver.cuGraphDestroy(graph)

    def __del__(self) -> None:
        self.end()


def last_node(stream: Stream) -> Any:
    """The node that whatever is captured next will wait for: in one stream, the last."""
    _, _, _, nodes, *_ = call(driver.cuStreamGetCaptureInfo, stream.handle)
    return nodes[0]
