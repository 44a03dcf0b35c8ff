"""TVM RPC: a server of its own process for the session, a kernel that the client compiles and uploads. Calls are synchronous."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import speak

with speak.importing():
    import tvm
    from tvm import rpc, te

MODULE = "add.so"


def compiled(folder: Path) -> Path:
    """A library with `add`: three arrays of float32. Needs a C compiler."""
    count = tvm.tirx.Var("n", "int32")
    left, right = (te.placeholder((count,), "float32", name=name) for name in ("left", "right"))
    total = te.compute((count,), lambda index: left[index] + right[index], name="total")
    function = te.create_prim_func([left, right, total]).with_attr("global_symbol", "add")
    file = folder / MODULE
    tvm.compile(tvm.IRModule({"add": function}), target="llvm").export_library(str(file))
    return file


class Client(speak.Work):
    def __init__(self) -> None:
        self._server, ready = speak.start(__file__, "server")
        session = rpc.connect("127.0.0.1", ready["port"])
        session.upload(str(compiled(Path.cwd())))
        self._add = session.load_module(MODULE)["add"]
        self._device = session.cpu()
        self._few = [self._empty(1) for _ in range(3)]
        self._arrays = [self._empty(speak.ARRAY_BYTES // 4) for _ in range(3)]
        self.server_pids = speak.with_descendants(self._server.pid)

    def _empty(self, count: int) -> Any:
        return tvm.runtime.empty((count,), "float32", self._device)

    def small(self) -> None:
        self._add(*self._few)

    def pipeline(self, count: int) -> None:
        for _ in range(count):
            self._add(*self._few)

    def prepare(self, size: int) -> None:
        import numpy as np

        self._memory: Any = np.zeros(size // 4, "float32")
        self._remote = self._empty(size // 4)

    def upload(self) -> None:
        self._remote.copyfrom(self._memory)

    def download(self) -> None:
        self._memory = self._remote.numpy()

    def whole(self, left: memoryview, right: memoryview) -> Any:
        import numpy as np

        for array, memory in zip(self._arrays, (left, right), strict=False):
            array.copyfrom(np.frombuffer(memory, "float32"))
        self._add(*self._arrays)
        return self._arrays[2].numpy()

    def close(self) -> None:
        self._server.kill()


def serve() -> None:
    """Listen on the first free port of TVM's range until the client's process ends."""
    speak.own_standard_output()
    speak.die_with_parent()
    server = rpc.Server("127.0.0.1", silent=True)
    speak.say(port=server.port)
    speak.until_end_of_input()
    server.terminate()
    os._exit(0)


if __name__ == "__main__":
    serve() if "server" in sys.argv[1:] else speak.client(Client)
