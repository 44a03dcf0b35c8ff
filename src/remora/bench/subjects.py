"""remora as the subject: the calls that are timed, on a device behind any URI."""

from __future__ import annotations

import threading

import remora
from remora import samples
from remora.hal.buffer import Buffer
from remora.hal.executable import Kernel
from remora.hal.queue import Queue

__all__ = ["Busy", "Dispatches", "Transfers"]

#: Elements of the small command's arrays: the kernel itself takes no time.
FEW = 64
ONE: tuple[int, int, int] = (1, 1, 1)


class Dispatches:
    """Small commands on one device: `add_i32` (three bindings, one constant) and `empty` (neither)."""

    def __init__(self, uri: str) -> None:
        self.device = remora.open(uri)
        kernels = self.device.load(samples.load("vector"))
        self._add, self._empty, self._queue = kernels["add_i32"], kernels["empty"], self.device.queue
        self._buffers = [self.device.upload(bytes(FEW * 4)) for _ in range(3)]
        self.add()

    def use(self, queue: Queue) -> None:
        """Dispatch to this queue from now on."""
        self._queue = queue

    def add(self) -> None:
        """Dispatch and wait."""
        self._queue.dispatch(self._add, ONE, self._buffers, (FEW,)).wait()

    def empty(self) -> None:
        """Dispatch and wait, the smallest command."""
        self._queue.dispatch(self._empty, ONE, ()).wait()

    def pipeline(self, count: int) -> None:
        """`count` dispatches, one wait."""
        dispatch, add, buffers, constants = self._queue.dispatch, self._add, self._buffers, (FEW,)
        for _ in range(count - 1):
            dispatch(add, ONE, buffers, constants)
        dispatch(add, ONE, buffers, constants).wait()

    def close(self) -> None:
        """Close the device."""
        self.device.close()


class Transfers:
    """Bytes to and from a buffer of `total` bytes."""

    def __init__(self, uri: str, total: int) -> None:
        self.device = remora.open(uri)
        self._memory = bytearray(total)
        self._buffer = self.device.upload(self._memory)

    def upload(self) -> None:
        """All bytes into the buffer."""
        self._buffer.write(self._memory)

    def download(self) -> None:
        """All bytes back."""
        self._buffer.read_into(self._memory)

    def close(self) -> None:
        """Close the device."""
        self.device.close()


class Busy:
    """Keeps one core of the server busy with a kernel of one workgroup, over and over, from a thread that mostly waits."""

    def __init__(self, queue: Queue, kernel: Kernel, buffer: Buffer, rounds: int) -> None:
        self._queue = queue
        self._kernel = kernel
        self._buffer = buffer
        self._constants = (buffer.size // 4, rounds)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._count = 0

    def go(self) -> None:
        """Begin; returns when a kernel has run."""
        self._ended.clear()
        self._count = 0
        self._run_one()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """End; the number of kernels that ran."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        return self._count

    def _run(self) -> None:
        while not self._ended.is_set():
            self._run_one()

    def _run_one(self) -> None:
        self._queue.dispatch(self._kernel, ONE, [self._buffer, self._buffer], self._constants).wait()
        self._count += 1
