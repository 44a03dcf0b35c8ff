"""RPyC: a threaded server, one blocking connection, bytes by value."""

from __future__ import annotations

import os
import sys
from typing import Any

import speak

with speak.importing():
    import rpyc
    from rpyc.utils.server import ThreadedServer

CONFIG = {"sync_request_timeout": None}


class Service(rpyc.Service):  # type: ignore[misc]  # its types are not known where it is not installed
    """Keeps blocks of bytes by name."""

    def __init__(self) -> None:
        self.blocks: dict[str, Any] = {}

    def exposed_small(self) -> int:
        return 1

    def exposed_store(self, name: str, data: bytes) -> int:
        self.blocks[name] = data
        return len(data)

    def exposed_load(self, name: str) -> Any:
        return self.blocks[name]

    def exposed_add(self) -> None:
        import numpy as np

        left, right = (np.frombuffer(self.blocks[name], "f4") for name in ("left", "right"))
        self.blocks["sum"] = (left + right).tobytes()


class Client(speak.Work):
    """Each transfer is one call with the bytes as an argument or a result."""

    def __init__(self) -> None:
        self._server, ready = speak.start(__file__, "server")
        self.server_pids = [self._server.pid]
        self._connection = rpyc.connect("127.0.0.1", ready["port"], config=CONFIG)
        self._root = self._connection.root
        self._small = self._root.small
        self._later = rpyc.async_(self._root.small)
        self._memory = b""

    def small(self) -> None:
        self._small()

    def pipeline(self, count: int) -> None:
        for result in [self._later() for _ in range(count)]:
            result.wait()

    def prepare(self, size: int) -> None:
        self._memory = bytes(size)

    def upload(self) -> None:
        self._root.store("memory", self._memory)

    def download(self) -> None:
        self._memory = self._root.load("memory")

    def whole(self, left: memoryview, right: memoryview) -> Any:
        self._root.store("left", bytes(left))
        self._root.store("right", bytes(right))
        self._root.add()
        return self._root.load("sum")

    def close(self) -> None:
        self._connection.close()
        self._server.kill()


def serve() -> None:
    """Listen until the client's process ends."""
    speak.own_standard_output()
    speak.die_with_parent()
    server = ThreadedServer(Service(), hostname="127.0.0.1", port=0, protocol_config=CONFIG)
    server._start_in_thread()  # returns when it listens
    speak.say(port=server.port)
    speak.until_end_of_input()
    os._exit(0)


if __name__ == "__main__":
    serve() if "server" in sys.argv[1:] else speak.client(Client)
