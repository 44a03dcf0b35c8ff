"""A queue of a remote device: one axis. Operations become COMMANDs; nothing here waits for the server (H12, H13).

A wait for something that no submitted command will signal (the host, another device) cannot travel: such an operation, and
everything behind it on this queue, is held here until the wait is settled.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast

from remora.base.frontier import MAX_FRONTIER, Frontier, merge
from remora.drivers.remote.buffer import RemoteBuffer
from remora.drivers.remote.command_buffer import changes, span
from remora.drivers.remote.host_calls import HostCalls
from remora.drivers.remote.semaphore import RemoteSemaphore
from remora.errors import BusyError, ClosedError, Error, UsageError
from remora.hal.buffer import Buffer, BufferView
from remora.hal.command_buffer import CommandBuffer
from remora.hal.executable import Grid, Kernel
from remora.hal.host_queue import fail_all, signal_all
from remora.hal.queue import Bindings, Queue
from remora.hal.records import Launch
from remora.hal.semaphore import Points, Semaphore, Timepoint
from remora.wire import commands
from remora.wire.command_buffer_calls import MAX_STREAM
from remora.wire.commands import EXECUTE
from remora.wire.execute import MAX_EXECUTE, Announced, encode_announced, encode_payload
from remora.wire.extension import EXTENSION, encode_extension
from remora.wire.file_commands import FILE_READ, FILE_WRITE, FileRange, encode_file_range, piece_count
from remora.wire.sharing_calls import PLACE_SIZE

if TYPE_CHECKING:
    from remora.drivers.remote.command_buffer import RemoteCommandBuffer
    from remora.drivers.remote.device import RemoteDevice
    from remora.drivers.remote.executable import RemoteExecutable
    from remora.drivers.remote.file import ClientFile, ServerFile
    from remora.hal.file import File

__all__ = ["RemoteQueue"]


class _Held(NamedTuple):
    """An operation that waits here. `encode` makes its body when it goes, because ids may have been resolved meanwhile."""

    op: int
    encode: Callable[[], bytes]
    wait: Points
    signal: Points
    epoch: int
    record: Callable[[int], None] | None


class RemoteQueue(Queue):
    """Submits to one axis of the session. Its timeline's values are the axis's epochs."""

    __slots__ = ("_arriving", "_behind", "_held", "_lock", "_next", "_progress", "_signals", "_told", "axis", "calls", "dispatches")
    device: RemoteDevice
    timeline: RemoteSemaphore

    def __init__(self, device: RemoteDevice, ordinal: int, axis: int) -> None:
        super().__init__(device, ordinal, RemoteSemaphore(device.host.pump, axis, name=f"{device.uri} queue {ordinal}"))
        self.axis = axis
        self.dispatches = 0
        self._lock = threading.Lock()
        self._next = 1
        self._held: deque[_Held] = deque()
        self._signals: deque[tuple[int, Points]] = deque()
        self._progress = threading.RLock()
        self._told = 0
        self._arriving: set[int] = set()
        self._behind: deque[tuple[int, Frontier]] = deque()
        """(epoch, what it waited for on other queues): it is done here only after that is."""
        self.calls = HostCalls(f"{device.uri} queue {ordinal}")
        self.timeline.answers = self._answers

    def _answers(self, value: int) -> bool:
        """Whether an ADVANCE alone brings the timeline to `value`: it was sent, and no download that it needs is on its way."""
        if value >= self._next or self._held or self._arriving:
            return False
        return not self._behind or self.device.host.all_here()

    @property
    def all_here(self) -> bool:
        """Whether no download is on its way."""
        return not self._arriving

    @property
    def holding(self) -> bool:
        """Whether operations wait here for something the server does not know."""
        return bool(self._held)

    # -- operations -----------------------------------------------------------------------------------------------------------

    def _dispatch(
        self, kernel: Kernel, grid: Grid, bindings: Bindings, constants: bytes, wait: Points, signal: Points
    ) -> Timepoint:
        executable = cast("RemoteExecutable", kernel.executable)
        if executable.closed:
            raise ClosedError(f"the executable of {kernel.name} was closed; load it again")

        def encode() -> bytes:
            flat: list[int] = []
            for binding in bindings:
                flat += (binding.buffer.resource, binding.offset, binding.size)  # type: ignore[attr-defined]
            return commands.encode_dispatch(executable.resource, kernel.ordinal, grid, flat, constants)

        return self._submit(commands.DISPATCH, encode, wait, signal)

    def _dispatch_indirect(
        self, kernel: Kernel, grid: Buffer | BufferView, bindings: Bindings, constants: bytes, wait: Points, signal: Points
    ) -> Timepoint:
        executable = cast("RemoteExecutable", kernel.executable)
        if executable.closed:
            raise ClosedError(f"the executable of {kernel.name} was closed; load it again")

        def encode() -> bytes:
            flat = [number for binding in bindings for number in span(binding)]
            source = _own(grid.buffer).resource
            return commands.encode_dispatch_indirect(source, grid.offset, executable.resource, kernel.ordinal, flat, constants)

        def record(_: int) -> None:
            self.dispatches += 1

        return self._submit(commands.DISPATCH_INDIRECT, encode, wait, signal, record)

    def _fill(self, buffer: Buffer | BufferView, pattern: bytes, wait: Points, signal: Points) -> Timepoint:
        owner = _own(buffer.buffer)
        return self._submit(
            commands.FILL, lambda: commands.encode_fill(owner.resource, buffer.offset, buffer.size, pattern), wait, signal
        )

    def _update(self, buffer: Buffer, offset: int, data: memoryview, wait: Points, signal: Points) -> Timepoint:
        owner = _own(buffer)
        if data.nbytes <= commands.MAX_INLINE:
            return self._submit(commands.UPDATE, lambda: commands.encode_update(owner.resource, offset, data), wait, signal)
        host, size = self.device.host, data.nbytes
        transfer_id = host.next_transfer()
        return self._submit(
            commands.UPLOAD,
            lambda: commands.encode_transfer(owner.resource, offset, size, transfer_id),
            wait,
            signal,
            lambda _: host.upload_data(transfer_id, data),
        )

    def _read(self, buffer: Buffer, offset: int, into: memoryview, wait: Points, signal: Points) -> Timepoint:
        owner = _own(buffer)
        host, axis, size = self.device.host, self.axis, into.nbytes
        if size <= commands.MAX_INLINE:
            return self._submit(
                commands.READ,
                lambda: commands.encode_range(owner.resource, offset, size),
                wait,
                signal,
                lambda epoch: host.expect_result(axis, epoch, into),
            )
        transfer_id = host.next_transfer()
        return self._submit(
            commands.DOWNLOAD,
            lambda: commands.encode_transfer(owner.resource, offset, size, transfer_id),
            wait,
            signal,
            lambda epoch: host.expect_transfer(self, epoch, transfer_id, into),
        )

    def locate(self, buffer: RemoteBuffer, offset: int, size: int) -> tuple[Timepoint, bytearray]:
        """When these bytes may be used in place, and where the server then says that they are (`wire.sharing_calls`)."""
        host, axis, found = self.device.host, self.axis, bytearray(PLACE_SIZE)
        point = self._submit(
            commands.LOCATE,
            lambda: commands.encode_range(buffer.resource, offset, size),
            (),
            (),
            lambda epoch: host.expect_result(axis, epoch, memoryview(found)),
        )
        return point, found

    def _copy(self, source: Buffer | BufferView, target: Buffer | BufferView, wait: Points, signal: Points) -> Timepoint:
        first, second = _own(source.buffer), _own(target.buffer)
        return self._submit(
            commands.COPY,
            lambda: commands.encode_copy(first.resource, source.offset, source.size, second.resource, target.offset),
            wait,
            signal,
        )

    def _read_file(self, file: File, file_offset: int, target: Buffer | BufferView, wait: Points, signal: Points) -> Timepoint:
        return self._move_file(FILE_READ, file, file_offset, target, wait, signal)

    def _write_file(self, source: Buffer | BufferView, file: File, file_offset: int, wait: Points, signal: Points) -> Timepoint:
        return self._move_file(FILE_WRITE, file, file_offset, source, wait, signal)

    def _move_file(
        self, op: int, file: File, file_offset: int, buffer: Buffer | BufferView, wait: Points, signal: Points
    ) -> Timepoint:
        owner, offset, size = _own(buffer.buffer), buffer.offset, buffer.size
        resource = cast("ServerFile | ClientFile", file).resource
        if resource:
            return self._submit(
                op, lambda: encode_file_range(FileRange(owner.resource, offset, size, resource, file_offset, 0)), wait, signal
            )
        if not size:
            return self._barrier(wait, signal)
        bridge, transfer_id = self.device.host.bridge, self.device.host.next_transfer(piece_count(size) + 1)
        job = bridge.job(op, cast("ClientFile", file), file_offset, size, transfer_id)
        return self._submit(
            op,
            lambda: encode_file_range(FileRange(owner.resource, offset, size, 0, 0, transfer_id)),
            wait,
            signal,
            lambda epoch: bridge.begin(job, (Timepoint(self.timeline, epoch - 1), *wait)),
        )

    def _execute(
        self,
        commands: CommandBuffer,
        table: tuple[Buffer | BufferView, ...],
        patched: dict[int, Launch],
        wait: Points,
        signal: Points,
    ) -> Timepoint:
        recording: RemoteCommandBuffer = commands.prepared
        recording.check()
        spans, patches = [span(entry) for entry in table], changes(commands, patched, table) if patched else []
        payload, patch_bytes = encode_payload(spans, patches, recording.stream)
        if len(payload) > MAX_STREAM:
            raise UsageError(f"an execution of {len(payload)} bytes, the limit is {MAX_STREAM}: record several command buffers")
        transfer_id = 0 if len(payload) <= MAX_EXECUTE else self.device.host.next_transfer()
        head = Announced(recording.resource, transfer_id, len(spans), len(patches), patch_bytes, len(recording.stream))
        body = encode_announced(head) + (b"" if transfer_id else payload)

        def record(_: int) -> None:
            self.dispatches += recording.dispatches
            if transfer_id:
                self.device.host.send(transfer_id, memoryview(payload))

        return self._submit(EXECUTE, lambda: body, wait, signal, record)

    def _barrier(self, wait: Points, signal: Points) -> Timepoint:
        return self._submit(commands.BARRIER, lambda: b"", wait, signal)

    def _provide(self, buffer: Buffer, wait: Points, signal: Points) -> Timepoint:
        owner = _own(buffer)
        return self._submit(commands.ALLOCA, lambda: commands.encode_buffer(owner.resource), wait, signal)

    def _deallocate(self, buffer: Buffer, wait: Points, signal: Points) -> Timepoint:
        """Operations that another queue holds here may name the buffer: then its memory goes by its release, which follows them."""
        owner = _own(buffer)
        if self.device.host.holds_beside(self) or owner.copying:
            point = self._barrier(wait, signal)
        else:
            point = self._submit(commands.DEALLOCA, lambda: commands.encode_buffer(owner.resource), wait, signal)
        owner._release()
        return point

    def _extension(
        self, namespace: str, operation: int, payload: bytes, buffers: Bindings, wait: Points, signal: Points
    ) -> Timepoint:
        return self._submit(
            EXTENSION, lambda: encode_extension(namespace, operation, payload, [span(each) for each in buffers]), wait, signal
        )

    def _host_call(self, call: Callable[[], object], wait: Points, signal: Points) -> Timepoint:
        """A barrier that is held here until the call has run, which is once everything before it is done."""
        gate = Semaphore(name="host call")
        with self.device.host.link.step:
            point = self._submit(commands.BARRIER, lambda: b"", (*wait, gate.at(1)), signal)
            self.calls.after((Timepoint(self.timeline, point.value - 1), *wait), call, gate)
        return point

    def _flush(self) -> None:
        self.device.host.pump.flush()

    # -- submission -----------------------------------------------------------------------------------------------------------

    def _submit(
        self, op: int, encode: Callable[[], bytes], wait: Points, signal: Points, record: Callable[[int], None] | None = None
    ) -> Timepoint:
        """Send the operation, or hold it behind what is held. `record(epoch)` runs before its answer can arrive."""
        host = self.device.host
        while True:
            try:
                with self._lock:
                    if self.timeline._failure is not None:
                        raise self.timeline._failure.copy()
                    epoch = self._next
                    waits = self._frontier(wait) if wait else ()
                    if waits is None or self._held:
                        self._next = epoch + 1
                        self._held.append(_Held(op, encode, wait, signal, epoch, record))
                        break
                    sent = self._send(op, encode(), waits, signal, record)
                    if sent:
                        self._next = epoch + 1
                if sent:  # without the lock: a send that fails ends this queue too
                    host.pump.written(True)
                    return Timepoint(self.timeline, epoch)
            except BaseException as error:
                host.link.cut_short(error)
                raise
            host.wait_for_room()
        with host.link.step:
            for point in wait:
                if not point.semaphore._settled(point.value):
                    point.on_done(self.drain)
            self.drain()
        return Timepoint(self.timeline, epoch)

    def _send(self, op: int, body: bytes, waits: Frontier, signal: Points, record: Callable[[int], None] | None) -> bool:
        """Hand the command to the session; False when the window is full. The lock is held."""
        host = self.device.host
        if host.crowded():
            return False
        with host.link.lock:
            try:
                epoch = host.link.session.command(self.axis, op, waits, body)
            except BusyError:
                return False
            self.dispatches += op == commands.DISPATCH
            if waits:
                self._behind.append((epoch, waits))
            if signal:
                self._signals.append((epoch, signal))
                for point in signal:
                    if isinstance(point.semaphore, RemoteSemaphore):
                        point.semaphore.expect(point.value, self.axis, epoch)
            if record is not None:
                record(epoch)
        return True

    def _frontier(self, wait: Points) -> Frontier | None:
        """What the server has to wait for, or None when it cannot know some of it."""
        entries: list[tuple[int, int]] = []
        for point in wait:
            semaphore = point.semaphore
            if semaphore._value >= point.value:
                continue
            entry = self._entry(semaphore, point.value)
            if entry is None:
                return None
            if entry[0] != self.axis:
                entries.append(entry)
        if len(entries) <= 1:
            return tuple(entries)
        frontier = merge(entries)
        if len(frontier) > MAX_FRONTIER:
            raise UsageError(f"an operation can wait for {MAX_FRONTIER} queues, this one waits for {len(frontier)}")
        return frontier

    def _entry(self, semaphore: Semaphore, value: int) -> tuple[int, int] | None:
        """The (axis, epoch) on this server that brings a semaphore to a value, if a submitted command does."""
        host = self.device.host
        if not isinstance(semaphore, RemoteSemaphore) or not host.owns(semaphore) or semaphore._failure is not None:
            return None
        entry = semaphore.entry(value)
        if entry is None or entry[1] > host.link.session.submission.submitted(entry[0]):
            return None
        return entry

    def drain(self) -> None:
        """Send what is held and can go now; fail the queue when a wait has failed, or the session."""
        sent, failure = False, None
        try:
            with self._lock:
                while self._held and self._send_held(self._held[0]):
                    self._held.popleft()
                    sent = True
        except Error as error:
            failure = error.copy()  # without the traceback, which holds these frames
        if sent:
            self.device.host.pump.written(True)
        if failure is not None:
            self.fail(failure)

    def _send_held(self, held: _Held) -> bool:
        """Whether the operation has gone. Raises why it never will. The lock is held."""
        waits = self._frontier(held.wait)
        if waits is None:
            for point in held.wait:
                failure = point.semaphore._failure
                if failure is not None and point.semaphore._value < point.value:
                    raise failure.copy()
            return False
        stalled = self.device.host.stalled
        stalled.add(self)  # before it is tried, so that room which comes meanwhile is not missed
        sent = self._send(held.op, held.encode(), waits, held.signal, held.record)
        if sent:
            stalled.discard(self)
        return sent

    # -- answers --------------------------------------------------------------------------------------------------------------

    def expect_transfer(self, epoch: int) -> None:
        """The bytes of a download come beside the answer: `epoch` is done only when both are here. The link's lock is held."""
        self._arriving.add(epoch)

    def transfer_done(self, epoch: int, error: Error | None) -> None:
        """The bytes of a download are here, or never will be."""
        if error is not None:
            self.fail(error)
            return
        with self._progress:
            self._arriving.discard(epoch)
        self.advanced(0)

    def arriving(self) -> bool:
        """Whether a download that the server has done is not here yet."""
        with self._progress:
            return any(epoch <= self._told for epoch in self._arriving)

    def advanced(self, epoch: int) -> None:
        """Everything up to `epoch` is done on the server: move what waits for it here, and on queues that waited for this one."""
        failure = None
        with self._progress:
            self._told = told = max(self._told, epoch)
            if self._arriving:
                told = min(told, min(self._arriving) - 1)
            if self._behind:
                told, failure = self._until_behind(told)
            signals = self._signals
            while signals and signals[0][0] <= told:
                signal_all(signals.popleft()[1])
            moved = told > self.timeline._value
            if moved:
                self.timeline._reach(told)
        if moved:
            self.device.host.go_on_behind(self)
        if failure is not None:
            self.fail(failure.copy())

    def _until_behind(self, told: int) -> tuple[int, Error | None]:
        """(The last epoch up to `told` whose waits are done here too, why the next one's never will be.)

        Bytes come by another lane than the news that they have gone.
        """
        host, behind, failure = self.device.host, self._behind, None
        host.behind.add(self)  # before it looks, so that what comes meanwhile is not missed
        while behind and behind[0][0] <= told:
            epoch, waits = behind[0]
            here, failure = host.are_here(waits)
            if not here:
                told = epoch - 1
                break
            behind.popleft()
        else:
            host.behind.discard(self)
        return told, failure

    def fail(self, error: Error) -> None:
        """End the queue: what is not done yet ends with the cause. The timeline first, so that nothing is held after this."""
        self.timeline.fail(error)
        self.calls.end()
        with self._lock:
            held = tuple(self._held)
            self._held.clear()
        with self._progress:
            waiting = tuple(self._signals)
            self._signals.clear()
            self._behind.clear()
        self.device.host.behind.discard(self)
        for _, points in waiting:
            fail_all(points, error)
        for operation in held:
            fail_all(operation.signal, error)
        self.device.host.go_on_behind(self)


def _own(buffer: Buffer) -> RemoteBuffer:
    """The queue has checked that the buffer is this device's."""
    assert isinstance(buffer, RemoteBuffer)
    return buffer
