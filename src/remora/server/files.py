"""Files of one session: what it opens by the server's names or brings along as descriptors, and the commands about them (H23)."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from remora.base.ids import ResourceType
from remora.errors import BusyError, Error, PeerError, Status, UnsupportedError, UsageError
from remora.hal.buffer import Access, Buffer, BufferView
from remora.hal.device import Device
from remora.hal.file import STARVED, File
from remora.hal.queue import Queue
from remora.hal.semaphore import Semaphore, Timepoint
from remora.server.beneath import open_beneath
from remora.server.grants import FileGrant, FileGrants
from remora.server.pieces import PieceRow, refuse_row
from remora.session.state import Lane
from remora.wire.file_calls import FileOpen, FileRegister, Opened
from remora.wire.file_commands import FILE_READ, FileRange

if TYPE_CHECKING:
    from remora.server.dispatch import Dispatcher

__all__ = ["Files", "open_granted"]

_MODES: Final = {Access.READ: "r", Access.WRITE: "w", Access.READ_WRITE: "r+"}
_FLAGS: Final = {Access.READ: os.O_RDONLY, Access.WRITE: os.O_WRONLY, Access.READ_WRITE: os.O_RDWR}


class Files:
    """Part of the dispatcher."""

    def __init__(self, dispatcher: Dispatcher, devices: Sequence[Device], grants: Sequence[FileGrant]) -> None:
        self._dispatcher = dispatcher
        self._devices = devices
        self._grants = FileGrants(grants)

    def open(self, request: int, body: FileOpen) -> None:
        """Open a file that the server offers, and answer with its size."""
        self._answer(request, body.resource, lambda: self._open(body))

    def _answer(self, request: int, provisional: int, make: Callable[[], File]) -> None:
        try:
            file = make()
            resource = self._keep(provisional, file)
        except PeerError:
            raise
        except Error as error:
            self._dispatcher.answer(request, error)
            return
        self._dispatcher.answer(request, Opened(resource, file.size))

    def _keep(self, provisional: int, file: File) -> int:
        """Put it into the table; it is closed when there is no room. No command can name it before the client has its id."""
        try:
            with self._dispatcher.lock:
                return self._dispatcher.table.add(provisional, ResourceType.FILE, file)
        except BaseException:
            file.close()
            raise

    def _open(self, body: FileOpen) -> File:
        fd = open_granted(self._grants, body.name, Access(body.access), fresh=body.fresh)
        return self._take(fd, body.name, body.device, body.access)

    def register(self, request: int, body: FileRegister) -> None:
        """Use the client's file whose descriptor came along, and answer with its size."""
        fd = self._dispatcher.link.carriers[Lane.CONTROL].take_fd()
        self._answer(request, body.resource, lambda: self._register(fd, body))

    def _register(self, fd: int | None, body: FileRegister) -> File:
        if fd is None:
            raise UnsupportedError("the file's descriptor did not arrive here; its bytes have to travel")
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) != (body.st_dev, body.st_ino):
            os.close(fd)
            raise UsageError(f"the descriptor that came with {body.label} is another file's")
        return self._take(fd, body.label, body.device, body.access)

    def _take(self, fd: int, name: str, device: int, access: int) -> File:
        """The file of a descriptor, which is this call's to close. Raises UsageError for what is no regular file, open so."""
        try:
            if device >= len(self._devices):
                raise UsageError(f"there is no device {device}; the server has {len(self._devices)}")
            return self._devices[device].open_file(_Named(fd, name), _MODES[Access(access)])
        finally:
            os.close(fd)

    def run(self, queue: Queue, op: int, body: FileRange, wait: tuple[Timepoint, ...]) -> Timepoint:
        """Submit a FILE_READ or FILE_WRITE."""
        buffer: Buffer | BufferView = self._dispatcher.table.view(body.buffer, body.offset, body.length)
        if body.transfer_id:
            return self._run_counted(queue, op, body, buffer, wait)
        file: File = self._dispatcher.table.find(body.file, ResourceType.FILE)
        if op == FILE_READ:
            return queue.read_file(file, body.file_offset, buffer, wait=wait)
        return queue.write_file(buffer, file, body.file_offset, wait=wait)

    def _run_counted(
        self, queue: Queue, op: int, body: FileRange, buffer: Buffer | BufferView, wait: tuple[Timepoint, ...]
    ) -> Timepoint:
        """With the client's file, which counts as one transfer from its submission to its end."""
        transfers = self._dispatcher.quotas.transfers
        transfers.take()
        try:
            point = self._run_bridged(queue, op, body, buffer, wait)
        except BaseException:
            transfers.give_back()
            raise
        point.on_done(transfers.give_back)
        return point

    def _run_bridged(
        self, queue: Queue, op: int, body: FileRange, buffer: Buffer | BufferView, wait: tuple[Timepoint, ...]
    ) -> Timepoint:
        """The pieces go straight into or out of the buffer's memory while the queue waits at a gate; else through a copy."""
        access = Access.WRITE if op == FILE_READ else Access.READ
        buffer.buffer.check_use(buffer.offset, body.length, access)
        gate = Semaphore(name="file")
        memory = buffer.buffer.memory_at_turn()
        start, end = buffer.offset, buffer.offset + body.length
        copy = None
        if memory is None:
            copy = memoryview(bytearray(body.length))
            memory, start, end = (lambda: copy), 0, body.length
        ready = queue.read(buffer, copy, wait=wait) if copy is not None and op != FILE_READ else queue.barrier(wait=wait)
        opened = partial(open_gate, gate)

        def begin() -> None:
            if ready.semaphore._value < ready.value:  # something before it failed: the client does not even touch its file
                return
            try:
                PieceRow(self._dispatcher.link.bulk, op, body, memory()[start:end], opened).start()
            except Error as error:
                self.refuse(body, error)
                gate.fail(error)

        ready.on_done(begin)
        if copy is not None and op == FILE_READ:
            return queue.update(buffer, copy, wait=gate.at(1))
        return queue.keep(buffer, access, wait=gate.at(1))

    def refuse(self, body: FileRange, error: Error) -> None:
        """The command cannot run. Where something before it failed, the client does not even touch its file."""
        if body.transfer_id:
            refuse_row(self._dispatcher.link.bulk, body, error)


class _Named:
    """A descriptor with the name by which the client knows the file."""

    def __init__(self, fd: int, name: str) -> None:
        self._fd = fd
        self.name = name

    def fileno(self) -> int:
        return self._fd


def open_gate(gate: Semaphore, error: Error | None) -> None:
    """The transfers are over: let the queue go on, or end it."""
    if error is None:
        gate.signal(1)
    else:
        gate.fail(error)


def open_granted(grants: FileGrants, name: str, access: Access, *, fresh: bool) -> int:
    """The descriptor of a regular file that is offered for this access; `fresh` ones are made, or emptied.

    Raises BusyError when too many files are open. Everything else is one refusal, which does not tell what is there.
    """
    found = grants.find(name)
    if found is None or (access & Access.WRITE and not found[0].writable):
        raise _refusal(name, access)
    grant, rest = found
    flags = _FLAGS[access] | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        fd = _open(grant.path, rest, flags | (os.O_CREAT if fresh else 0))
    except OSError as error:
        if error.errno in STARVED:
            raise BusyError(f"cannot open {name}: {error.strerror} on the server; close files first") from None
        raise _refusal(name, access) from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise _refusal(name, access)
        if fresh:
            os.ftruncate(fd, 0)
    except OSError:
        os.close(fd)
        raise _refusal(name, access) from None
    except BaseException:
        os.close(fd)
        raise
    return fd


def _open(path: str, rest: Sequence[str], flags: int) -> int:
    """Open what is offered at `path` itself, or `rest` beneath it."""
    if not rest:
        return os.open(path, flags & ~os.O_CREAT)
    directory = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return open_beneath(directory, rest, flags)
    finally:
        with suppress(OSError):
            os.close(directory)


def _refusal(name: str, access: Access) -> UsageError:
    what = "read" if access is Access.READ else "written"
    return UsageError(
        f"the server offers no file {name!r} to be {what}; it offers regular files under its --file names, "
        "and under its --file-rw names to be written too",
        code=Status.PERMISSION_DENIED,
    )
