"""The floors: what plain blocking Python sockets, and memory itself, do on this machine.

A floor connection opens with a header that says what the other side does: echo (a reply for every whole message), sink (one byte
when all is there), source (everything, after each byte) or shared (maps the memory whose descriptor comes next, and answers each
byte).

An address is tcp://, unix:// or shm://. Beside shm stands what a plain program would do: small messages through a unix socket, bulk
as one copy into or out of memory that both processes map, with a byte each way through the socket.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
from time import perf_counter_ns

__all__ = ["ECHO", "HEADER", "PIECE", "SHARED", "SINK", "SOURCE", "RawEcho", "RawMemory", "RawStream", "copy_batch"]

#: kind, bytes of a message, bytes of a reply, bytes of a stream.
HEADER = struct.Struct("<IIIQ")
ECHO, SINK, SOURCE, SHARED = 1, 2, 3, 4
#: Bytes of one send of a stream.
PIECE = 1 << 20


def _connect(address: str, header: bytes) -> socket.socket:
    """`address` is tcp://127.0.0.1:port, unix:///path or shm:///path, which is a unix socket here."""
    scheme, _, place = address.partition("://")
    if scheme != "tcp":
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(place)
    else:
        host, _, port = place.rpartition(":")
        sock = socket.create_connection((host, int(port)))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(header)
    return sock


class RawEcho:
    """Sends `size` bytes and gets `reply` bytes back."""

    def __init__(self, address: str, size: int, reply: int) -> None:
        self._sock = _connect(address, HEADER.pack(ECHO, size, reply, 0))
        self._reply = reply
        self._message = bytes(size)
        self._room = memoryview(bytearray(64 << 10))

    def round_trip(self) -> None:
        """One message out, one reply back."""
        self._sock.send(self._message)
        self._sock.recv_into(self._room)

    def pipeline(self, count: int, each_send: int = 1) -> None:
        """`count` messages, `each_send` of them in one send, and all replies; replies are read when there is no room to send."""
        message, sends = self._message * each_send, -(-count // each_send)
        send, now, owed = self._sock.send, socket.MSG_DONTWAIT, sends * each_send * self._reply
        for _ in range(sends):
            sent = 0
            while not sent:
                try:
                    sent = send(message, now)
                except BlockingIOError:
                    owed -= self._sock.recv_into(self._room)
            if sent < len(message):
                self._sock.sendall(message[sent:])
        while owed > 0:
            owed -= self._sock.recv_into(self._room)

    def close(self) -> None:
        """Hang up."""
        self._sock.close()


class RawStream:
    """Moves `total` bytes to or from the other process, in sends of 1 MiB, between memory of that size on both sides."""

    def __init__(self, address: str, total: int) -> None:
        self._memory = memoryview(bytearray(total))
        self._sink = _connect(address, HEADER.pack(SINK, 0, 0, total))
        self._source = _connect(address, HEADER.pack(SOURCE, 0, 0, total))

    def upload(self) -> None:
        """All bytes out, and the other side's word that it has them."""
        send_pieces(self._sink, self._memory)
        self._sink.recv(1)

    def download(self) -> None:
        """Ask, then receive all bytes."""
        self._source.send(b"\1")
        fill(self._source, self._memory)

    def close(self) -> None:
        """Hang up."""
        self._sink.close()
        self._source.close()


class RawMemory:
    """Copies `total` bytes into and out of memory that the other process maps as well, and tells it so."""

    def __init__(self, address: str, total: int) -> None:
        self._memory = memoryview(bytearray(total))
        self._sock = _connect(address, HEADER.pack(SHARED, 0, 0, total))
        fd = os.memfd_create("remora floor")
        os.ftruncate(fd, total)
        socket.send_fds(self._sock, [b"\1"], [fd])
        self._mapping = mmap.mmap(fd, total)
        os.close(fd)
        self._sock.recv(1)

    def upload(self) -> None:
        """All bytes in, and the other side's word that it knows."""
        self._mapping[:] = self._memory
        self._ask()

    def download(self) -> None:
        """Ask, then copy all bytes out."""
        self._ask()
        with memoryview(self._mapping) as view:
            self._memory[:] = view

    def _ask(self) -> None:
        self._sock.send(b"\1")
        self._sock.recv(1)

    def close(self) -> None:
        """Hang up and unmap."""
        self._sock.close()
        self._mapping.close()


def take_memory(sock: socket.socket, total: int) -> mmap.mmap:
    """The other side of RawMemory: map the memory that comes through the socket, touch it, and say so."""
    _, (fd,), _, _ = socket.recv_fds(sock, 1, 1)
    mapping = mmap.mmap(fd, total)
    os.close(fd)
    for start in range(0, total, mmap.PAGESIZE):
        mapping[start] = 1
    sock.send(b"\1")
    return mapping


def send_pieces(sock: socket.socket, memory: memoryview) -> None:
    """Send everything, a piece at a time."""
    for start in range(0, len(memory), PIECE):
        sock.sendall(memory[start : start + PIECE])


def fill(sock: socket.socket, memory: memoryview) -> bool:
    """Receive until `memory` is full; False when the other side hung up before."""
    while len(memory):
        count = sock.recv_into(memory)
        if not count:
            return False
        memory = memory[count:]
    return True


def copy_batch(total: int, count: int) -> list[int]:
    """Nanoseconds of each of `count` copies of `total` bytes between two warm blocks of memory."""
    source, target = memoryview(bytearray(total)), memoryview(bytearray(total))
    target[:] = source
    samples = []
    for _ in range(count):
        start = perf_counter_ns()
        target[:] = source
        samples.append(perf_counter_ns() - start)
    return samples
