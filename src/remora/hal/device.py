"""Devices: what `remora.open` gives."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final
from weakref import WeakSet

from remora.errors import ClosedError, Error, OutOfMemoryError, UsageError
from remora.hal.command_buffer import CommandBuffer
from remora.hal.dlpack import host_bytes
from remora.hal.event import Event
from remora.hal.semaphore import Semaphore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from remora.base.snapshot import DeviceStatistics
    from remora.hal.buffer import Buffer
    from remora.hal.bundle import Bundle
    from remora.hal.executable import Executable, KernelInfo
    from remora.hal.queue import Queue
    from remora.hal.target import Target

__all__ = ["Device", "DeviceInfo", "Heap"]


@dataclass(frozen=True, slots=True)
class Heap:
    """Memory a device allocates from. Sizes in bytes."""

    name: str
    size: int
    max_allocation: int
    alignment: int = 64


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """The immutable facts of a device: they travel in the catalog, so asking for them costs no round trip.

    Example: `print(device.info.driver, device.info.heaps[0].size)`.
    """

    name: str
    """For people, such as the processor's model name."""
    driver: str
    targets: tuple[Target, ...]
    """What it runs, in order of preference."""
    heaps: tuple[Heap, ...]
    queue_count: int = 1


class Device(ABC):
    """A device, local or remote, with the same methods. Made by `remora.open(uri)`; close it with `with` or `close()`.

    Example: `with remora.open("cpu") as device: buffer = device.upload(b"data")`. Any thread may call any method.
    """

    def __init__(self, uri: str, info: DeviceInfo) -> None:
        self.uri = uri
        self.info = info
        self._closed = False
        self._semaphores: WeakSet[Semaphore] = WeakSet()
        self._semaphores_lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Device {self.uri} {self.info.name!r}{' closed' if self._closed else ''}>"

    @property
    def name(self) -> str:
        """The device's name for people."""
        return self.info.name

    @property
    def targets(self) -> tuple[Target, ...]:
        """The kinds of code it runs, in order of preference."""
        return self.info.targets

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self._closed

    @property
    def queue(self) -> Queue:
        """The first queue, which buffers read and write through."""
        return self.queues[0]

    @property
    @abstractmethod
    def queues(self) -> Sequence[Queue]:
        """All queues; they run beside each other."""

    @final
    def allocate(self, size: int) -> Buffer:
        """A buffer of `size` bytes, contents undefined. Raises OutOfMemoryError when no heap has that much."""
        self._check_open()
        if size < 0:
            raise UsageError(f"a buffer cannot have {size} bytes")
        most = max((heap.max_allocation for heap in self.info.heaps), default=0)
        if size > most:
            raise OutOfMemoryError(f"{self.info.name}: asked for {size:,} bytes, one buffer can have {most:,}", origin=self.uri)
        return self._allocate(size)

    @final
    def upload(self, data: Any) -> Buffer:
        """A buffer with a copy of `data` (buffer protocol or CPU DLPack, contiguous), such as a NumPy array."""
        view = host_bytes(data)
        buffer = self.allocate(view.nbytes)
        try:
            buffer.write(view)
        except BaseException:
            buffer.close()
            raise
        return buffer

    @final
    def load(self, bundle: Bundle) -> Executable:
        """Load the bundle's artifact that fits best. Raises NotFoundError when none fits (it lists what there is)."""
        self._check_open()
        target, artifact = bundle.select(self.targets)
        return self._load(target, artifact, bundle.kernels)

    @final
    def load_artifact(self, target: Target, artifact: Any, kernels: Sequence[KernelInfo]) -> Executable:
        """Load one artifact (bytes-like) made for one of `targets`, with its kernels' contracts."""
        self._check_open()
        if target not in self.targets:
            raise UsageError(f"{self.info.name} does not take {target}; it takes {', '.join(map(str, self.targets))}")
        return self._load(target, artifact, tuple(kernels))

    @final
    def semaphore(self, initial: int = 0) -> Semaphore:
        """A new timeline semaphore at `initial`, for the host and this device's queues to wait for and signal."""
        with self._semaphores_lock:
            self._check_open()
            semaphore = self._semaphore(initial)
            self._semaphores.add(semaphore)
        return semaphore

    @final
    def command_buffer(self, slots: int = 0, *, one_shot: bool = False, label: str = "") -> CommandBuffer:
        """A new recording with a binding table of `slots` entries; `label` names it in traces. See `CommandBuffer`."""
        self._check_open()
        return CommandBuffer(self, slots, one_shot=one_shot, label=label)

    @final
    def event(self) -> Event:
        """A new event, clear, for recordings and the host to set and wait for (H21)."""
        self._check_open()
        return self._event()

    @abstractmethod
    def statistics(self) -> DeviceStatistics:
        """What the device holds and has done, as a frozen value."""

    @abstractmethod
    def close(self) -> None:
        """End everything of this device: pending waits raise ClosedError, memory goes back. Safe to repeat."""

    def __enter__(self) -> Device:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise self._closed_error()

    def _semaphore(self, initial: int) -> Semaphore:
        """Driver: a semaphore of its own kind, where it has one."""
        return Semaphore(initial)

    def _event(self) -> Event:
        """Driver: an event of its own kind, where it has one."""
        return Event(self, self.semaphore())

    def _prepare(self, commands: CommandBuffer) -> None:
        """Driver: a recording is sealed. What it makes of it goes into `commands.prepared`; raising refuses the recording."""
        commands.prepared = None

    def _discard(self, commands: CommandBuffer) -> None:
        """Driver: a sealed command buffer is closed; executions may still be in flight."""
        commands.prepared = None

    def _fail_semaphores(self, error: Error) -> None:
        """Driver: the device has ended; `_closed` is set, or nothing can be signalled any more."""
        with self._semaphores_lock:
            semaphores = tuple(self._semaphores)
        for semaphore in semaphores:
            semaphore.fail(error)

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"the device {self.uri} was closed; open it again")

    @abstractmethod
    def _allocate(self, size: int) -> Buffer: ...

    @abstractmethod
    def _load(self, target: Target, artifact: Any, kernels: Sequence[KernelInfo]) -> Executable: ...
