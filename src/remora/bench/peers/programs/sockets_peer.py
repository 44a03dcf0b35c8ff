"""The floor: plain blocking sockets that move the same bytes. The server adds with remora's own kernel, on its local device.

The first argument is tcp or unix. A request is a verb, a block's number and a size; small ones are as long as an empty dispatch.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
from typing import Any

import speak

with speak.importing():
    pass

#: As many bytes as a dispatch of an empty kernel, and as its answer.
REQUEST = struct.Struct("<IIQ40x")
REPLY = bytes(24)
SMALL, STORE, LOAD, ADD = range(4)
MEMORY, LEFT, RIGHT = range(3)
PIECE = speak.MIB


def send(sock: socket.socket, memory: memoryview) -> None:
    """Everything, in pieces of 1 MiB."""
    for begin in range(0, len(memory), PIECE):
        sock.sendall(memory[begin : begin + PIECE])


def receive(sock: socket.socket, memory: memoryview) -> None:
    """Until `memory` is full."""
    while len(memory):
        count = sock.recv_into(memory)
        if not count:
            raise ConnectionError("the other end hung up")
        memory = memory[count:]


class Client(speak.Work):
    """One connection."""

    def __init__(self) -> None:
        self._server, ready = speak.start(__file__, sys.argv[1], "server")
        self.server_pids = [self._server.pid]
        if sys.argv[1] == "tcp":
            self._sock = socket.create_connection(("127.0.0.1", ready["port"]))
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            self._sock = socket.socket(socket.AF_UNIX)
            self._sock.connect("\0" + ready["name"])
        self._room = memoryview(bytearray(64 << 10))
        self._small = REQUEST.pack(SMALL, 0, 0)
        self._memory = memoryview(bytearray())
        self._sum = memoryview(bytearray(speak.ARRAY_BYTES))

    def small(self) -> None:
        self._sock.send(self._small)
        self._done()

    def _done(self) -> None:
        if not self._sock.recv_into(self._room):
            raise ConnectionError("the server hung up")

    def pipeline(self, count: int) -> None:
        owed, sock, small, now = count * len(REPLY), self._sock, self._small, socket.MSG_DONTWAIT
        for _ in range(count):
            sent = 0
            while not sent:
                try:
                    sent = sock.send(small, now)
                except BlockingIOError:
                    owed -= sock.recv_into(self._room)
            if sent < len(small):
                sock.sendall(small[sent:])
        while owed > 0:
            owed -= sock.recv_into(self._room)

    def prepare(self, size: int) -> None:
        self._memory = memoryview(bytearray(size))

    def upload(self) -> None:
        self._put(MEMORY, self._memory)

    def download(self) -> None:
        self._get(MEMORY, self._memory)

    def _put(self, name: int, memory: memoryview) -> None:
        self._sock.send(REQUEST.pack(STORE, name, len(memory)))
        send(self._sock, memory)
        self._done()

    def _get(self, name: int, memory: memoryview) -> None:
        self._sock.send(REQUEST.pack(LOAD, name, 0))
        receive(self._sock, memory)

    def whole(self, left: memoryview, right: memoryview) -> Any:
        self._put(LEFT, left)
        self._put(RIGHT, right)
        self._sock.send(REQUEST.pack(ADD, 0, 0))
        self._done()
        self._get(RIGHT, self._sum)
        return self._sum

    def close(self) -> None:
        self._sock.close()
        self._server.kill()


class Server:
    """Answers one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._blocks: dict[int, memoryview] = {}
        self._device: Any = None

    def run(self) -> None:
        """Until the client hangs up."""
        room = memoryview(bytearray(256 << 10))
        held = 0
        while count := self._sock.recv_into(room[held:]):
            held += count
            whole = held // REQUEST.size
            verb, name, size = REQUEST.unpack_from(room)
            if verb == SMALL:
                self._sock.send(REPLY * whole)
                held -= whole * REQUEST.size
                room[:held] = room[whole * REQUEST.size : whole * REQUEST.size + held]
            else:
                self._bulk(verb, name, size, bytes(room[REQUEST.size : held]))
                held = 0

    def _bulk(self, verb: int, name: int, size: int, first: bytes) -> None:
        if verb == LOAD:
            send(self._sock, self._blocks[name])
            return
        if verb == STORE:
            memory = self._block(name, size)
            memory[: len(first)] = first
            receive(self._sock, memory[len(first) :])
        else:
            self._add()
        self._sock.send(REPLY)

    def _block(self, name: int, size: int) -> memoryview:
        """Memory that stays; what is added is memory of the device."""
        if name not in self._blocks or len(self._blocks[name]) != size:
            self._blocks[name] = memoryview(bytearray(size)) if name == MEMORY else self._shared(name, size)
        return self._blocks[name]

    def _shared(self, name: int, size: int) -> memoryview:
        import remora
        from remora import samples

        if self._device is None:
            self._device = remora.open("cpu")
            self._buffers: dict[int, Any] = {}
            self._kernel = self._device.load(samples.load("vector"))["saxpy_f32"]
        self._buffers[name] = self._device.allocate(size)
        memory: memoryview = self._buffers[name].host_memory()
        return memory

    def _add(self) -> None:
        count = len(self._blocks[LEFT]) // 4
        buffers = self._buffers[LEFT], self._buffers[RIGHT]
        self._device.queue.dispatch(self._kernel, self._kernel.grid_for(count), buffers, (count, 1.0)).wait()


def listen() -> socket.socket:
    """A listener whose address is told to the client."""
    if sys.argv[1] == "tcp":
        listener = socket.create_server(("127.0.0.1", 0))
        speak.say(port=listener.getsockname()[1])
        return listener
    listener = socket.socket(socket.AF_UNIX)
    name = f"remora-bench-{os.getpid()}"
    listener.bind("\0" + name)
    listener.listen()
    speak.say(name=name)
    return listener


def serve() -> None:
    """Answer until the client's process ends."""
    speak.own_standard_output()
    speak.die_with_parent()
    sock, _ = listen().accept()
    if sock.family == socket.AF_INET:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    threading.Thread(target=Server(sock).run, daemon=True).start()
    speak.until_end_of_input()
    os._exit(0)


if __name__ == "__main__":
    serve() if "server" in sys.argv[1:] else speak.client(Client)
