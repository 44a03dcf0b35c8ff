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
from remora.drivers.remote.file import ClientFile, ServerFile, open_client_file, open_server_file
from remora.drivers.remote.loading import load_executable
from remora.drivers.remote.profile import RemoteProfile
from remora.drivers.remote.queue import RemoteQueue
from remora.drivers.remote.semaphore import RemoteSemaphore
from remora.drivers.remote.virtual_memory import RemotePhysicalMemory, RemoteReservation
from remora.hal.artifact import Artifact
from remora.hal.buffer import Access
from remora.hal.command_buffer import CommandBuffer
from remora.hal.device import Device, DeviceInfo
from remora.hal.manifest import encode_info
from remora.hal.profile import Profile, Sink
from remora.hal.semaphore import Semaphore
from remora.hal.specialization import ExecutableInfo
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
        #: Whether the server's memory can be used in place, as far as is known: no more after it was told of none.
        self.in_place = host.segments is not None
        self._queues = tuple(RemoteQueue(self, queue, axis) for queue, axis in enumerate(axes))

    @property
    def queues(self) -> Sequence[RemoteQueue]:
        """See `Device.queues`."""
        return self._queues

    @property
    def _ended(self) -> bool:
        return self._closed or self.host.link.session.failure is not None

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
        self._end_profile()
        self._closed = True
        if not self.host.device_closed():
            error = self._closed_error()
            for queue in self._queues:
                queue.fail(error)
            self._fail_semaphores(error)
        for queue in self._queues:
            queue.calls.join()

    def count_in(self, size: int) -> None:
        """Memory of this size was made."""
        with self._counts:
            self._count_freed()
            self._live += 1
            self._bytes += size
            self._peak = max(self._peak, self._bytes)

    def count_out(self, size: int) -> None:
        """Memory of this size is gone. Takes no lock: a destructor may call it anywhere."""
        self._freed.append(size)

    def forget(self, buffer: RemoteBuffer) -> None:
        """A buffer is not used any more. Takes no lock: a destructor may call it anywhere."""
        self.count_out(buffer.size)
        self.host.forget(buffer.resource)

    def _count_freed(self) -> None:
        while self._freed:
            self._live -= 1
            self._bytes -= self._freed.popleft()

    def _allocate(self, size: int) -> RemoteBuffer:
        return self._counted(self.host.allocate(self, size))

    def _late_buffer(self, size: int) -> RemoteBuffer:
        return self._counted(self.host.allocate(self, size, late=True))

    def _counted(self, buffer: RemoteBuffer) -> RemoteBuffer:
        self.count_in(buffer.size)
        return buffer

    def _reserve(self, size: int) -> RemoteReservation:
        return RemoteReservation(self, size)

    def _physical(self, size: int) -> RemotePhysicalMemory:
        self.host.flush_garbage()
        return RemotePhysicalMemory(self, size)

    def _semaphore(self, initial: int) -> Semaphore:
        semaphore = RemoteSemaphore(self.host.pump, None, initial)
        failure = self.host.link.session.failure
        if failure is not None:
            semaphore.fail(failure)
        return semaphore

    def _load(self, target: Target, artifact: Any, info: ExecutableInfo, constants: tuple[int, ...]) -> RemoteExecutable:
        resource = load_executable(self.host, self.ordinal, target, encode_info(info), Artifact.of(artifact).view, constants)
        return RemoteExecutable(self, target, info, constants, resource)

    def _host_file(self, fd: int, name: str, access: Access) -> ClientFile:
        return open_client_file(self, fd, name, access)

    def _server_file(self, name: str, access: Access, fresh: bool) -> ServerFile:
        return open_server_file(self, name, access, fresh)

    def _event(self) -> RemoteEvent:
        return self.host.create_event(self)

    def _new_profile(self, sink: Sink) -> Profile:
        return RemoteProfile(self, sink, self.host.profiles)

    def _prepare(self, commands: CommandBuffer) -> None:
        commands.prepared = RemoteCommandBuffer(self.host, self.ordinal, commands)

    def _discard(self, commands: CommandBuffer) -> None:
        commands.prepared.close()
