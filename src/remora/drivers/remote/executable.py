"""Executables on the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from remora.hal.executable import Executable, KernelInfo
from remora.hal.target import Target

if TYPE_CHECKING:
    from remora.drivers.remote.device import RemoteDevice

__all__ = ["RemoteExecutable"]


class RemoteExecutable(Executable):
    """Code that the server loaded; `resource` is its id there."""

    device: RemoteDevice

    def __init__(self, device: RemoteDevice, target: Target, infos: Sequence[KernelInfo], resource: int) -> None:
        super().__init__(device, target, infos)
        self.resource = resource
        self.closed = False

    def close(self) -> None:
        """See `Executable.close`."""
        if not self.closed:
            self.closed = True
            self.device.host.forget(self.resource)

    def __del__(self) -> None:
        self.close()
