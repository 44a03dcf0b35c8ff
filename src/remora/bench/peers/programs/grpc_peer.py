"""gRPC: generic methods on bytes, small calls unary, bulk as streams of 1 MiB messages."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import speak

with speak.importing():
    import grpc

PIECE = speak.MIB
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
blocks: dict[str, bytearray] = {}


def pieces(memory: memoryview | bytearray) -> Iterator[bytes]:
    """What a stream sends."""
    view = memoryview(memory)
    for begin in range(0, len(view), PIECE):
        yield bytes(view[begin : begin + PIECE])


class Client(speak.Work):
    """One insecure channel."""

    def __init__(self) -> None:
        self._server, ready = speak.start(__file__, "server")
        self.server_pids = [self._server.pid]
        self._channel = grpc.insecure_channel(f"127.0.0.1:{ready['port']}", options=OPTIONS)
        grpc.channel_ready_future(self._channel).result(60)
        self._small = self._channel.unary_unary("/bench/small")
        self._many = self._channel.stream_stream("/bench/many")
        self._store = self._channel.stream_unary("/bench/store")
        self._load = self._channel.unary_stream("/bench/load")
        self._add = self._channel.unary_unary("/bench/add")
        self._memory = memoryview(bytearray())

    def small(self) -> None:
        self._small(b"x")

    def pipeline(self, count: int) -> None:
        for _ in self._many(b"x" for _ in range(count)):
            pass

    def prepare(self, size: int) -> None:
        self._memory = memoryview(bytearray(size))

    def upload(self) -> None:
        self._put("memory", self._memory)

    def download(self) -> None:
        self._get("memory", self._memory)

    def _put(self, name: str, memory: memoryview) -> None:
        header = f"{name} {len(memory)}".encode()

        def messages() -> Iterator[bytes]:
            yield header
            yield from pieces(memory)

        self._store(messages())

    def _get(self, name: str, memory: memoryview) -> None:
        place = 0
        for piece in self._load(name.encode()):
            memory[place : place + len(piece)] = piece
            place += len(piece)

    def whole(self, left: memoryview, right: memoryview) -> Any:
        self._put("left", left)
        self._put("right", right)
        self._add(b"x")
        total = memoryview(bytearray(len(left)))
        self._get("sum", total)
        return total

    def close(self) -> None:
        self._channel.close()
        self._server.kill()


def store(messages: Iterator[bytes], _context: Any) -> bytes:
    """A block by name, piece by piece into memory that stays."""
    name, _, size = next(messages).decode().partition(" ")
    memory = blocks.get(name)
    if memory is None or len(memory) != int(size):
        memory = blocks[name] = bytearray(int(size))
    view, place = memoryview(memory), 0
    for piece in messages:
        view[place : place + len(piece)] = piece
        place += len(piece)
    return b"done"


def add(_request: bytes, _context: Any) -> bytes:
    """Left + right as float32."""
    import numpy as np

    blocks["sum"] = np.add(np.frombuffer(blocks["left"], "f4"), np.frombuffer(blocks["right"], "f4")).data.cast("B")
    return b"done"


def serve() -> None:
    """Listen until the client's process ends."""
    speak.own_standard_output()
    speak.die_with_parent()
    methods = {
        "small": grpc.unary_unary_rpc_method_handler(lambda request, _context: request),
        "many": grpc.stream_stream_rpc_method_handler(lambda requests, _context: requests),
        "store": grpc.stream_unary_rpc_method_handler(store),
        "load": grpc.unary_stream_rpc_method_handler(lambda request, _context: pieces(blocks[request.decode()])),
        "add": grpc.unary_unary_rpc_method_handler(add),
    }
    server = grpc.server(ThreadPoolExecutor(4), options=OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    speak.say(port=port)
    speak.until_end_of_input()
    os._exit(0)


if __name__ == "__main__":
    serve() if "server" in sys.argv[1:] else speak.client(Client)
