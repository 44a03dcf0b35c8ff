"""pyzmq: a ROUTER that answers a DEALER, bytes as frames of their own, without copies where the library offers that."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import speak

with speak.importing():
    import zmq

SMALL, STORE, LOAD, ADD = b"small", b"store", b"load", b"add"


class Client(speak.Work):
    """One socket; a request is a verb, a name and bytes, an answer is bytes."""

    def __init__(self) -> None:
        self._server, ready = speak.start(__file__, "server")
        self.server_pids = [self._server.pid]
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set_hwm(0)
        self._socket.linger = 0
        self._socket.connect(ready["address"])
        self._memory: Any = b""

    def _ask(self, *parts: Any) -> Any:
        self._socket.send_multipart(parts, copy=len(parts) < 3)
        return self._socket.recv(copy=parts[0] != LOAD)

    def small(self) -> None:
        self._ask(SMALL)

    def pipeline(self, count: int) -> None:
        for _ in range(count):
            self._socket.send(SMALL)
        for _ in range(count):
            self._socket.recv()

    def prepare(self, size: int) -> None:
        self._memory = memoryview(bytearray(size))

    def upload(self) -> None:
        self._ask(STORE, b"memory", self._memory)

    def download(self) -> None:
        self._memory = self._ask(LOAD, b"memory").buffer

    def whole(self, left: memoryview, right: memoryview) -> Any:
        self._ask(STORE, b"left", left)
        self._ask(STORE, b"right", right)
        self._ask(ADD)
        return self._ask(LOAD, b"sum").buffer

    def close(self) -> None:
        self._server.kill()
        self._context.destroy()


def serve() -> None:
    """Answer until the client's process ends."""
    import numpy as np

    speak.own_standard_output()
    speak.die_with_parent()
    socket = zmq.Context().socket(zmq.ROUTER)
    socket.set_hwm(0)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    speak.say(address=f"tcp://127.0.0.1:{port}")
    blocks: dict[bytes, Any] = {}
    while True:
        who, verb, *rest = socket.recv_multipart(copy=False)
        match verb.bytes:
            case b"load":
                socket.send_multipart([who, blocks[rest[0].bytes]], copy=False)
                continue
            case b"store":
                blocks[rest[0].bytes] = rest[1].buffer
            case b"add":
                blocks[b"sum"] = np.frombuffer(blocks[b"left"], "f4") + np.frombuffer(blocks[b"right"], "f4")
        socket.send_multipart([who, b"done"])


def end_with_input() -> None:
    """The socket has the main thread."""
    speak.until_end_of_input()
    os._exit(0)


if __name__ == "__main__":
    if "server" in sys.argv[1:]:
        threading.Thread(target=end_with_input, daemon=True).start()
        serve()
    else:
        speak.client(Client)
