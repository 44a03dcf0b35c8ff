"""tinygrad's REMOTE device, as of 0.11.0, its last release that has one: HTTP to a server with a CPU device.

Its own server listens on every address, so the same handler listens on 127.0.0.1 here. Its CPU device wants clang: where there is
none, the one inside the ziglang wheel does.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import speak

os.environ["CACHEDB"] = str(Path.cwd() / "cache.db")

with speak.importing():
    from tinygrad import Device, Tensor, TinyJit


def find_clang() -> None:
    """Set CC where there is no clang."""
    if shutil.which("clang"):
        return
    script = Path.cwd() / "clang"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).with_name("clang_by_zig.py")}" "$@"\n')
    script.chmod(0o755)
    os.environ["CC"] = str(script)


class Client(speak.Work):
    def __init__(self) -> None:
        find_clang()
        self._server, ready = speak.start(__file__, "server")
        os.environ["HOST"] = f"127.0.0.1:{ready['port']}"  # read when the device is first used
        self.server_pids = [self._server.pid]
        self._device: Any = Device["REMOTE"]
        self._few = self._tensor(1)
        self._one = TinyJit(lambda tensor: (tensor + 1).realize())
        self._add = TinyJit(lambda left, right: (left + right).realize())
        self._word = memoryview(bytearray(4))
        for _ in range(3):  # a JIT runs, records, then replays
            self.small()

    def _tensor(self, count: int) -> Any:
        return Tensor.zeros(count, device="REMOTE").contiguous().realize()

    def small(self) -> None:
        self._memory_of(self._one(self._few)).copyout(self._word)

    @staticmethod
    def _memory_of(tensor: Any) -> Any:
        return tensor.uop.base.realized

    def pipeline(self, count: int) -> None:
        for _ in range(count - 1):
            self._one(self._few)
        self.small()

    def prepare(self, size: int) -> None:
        self._memory = memoryview(bytearray(size))
        self._remote = self._memory_of(self._tensor(size // 4))

    def upload(self) -> None:
        self._remote.copyin(self._memory)
        self._device.conn.batch_submit()

    def download(self) -> None:
        self._remote.copyout(self._memory)

    def whole(self, left: memoryview, right: memoryview) -> Any:
        if not hasattr(self, "_arrays"):
            self._arrays = [self._tensor(len(left) // 4) for _ in range(2)]
            self._sum = memoryview(bytearray(len(left)))
            for _ in range(3):
                self._add(*self._arrays)
        for tensor, memory in zip(self._arrays, (left, right), strict=True):
            self._memory_of(tensor).copyin(memory)
        self._memory_of(self._add(*self._arrays)).copyout(self._sum)
        return self._sum

    def close(self) -> None:
        self._server.kill()


def serve() -> None:
    """Listen until the client's process ends."""
    import asyncio

    from tinygrad.runtime.ops_remote import RemoteHandler

    async def listen() -> None:
        server = await asyncio.start_server(RemoteHandler("CPU"), "127.0.0.1", 0)
        speak.say(port=server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(listen())


def end_with_input() -> None:
    """The main thread serves."""
    speak.until_end_of_input()
    os._exit(0)


if __name__ == "__main__":
    if "server" in sys.argv[1:]:
        speak.own_standard_output()
        speak.die_with_parent()
        threading.Thread(target=end_with_input, daemon=True).start()
        serve()
    else:
        speak.client(Client)
