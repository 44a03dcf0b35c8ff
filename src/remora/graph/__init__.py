"""Execution graphs: kernels with declared memory access, inferred dependencies, lanes, bounded submission. Read README.md first."""

from remora.graph.completion import Completion, CompletionProfile
from remora.graph.contract import BindingContract, KernelContract
from remora.graph.executable import ExecutableGraph
from remora.graph.graph import Graph
from remora.graph.handoff import Handoff
from remora.graph.lane import LaneName
from remora.graph.native import NativeSession
from remora.graph.nodes import Node
from remora.graph.placement import DEVICE, HOST_VISIBLE, Placement, local_to, shared_with
from remora.graph.residency import MemoryBudget, ResidencyManager
from remora.graph.runtime import Runtime, RuntimeOptions
from remora.graph.slot import GraphSlot
from remora.graph.statistics import Statistics
from remora.graph.trace import ExecutionTrace, TraceEvent
from remora.graph.view import GraphBuffer, Guard, View

__all__ = [
    "DEVICE",
    "HOST_VISIBLE",
    "BindingContract",
    "Completion",
    "CompletionProfile",
    "ExecutableGraph",
    "ExecutionTrace",
    "Graph",
    "GraphBuffer",
    "GraphSlot",
    "Guard",
    "Handoff",
    "KernelContract",
    "LaneName",
    "MemoryBudget",
    "NativeSession",
    "Node",
    "Placement",
    "ResidencyManager",
    "Runtime",
    "RuntimeOptions",
    "Statistics",
    "TraceEvent",
    "View",
    "local_to",
    "shared_with",
]
