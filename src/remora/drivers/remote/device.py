"""A device of the server, with the methods of a local one (H01)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from remora.base.snapshot import DeviceStatistics, LinkStatistics
from remora.drivers.remote.buffer import RemoteBuffer
from remora.drivers.remote.command_buffer import RemoteCommandBuffer
from remora.drivers.remote.event import RemoteEvent
from remora.drivers.remote.executable import RemoteExecutable
from remora.drivers.remote.queue import RemoteQueue
from remora.drivers.remote.semaphore import RemoteSemaphore
from remora.hal.command_buffer import CommandBuffer
from remora.hal.device import Device, DeviceInfo
from remora.hal.dlpack import host_bytes
from remora.hal.executable import KernelInfo
from remora.hal.manifest import encode_kernels
from remora.hal.semaphore import Semaphore
from remora.hal.target import Target

if TYPE_CHECKING:
    from remora.drivers.remote.host import RemoteHost

__all__ = ["RemoteDevice"]


class RemoteDevice(Device):
    """Device `ordinal` of a host. Facts come from the catalog; memory, code and queues are on the server."""

    def __init__(self, host: RemoteHost, ordinal: int, info: DeviceInfo, axes: Sequence[int]) -> None:
        super().__init__(f"{host.uri}", info)
        self.host = host
        self.ordinal = ordinal
        self._counts = threading.Lock()
        self._live = self._bytes = self._peak = 0
        self._freed: deque[int] = deque()
        self._queues = tuple(RemoteQueue(self, queue, axis) for queue, axis in enumerate(axes))

    @property
    def queues(self) -> Sequence[RemoteQueue]:
        """See `Device.queues`."""
        return self._queues

    def statistics(self) -> DeviceStatistics:
        """See `Device.statistics`; counted on this side."""
        with self._counts:
            self._count_freed()
            return DeviceStatistics(self._live, self._bytes, self._peak, sum(queue.dispatches for queue in self._queues))

    def link_statistics(self) -> LinkStatistics:
        """What went over the connection: round trips, bytes, commands, sends."""
        return self.host.statistics()

    def close(self) -> None:
        """See `Device.close`."""
        if not self._closed:
            self._closed = True
            if not self.host.device_closed():
                error = self._closed_error()
                for queue in self._queues:
                    queue.fail(error)
                self._fail_semaphores(error)

    def forget(self, buffer: RemoteBuffer) -> None:
        """A buffer is not used any more. Takes no lock: a destructor may call it anywhere."""
        self._freed.append(buffer.size)
        self.host.forget(buffer.resource)

    def _count_freed(self) -> None:
        while self._freed:
            self._live -= 1
            self._bytes -= self._freed.popleft()

    def _allocate(self, size: int) -> RemoteBuffer:
        buffer = self.host.allocate(self, size)
        with self._counts:
            self._count_freed()
            self._live += 1
            self._bytes += size
            self._peak = max(self._peak, self._bytes)
        return buffer

    def _semaphore(self, initial: int) -> Semaphore:
        semaphore = RemoteSemaphore(self.host.pump, None, initial)
        failure = self.host.link.session.failure
        if failure is not None:
            semaphore.fail(failure)
        return semaphore

    def _load(self, target: Target, artifact: Any, kernels: Sequence[KernelInfo]) -> RemoteExecutable:
        resource = self.host.load(self.ordinal, target, encode_kernels(kernels), host_bytes(artifact))
        return RemoteExecutable(self, target, kernels, resource)

    def _event(self) -> RemoteEvent:
        return self.host.create_event(self)

    def _prepare(self, commands: CommandBuffer) -> None:
        commands.prepared = RemoteCommandBuffer(self.host, self.ordinal, commands)

    def _discard(self, commands: CommandBuffer) -> None:
        commands.prepared.close()
