"""Devices: what `remora.open` gives."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final
from weakref import WeakSet

from remora.errors import ClosedError, Error, OutOfMemoryError, Status, UnsupportedError, UsageError
from remora.hal.command_buffer import CommandBuffer
from remora.hal.dlpack import host_bytes
from remora.hal.event import Event
from remora.hal.file import File, HostFile, OpenableFile, access_of, open_descriptor
from remora.hal.semaphore import Semaphore
from remora.hal.specialization import ExecutableInfo, specialize

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from remora.base.snapshot import DeviceStatistics
    from remora.hal.array import Array
    from remora.hal.buffer import Access, Buffer
    from remora.hal.bundle import Bundle
    from remora.hal.executable import Executable, KernelInfo
    from remora.hal.extension import Extension
    from remora.hal.profile import Profile, Sink
    from remora.hal.queue import Queue
    from remora.hal.specialization import Values
    from remora.hal.staging import StagingPool
    from remora.hal.target import Target
    from remora.hal.virtual_memory import PhysicalMemory, Reservation

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
    page_size: int = 0
    """What virtual memory is mapped in, in bytes; 0 when the device has none."""
    extensions: tuple[Extension, ...] = ()
    """Operations of the vendor's own, for `Queue.extension`."""


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
        self._profile: Profile | None = None
        self.staging: StagingPool | None = None
        """Driver: where a server puts bytes on their way to and from memory that the host cannot address; None where it can."""

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
    def _ended(self) -> bool:
        """Driver: whether nothing of it can be changed any more: it was closed, or is lost."""
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
        self._check_size(size)
        return self._allocate(size)

    @final
    def late_buffer(self, size: int) -> Buffer:
        """A buffer of `size` bytes without memory, which `queue.provide` gives it. `queue.allocate` does both at once.

        Raises OutOfMemoryError when no heap could ever have that much, UnsupportedError when the device has no such buffers.
        """
        self._check_size(size)
        buffer = self._late_buffer(size)
        buffer._late = True
        return buffer

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
    def array(self, data: Any = None, *, dtype: Any = None, shape: Sequence[int] | int | None = None) -> Array:
        """Memory with an element type and a shape (H20): a copy of `data`, or `shape` items of `dtype`, contents undefined.

        `data` is a buffer-protocol object, a NumPy or ml_dtypes array or a CPU DLPack tensor; `dtype` ("f4", "float32", "bfloat16",
        a NumPy type) and `shape` say what its bytes are, where it does not. Raises UsageError when they do not fit the bytes.
        Example: `a = device.array(np.arange(12).reshape(3, 4)); row = a[1]`.
        """
        from remora.hal.array import make_array

        return make_array(self, data, dtype, shape)

    @final
    def reserve(self, size: int) -> Reservation:
        """A range of `size` bytes of addresses, nothing mapped (H22); `size` is a multiple of `info.page_size`.

        Raises UnsupportedError (UNAVAILABLE) on a device without virtual memory, OutOfMemoryError when it has no such range left.
        """
        self._check_pages(size)
        return self._reserve(size)

    @final
    def physical(self, size: int) -> PhysicalMemory:
        """Memory without an address, for reservations to map, contents undefined. `size` and errors as for `reserve`."""
        self._check_pages(size)
        self._check_room(size)
        return self._physical(size)

    @final
    def load(self, bundle: Bundle, constants: Values | None = None) -> Executable:
        """Load the bundle's artifact that fits best, with values for its specialization constants (H19).

        Raises NotFoundError when none fits (it lists what there is), or for a constant that the bundle does not declare, and
        UsageError for a value that does not fit or is missing.
        """
        self._check_open()
        words = specialize(bundle.info.constants, {} if constants is None else constants)
        target, artifact = bundle.select(self.targets)
        return self._load(target, artifact, bundle.info_for(target), words)

    @final
    def load_artifact(
        self, target: Target, artifact: Any, kernels: ExecutableInfo | Sequence[KernelInfo], constants: Values | None = None
    ) -> Executable:
        """Load one artifact (bytes-like, or an `Artifact`) made for one of `targets`, with its kernels' contracts.

        `kernels` is all that the manifest says, or the kernels alone; `constants` as for `load`.
        """
        self._check_open()
        if target not in self.targets:
            raise UsageError(f"{self.info.name} does not take {target}; it takes {', '.join(map(str, self.targets))}")
        info = ExecutableInfo.of(kernels)
        return self._load(target, artifact, info, specialize(info.constants, {} if constants is None else constants))

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

    @final
    def open_file(self, file: OpenableFile, mode: str = "r") -> File:
        """One of this program's own regular files, for `queue.read_file` and `queue.write_file` (H23).

        `file` is a path, a descriptor or an open file, of which it keeps a copy. `mode` is "r", "r+" (read and write), "w" or
        "w+" (these make or empty what a path names). Raises NotFoundError, and UsageError for what is no regular file or may
        not be opened so.
        """
        self._check_open()
        return self._host_file(*open_descriptor(file, mode))

    @final
    def server_file(self, name: str, mode: str = "r") -> File:
        """A file on the device's server, by a name that the server offers (`remora serve --file NAME=PATH`); modes as `open_file`.

        Raises UsageError (PERMISSION_DENIED) for every other name, there or not, and UnsupportedError where there is no server.
        """
        self._check_open()
        access, fresh = access_of(mode)
        return self._server_file(name, access, fresh)

    @final
    def profile(self, sink: Sink) -> Profile:
        """Begin to tell `sink` what the queues run, until the profile's `end()`, or `close()` of the device (H24). See `Profile`.

        `sink` is a callable, or has a method `take`, that gets a sequence of `OperationRecord`. Raises UsageError when the device
        is profiled already, UnsupportedError when its driver keeps no times.
        """
        self._check_open()
        profile = self._new_profile(sink)
        with self._semaphores_lock:
            if self._profile is not None:
                raise UsageError(f"{self!r} is profiled already; end() that profile first", code=Status.FAILED_PRECONDITION)
            self._profile = profile
        profile._begin()
        if self._closed:
            self._end_profile()
            raise self._closed_error()
        return profile

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

    def _check_size(self, size: int) -> None:
        self._check_open()
        if size < 0:
            raise UsageError(f"a buffer cannot have {size} bytes")
        self._check_room(size)

    def _check_room(self, size: int) -> None:
        most = max((heap.max_allocation for heap in self.info.heaps), default=0)
        if size > most:
            raise OutOfMemoryError(f"{self.info.name}: asked for {size:,} bytes, one buffer can have {most:,}", origin=self.uri)

    def _check_pages(self, size: int) -> None:
        self._check_open()
        page = self.info.page_size
        if not page:
            raise self._no_virtual_memory()
        if size <= 0 or size % page:
            raise UsageError(f"{size} bytes are no whole pages: use a multiple of {page} bytes (info.page_size)")
        if size >= 1 << 63:
            raise OutOfMemoryError(f"{self.info.name} has no {size:,} bytes of addresses", origin=self.uri)

    def _no_virtual_memory(self) -> UnsupportedError:
        return UnsupportedError(
            f"{self.info.name} has no virtual memory (info.page_size is 0): allocate buffers",
            code=Status.UNAVAILABLE,
            origin=self.uri,
        )

    def _reserve(self, size: int) -> Reservation:
        """Driver: an address range, where `info.page_size` says that there are such."""
        raise self._no_virtual_memory()

    def _physical(self, size: int) -> PhysicalMemory:
        """Driver: memory to be mapped."""
        raise self._no_virtual_memory()

    def _semaphore(self, initial: int) -> Semaphore:
        """Driver: a semaphore of its own kind, where it has one."""
        return Semaphore(initial)

    def _late_buffer(self, size: int) -> Buffer:
        """Driver: a buffer whose memory comes with `Queue._provide`."""
        raise UnsupportedError(f"{self.uri} allocates at once only: use device.allocate")

    def _event(self) -> Event:
        """Driver: an event of its own kind, where it has one."""
        return Event(self, self.semaphore())

    def _host_file(self, fd: int, name: str, access: Access) -> File:
        """Driver: a file of this process; the descriptor belongs to what this makes."""
        return HostFile(self, fd, name, access)

    def _server_file(self, name: str, access: Access, fresh: bool) -> File:
        """Driver: a file of the server; `fresh` ones are made, or emptied."""
        raise UnsupportedError(f"{self.uri} is in this process, which has no server: use open_file with the path of {name!r}")

    def _new_profile(self, sink: Sink) -> Profile:
        """Driver: a profile that has not begun."""
        raise UnsupportedError(f"{self.uri}: the driver {self.info.driver!r} keeps no times, so it cannot be profiled")

    def _end_profile(self) -> None:
        """Driver: `close()` begins. What the sink has not taken yet, it gets now."""
        profile = self._profile
        if profile is not None:
            profile._leave()

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
    def _load(self, target: Target, artifact: Any, info: ExecutableInfo, constants: tuple[int, ...]) -> Executable:
        """Driver: load code. `constants` are the words of the table of specialization constants, as many as `info` declares."""
