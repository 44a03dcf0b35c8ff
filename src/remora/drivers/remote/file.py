"""Files as the server knows them: its own by their names, and this program's by their descriptors (H23)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from remora.base.ids import ResourceType
from remora.carriers.carrier import Capability
from remora.drivers.remote.calls import Call
from remora.errors import UnsupportedError
from remora.hal.buffer import Access
from remora.hal.file import File, HostFile
from remora.session.state import Lane
from remora.wire.file_calls import FileOpen, FileRegister

if TYPE_CHECKING:
    from remora.drivers.remote.device import RemoteDevice

__all__ = ["ClientFile", "ServerFile", "open_client_file", "open_server_file"]


class ServerFile(File):
    """A file of the server's machine, open there; `resource` is its id."""

    __slots__ = ("resource",)
    device: RemoteDevice

    def __init__(self, device: RemoteDevice, name: str, access: Access, size: int, resource: int) -> None:
        self.resource = resource
        super().__init__(device, name, access, size)

    def _release(self) -> None:
        self.device.host.forget(self.resource)


class ClientFile(HostFile):
    """A file of this process. `resource` is its id on a server that has its descriptor too, or 0: then its bytes travel."""

    __slots__ = ("resource",)
    device: RemoteDevice

    def __init__(self, device: RemoteDevice, fd: int, name: str, access: Access) -> None:
        self.resource = 0
        super().__init__(device, fd, name, access)

    def _release(self) -> None:
        super()._release()
        if self.resource:
            self.device.host.forget(self.resource)


def open_server_file(device: RemoteDevice, name: str, access: Access, fresh: bool) -> ServerFile:
    """Have the server open one of its files; one round trip."""
    calls, call = device.host.calls, Call()
    calls.make(call, ResourceType.FILE, lambda resource: FileOpen(resource, device.ordinal, access, fresh, name))
    opened = calls.answer(call, f"open {name}")
    return ServerFile(device, name, access, opened.size, opened.resource)


def open_client_file(device: RemoteDevice, fd: int, name: str, access: Access) -> ClientFile:
    """A file of this process, whose descriptor belongs to it. Where the connection passes descriptors the server gets a copy."""
    file = ClientFile(device, fd, name, access)
    if Capability.POSIX_FD not in device.host.link.carriers[Lane.CONTROL].capabilities:
        return file
    calls, call, found = device.host.calls, Call(), os.fstat(fd)
    try:
        calls.make(
            call,
            ResourceType.FILE,
            lambda resource: FileRegister(resource, device.ordinal, access, found.st_dev, found.st_ino, name),
            fd,
        )
        file.resource = calls.answer(call, f"take the descriptor of {name}").resource
    except UnsupportedError:  # something between here and the server moves bytes and drops descriptors
        return file
    except BaseException:
        file.close()
        raise
    return file
