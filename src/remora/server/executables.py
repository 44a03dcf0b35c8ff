"""Executables of one session: what a client asks to have loaded."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from remora.base.ids import ResourceType
from remora.errors import BusyError, Error, NotFoundError, Status, UsageError
from remora.hal.artifact import Artifact
from remora.hal.device import Device
from remora.hal.executable import Executable
from remora.hal.manifest import parse_info
from remora.hal.target import Target
from remora.server.content import Content, seal
from remora.server.content_line import Contents
from remora.wire.executable_calls import Absent, ExecutableGlobal, ExecutableLoad
from remora.wire.export_calls import PIECE, ExecutableExports, ExportEntry, Exports
from remora.wire.method import Loaded

if TYPE_CHECKING:
    from remora.server.dispatch import Dispatcher

__all__ = ["Executables"]


class Executables:
    """Part of the dispatcher."""

    def __init__(self, dispatcher: Dispatcher, devices: Sequence[Device], contents: Contents) -> None:
        self._dispatcher = dispatcher
        self._devices = devices
        self._contents = contents

    def load(self, request: int, body: ExecutableLoad) -> None:
        """Load an executable: at once when it came along, when its bulk transfer is complete, or when the store has answered."""
        dispatcher = self._dispatcher
        with dispatcher.lock:
            dispatcher.table.announce(body.resource, ResourceType.EXECUTABLE)
        try:
            dispatcher.quotas.executables.take()
        except Error as error:
            if body.transfer_id:
                dispatcher.link.bulk.abort(body.transfer_id, error)
            dispatcher.refuse(request, body.resource, error)
        else:
            self._receive(request, body)

    def _receive(self, request: int, body: ExecutableLoad) -> None:
        if body.digest:
            self._contents.find(body.digest, lambda content: self._found(request, body, content))
            return

        def arrived(data: memoryview, error: Error | None) -> None:
            if error is not None:
                self._refuse(request, body, error)
            elif body.transfer_id:
                self._uploaded(request, body, data)
            else:
                self._install(request, body, Artifact(data))

        self._dispatcher.arrivals.receive(body.size, body.artifact, body.transfer_id, arrived)

    def _found(self, request: int, body: ExecutableLoad, content: Content | None) -> None:
        """The store has answered. What is not what it should be is a miss: the upload that follows replaces it."""
        if content is not None:
            with content:
                if content.size == body.size and content.digest() == body.digest:
                    self._install(request, body, Artifact(content.view(), content.descriptor))
                    return
        self._dispatcher.quotas.executables.give_back()
        self._dispatcher.withdraw(body.resource, NotFoundError("the server did not have this artifact; load it again"))
        self._dispatcher.answer(request, Absent())

    def _uploaded(self, request: int, body: ExecutableLoad, data: memoryview) -> None:
        """A whole artifact came over bulk."""
        try:
            content = seal(data)
        except OSError as error:
            self._refuse(request, body, BusyError(f"the server has no room for the artifact: {error}; close something first"))
            return
        with content:
            self._install(request, body, Artifact(content.view(), content.descriptor), keep=content)

    def _install(self, request: int, body: ExecutableLoad, artifact: Artifact, keep: Content | None = None) -> None:
        """Load code that is here, offer `keep` to other sessions if it could be loaded, and answer."""
        quotas = self._dispatcher.quotas
        try:
            if body.device >= len(self._devices):
                raise UsageError(f"there is no device {body.device}; the server has {len(self._devices)}")
            executable = self._devices[body.device].load_artifact(
                Target(*body.target), artifact, parse_info(body.manifest), struct.pack(f"<{len(body.constants)}I", *body.constants)
            )
        except Error as failure:
            self._refuse(request, body, failure)
            return
        if keep is not None:  # before the answer: whoever hears of it finds the content there
            self._contents.keep(keep.digest(), keep)
        quotas.charge(executable, quotas.executables)
        self._dispatcher.grant(request, body.resource, ResourceType.EXECUTABLE, executable)

    def exports(self, request: int, body: ExecutableExports) -> None:
        """Answer with what an executable exports, a piece of it when it is much."""
        dispatcher = self._dispatcher
        try:
            with dispatcher.lock:
                executable: Executable = dispatcher.table.find(body.executable, ResourceType.EXECUTABLE)
            told = executable.exports
            if body.first > len(told):
                raise UsageError(f"there is no export {body.first}; the executable has {len(told)}", code=Status.OUT_OF_RANGE)
        except Error as error:
            dispatcher.answer(request, error)
            return
        piece = told[body.first : body.first + PIECE]
        entries = tuple(ExportEntry(each.name, each.bindings, each.constants, each.workgroup) for each in piece)
        dispatcher.answer(request, Exports(len(told), entries))

    def global_(self, request: int, body: ExecutableGlobal) -> None:
        """Answer with a buffer of a named global."""
        dispatcher = self._dispatcher
        try:
            with dispatcher.lock:
                executable: Executable = dispatcher.table.find(body.executable, ResourceType.EXECUTABLE)
                buffer = executable.globals.another(body.name)
                try:
                    resource = dispatcher.table.adopt(ResourceType.BUFFER, buffer)
                except BaseException:
                    buffer.close()
                    raise
        except Error as error:
            dispatcher.answer(request, error)
        else:
            dispatcher.answer(request, Loaded(resource))

    def _refuse(self, request: int, body: ExecutableLoad, error: Error) -> None:
        self._dispatcher.quotas.executables.give_back()
        self._dispatcher.refuse(request, body.resource, error)
