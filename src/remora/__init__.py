"""remora: use an accelerator in another process or on another machine as if it were your own.

    import remora

    with remora.open("remote-tcp://host:5000") as device:      # or "cpu"
        kernels = device.load(remora.Bundle.load("vector.rbundle"))
        ...

`open` gives a device, `connect` a host with all of its devices. Errors are in one tree under `Error`.
"""

from remora.base.snapshot import DeviceStatistics, LinkStatistics
from remora.errors import (
    BrokenError,
    BusyError,
    ClosedError,
    DeadlineError,
    DeviceError,
    DeviceLostError,
    Error,
    NotFoundError,
    OutOfMemoryError,
    PeerError,
    UnsupportedError,
    UsageError,
)
from remora.hal.access import Host, connect, open  # noqa: A004  (remora.open is meant to read like the builtin)
from remora.hal.buffer import Access, Buffer, BufferView, Mapping
from remora.hal.bundle import Bundle
from remora.hal.command_buffer import CommandBuffer
from remora.hal.device import Device, DeviceInfo
from remora.hal.event import Event
from remora.hal.executable import BindingRule, ConstantRule, Executable, GridRule, Kernel, KernelInfo
from remora.hal.file import File
from remora.hal.operation import OperationKind, OperationRecord
from remora.hal.profile import Profile
from remora.hal.queue import Queue
from remora.hal.records import Patch, Slot
from remora.hal.semaphore import Semaphore, Timepoint
from remora.hal.target import Target
from remora.hal.trace import Trace, trace
from remora.hal.variant import KernelVariant
from remora.hal.virtual_memory import PhysicalMemory, Placement, Reservation

__all__ = [
    "Access",
    "BindingRule",
    "BrokenError",
    "Buffer",
    "BufferView",
    "Bundle",
    "BusyError",
    "ClosedError",
    "CommandBuffer",
    "ConstantRule",
    "DeadlineError",
    "Device",
    "DeviceError",
    "DeviceInfo",
    "DeviceLostError",
    "DeviceStatistics",
    "Error",
    "Event",
    "Executable",
    "File",
    "GridRule",
    "Host",
    "Kernel",
    "KernelInfo",
    "KernelVariant",
    "LinkStatistics",
    "Mapping",
    "NotFoundError",
    "OperationKind",
    "OperationRecord",
    "OutOfMemoryError",
    "Patch",
    "PeerError",
    "PhysicalMemory",
    "Placement",
    "Profile",
    "Queue",
    "Reservation",
    "Semaphore",
    "Slot",
    "Target",
    "Timepoint",
    "Trace",
    "UnsupportedError",
    "UsageError",
    "connect",
    "open",
    "trace",
]
