"""Executables on the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from remora.drivers.remote.buffer import RemoteBuffer
from remora.errors import PeerError
from remora.hal.executable import Executable
from remora.hal.exports import Export
from remora.hal.specialization import ExecutableInfo, GlobalRule
from remora.hal.target import Target
from remora.wire.executable_calls import ExecutableGlobal
from remora.wire.export_calls import ExecutableExports, Exports

if TYPE_CHECKING:
    from remora.drivers.remote.device import RemoteDevice

__all__ = ["RemoteExecutable"]


class RemoteGlobal(RemoteBuffer):
    """Memory of the code, named by the server's id from the first moment. It is none of the device's buffers, and not counted."""

    __slots__ = ()

    def _release(self) -> None:
        self.device.host.forget(self.resource)


class RemoteExecutable(Executable):
    """Code that the server loaded; `resource` is its id there."""

    device: RemoteDevice
    closed = True  # until it is made

    def __init__(self, device: RemoteDevice, target: Target, info: ExecutableInfo, constants: Sequence[int], resource: int) -> None:
        super().__init__(device, target, info, constants)
        self.resource = resource
        self.closed = False

    def close(self) -> None:
        """See `Executable.close`."""
        if not self.closed:
            self._close_globals()
            self.closed = True
            self.device.host.forget(self.resource)

    def _exports(self) -> tuple[Export, ...]:
        found: list[Export] = []
        while True:
            asked = ExecutableExports(self.resource, len(found))
            answer: Exports = self.device.host.calls.ask(asked, "tell what the executable exports")
            found += [Export(*entry) for entry in answer.entries]
            if len(found) >= answer.total:
                return tuple(found)
            if not answer.entries:
                raise PeerError(f"the server told {len(found)} of {answer.total} exports and stopped")

    def _global(self, rule: GlobalRule) -> RemoteGlobal:
        found = self.device.host.calls.ask(ExecutableGlobal(self.resource, rule.name), f"find the global {rule.name}")
        return RemoteGlobal(self.device, rule.size, found.resource)

    def __del__(self) -> None:
        self.close()
