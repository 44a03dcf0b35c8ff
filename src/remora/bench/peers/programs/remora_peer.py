"""remora itself, on the carrier that the first argument names: a server with a cpu device, and buffers that are made once."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import Any

import speak

with speak.importing():
    import remora

ONE = (1, 1, 1)


class Client(speak.Work):
    """Small operations are dispatches of an empty kernel. The whole job is queued at once, with one wait."""

    def __init__(self) -> None:
        from remora import samples

        self._open = ExitStack()
        self.device = self._open.enter_context(remora.open(self._serve(sys.argv[1])))
        kernels = self.device.load(samples.load("vector"))
        self._empty, self._saxpy, self._queue = kernels["empty"], kernels["saxpy_f32"], self.device.queue
        self._memory = memoryview(bytearray())
        self._sum = memoryview(bytearray(speak.ARRAY_BYTES))
        self._arrays = [self.device.allocate(speak.ARRAY_BYTES) for _ in range(2)]

    def _serve(self, carrier: str) -> str:
        """Start a server; the URI of its device."""
        from remora.testing.server import ServerProcess, SharedServer

        if carrier == "loopback":
            return self._open.enter_context(SharedServer()).uri
        folder = self._open.enter_context(TemporaryDirectory())
        address = "tcp://127.0.0.1:0" if carrier == "tcp" else f"{carrier}://{folder}/socket"
        server = self._open.enter_context(ServerProcess(bind=address))
        self.server_pids = [server.pid]
        return server.uri

    def small(self) -> None:
        self._queue.dispatch(self._empty, ONE, ()).wait()

    def pipeline(self, count: int) -> None:
        dispatch, empty = self._queue.dispatch, self._empty
        for _ in range(count - 1):
            dispatch(empty, ONE, ())
        dispatch(empty, ONE, ()).wait()

    def prepare(self, size: int) -> None:
        self._memory = memoryview(bytearray(size))
        self._buffer = self.device.upload(self._memory)

    def upload(self) -> None:
        self._buffer.write(self._memory)

    def download(self) -> None:
        self._buffer.read_into(self._memory)

    def whole(self, left: memoryview, right: memoryview) -> Any:
        (mine, result), queue, count = self._arrays, self._queue, len(left) // 4
        queue.update(mine, left)
        queue.update(result, right)
        queue.dispatch(self._saxpy, self._saxpy.grid_for(count), (mine, result), (count, 1.0))
        queue.read(result, self._sum).wait()
        return self._sum

    def close(self) -> None:
        self._open.close()


if __name__ == "__main__":
    speak.client(Client)
