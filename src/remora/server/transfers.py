"""Uploads and downloads above what fits into a command: the queue waits at a gate while the bytes move beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from remora.errors import Error
from remora.hal.buffer import Access, Buffer, BufferView
from remora.hal.queue import Queue
from remora.hal.semaphore import Semaphore, Timepoint
from remora.hal.staging import Staging
from remora.link.transfer import Done
from remora.server.files import open_gate
from remora.server.sharing import Sharing
from remora.wire.commands import Transfer

if TYPE_CHECKING:
    from remora.server.dispatch import Dispatcher

__all__ = ["Transfers"]


class Transfers:
    """Part of the dispatcher. Where the client maps the memory it moves the bytes itself, else they go over the bulk lane."""

    def __init__(self, dispatcher: Dispatcher, sharing: Sharing) -> None:
        self._dispatcher = dispatcher
        self._bulk = dispatcher.link.bulk
        self._sharing = sharing

    def upload(self, queue: Queue, body: Transfer, wait: tuple[Timepoint, ...]) -> Timepoint:
        """The bytes go into the buffer itself once everything before is done; where the host cannot address it, through a copy."""
        buffer, bulk, transfer_id = self._dispatcher.table.view(body.buffer, body.offset, body.length), self._bulk, body.transfer_id
        gate = Semaphore(name="upload")
        memory, place = buffer.buffer.memory_at_turn(), buffer.buffer.place_at_turn()
        if memory is None:
            return self._upload_through(queue, buffer, transfer_id, wait, gate)
        buffer.buffer.check_use(buffer.offset, body.length, Access.WRITE)
        start, end = buffer.offset, buffer.offset + body.length

        def begin(done: Done) -> None:
            self._sharing.lend(
                transfer_id, body.length, place, start, done, lambda: bulk.expect(transfer_id, memory()[start:end], done)
            )

        self._at_turn(queue.barrier(wait=wait), gate, begin, transfer_id)
        return queue.keep(buffer, Access.WRITE, wait=gate.at(1))

    def download(self, queue: Queue, body: Transfer, wait: tuple[Timepoint, ...]) -> Timepoint:
        """The bytes leave from the buffer itself; where the host cannot address it, from a copy."""
        buffer, bulk, transfer_id = self._dispatcher.table.view(body.buffer, body.offset, body.length), self._bulk, body.transfer_id
        gate = Semaphore(name="download")
        memory, place = buffer.buffer.memory_at_turn(), buffer.buffer.place_at_turn()
        start, end = buffer.offset, buffer.offset + body.length
        staging = self._staging(queue, body.length) if memory is None else None
        if memory is None:
            copy = memoryview(bytearray(body.length)) if staging is None else staging.view
            ready = queue.read(buffer, copy, wait=wait)
            memory, place, start, end = (lambda: copy), None if staging is None else staging.place, 0, body.length
        else:
            buffer.buffer.check_use(buffer.offset, body.length, Access.READ)
            ready = queue.barrier(wait=wait)

        def begin(done: Done) -> None:
            self._sharing.lend(
                transfer_id, body.length, place, start, done, lambda: bulk.send(transfer_id, memory()[start:end], done)
            )

        self._at_turn(ready, gate, begin, transfer_id)
        point = queue.keep(buffer, Access.READ, wait=gate.at(1))
        if staging is not None:
            point.on_done(staging.give_back)
        return point

    def _upload_through(
        self, queue: Queue, buffer: Buffer | BufferView, transfer_id: int, wait: tuple[Timepoint, ...], gate: Semaphore
    ) -> Timepoint:
        """An upload into memory that the host cannot address: the bytes come first, in staging memory if there is some."""
        bulk, staging = self._bulk, self._staging(queue, buffer.size)
        copy = memoryview(bytearray(buffer.size)) if staging is None else staging.view
        place = None if staging is None else staging.place

        def done(error: Error | None) -> None:
            open_gate(gate, error)

        self._sharing.lend(transfer_id, buffer.size, place, 0, done, lambda: bulk.expect(transfer_id, copy, done))
        try:
            point = queue.update(buffer, copy, wait=(*wait, gate.at(1)))
        except BaseException:
            if staging is not None:  # the bytes come all the same
                gate.on(1, staging.give_back)
            raise
        if staging is not None:
            point.on_done(staging.give_back)
        return point

    def _staging(self, queue: Queue, size: int) -> Staging | None:
        pool = queue.device.staging
        return None if pool is None else pool.take(size)

    def _at_turn(self, ready: Timepoint, gate: Semaphore, begin: Callable[[Done], None], transfer_id: int) -> None:
        """Begin a transfer when its turn has come; if the queue failed before, tell the peer that it never will."""

        def turn() -> None:
            failure = ready.semaphore.failure if ready.semaphore._value < ready.value else None
            if failure is not None:
                self._bulk.abort(transfer_id, failure)
                return
            try:
                begin(lambda error: open_gate(gate, error))
            except Error as error:
                self._bulk.abort(transfer_id, error)
                gate.fail(error)

        ready.on_done(turn)
