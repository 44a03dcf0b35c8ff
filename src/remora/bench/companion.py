"""What runs in the other processes: `python -m remora.bench.companion ROLE ...` (see `main`). Says one line when it is ready."""

from __future__ import annotations

import ctypes
import json
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import NoReturn

from remora.bench.floors import ECHO, HEADER, SHARED, SINK, fill, send_pieces, take_memory
from remora.carriers.carrier import Carrier, Listener
from remora.errors import BrokenError

__all__ = ["main"]

PR_SET_PDEATHSIG = 1
#: Rounds of mix_u32 in one workgroup that keep a core busy for some milliseconds.
BUSY_ROUNDS = 400
BUSY_ELEMENTS = 16384


def say(text: str) -> None:
    """A line for the bench."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


# -- floor ----------------------------------------------------------------------------------------------------------------------


def _floor(directory: str) -> NoReturn:
    """Listen on tcp and unix, a thread a connection; only the one that is measured has anything to do."""
    tcp = socket.create_server(("127.0.0.1", 0))
    unix = socket.socket(socket.AF_UNIX)
    path = str(Path(directory) / "floor.sock")
    unix.bind(path)
    unix.listen()
    say(f"tcp://127.0.0.1:{tcp.getsockname()[1]} unix://{path} shm://{path}")
    threading.Thread(target=_accept, args=(unix,), daemon=True).start()
    _accept(tcp)


def _accept(listener: socket.socket) -> NoReturn:
    while True:
        sock, _ = listener.accept()
        if sock.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_answer, args=(sock,), daemon=True).start()


def _answer(sock: socket.socket) -> None:
    kind, size, reply, total = HEADER.unpack(sock.recv(HEADER.size, socket.MSG_WAITALL))
    with sock, suppress(ConnectionError):
        if kind == ECHO:
            _echo(sock, size, reply)
        elif kind == SHARED:
            with take_memory(sock, total):
                while sock.recv(1):
                    sock.send(b"\1")
        elif kind == SINK:
            memory = memoryview(bytearray(total))
            while fill(sock, memory):
                sock.send(b"\1")
        else:
            memory = memoryview(bytearray(total))
            while sock.recv(1):
                send_pieces(sock, memory)


def _echo(sock: socket.socket, size: int, reply: int) -> None:
    """A reply for every whole message; what came together is answered together."""
    room = memoryview(bytearray(256 << 10))
    replies = bytes(reply * (len(room) // size + 1))
    held = 0
    while count := sock.recv_into(room):
        whole, held = divmod(held + count, size)
        if whole:
            sock.send(replies[: whole * reply] if whole > 1 else replies[:reply])


def _carriers(directory: str, size: int, reply: int) -> NoReturn:
    """The same through carriers, for messages of one size: each connection looks before it sleeps as its client does."""
    from remora.carriers.registry import listen

    places = ("tcp://127.0.0.1:0", f"unix://{directory}/carrier-u", f"shm://{directory}/carrier-s")
    listeners = [listen(place) for place in places]
    say(" ".join(listener.address for listener in listeners))
    for listener in listeners[1:]:
        threading.Thread(target=_accept_carriers, args=(listener, size, reply), daemon=True).start()
    _accept_carriers(listeners[0], size, reply)


def _accept_carriers(listener: Listener, size: int, reply: int) -> NoReturn:
    while True:
        carrier = listener.accept()
        assert carrier is not None  # without a timeout it waits
        threading.Thread(target=_echo_carrier, args=(carrier, size, reply), daemon=True).start()


def _echo_carrier(carrier: Carrier, size: int, reply: int) -> None:
    carrier.activate()
    carrier.settle()
    held, replies = 0, bytes(reply)
    with carrier, suppress(BrokenError):
        while True:
            lease = carrier.receive()
            assert lease is not None  # without a timeout it waits
            held += len(lease.view)
            lease.release()
            if held >= size:
                held -= size
                carrier.send_all(replies)


# -- remora ---------------------------------------------------------------------------------------------------------------------


def _proxy(target: str, delay: float) -> None:
    """A link of `delay` seconds each way before a tcp address."""
    from remora.testing.proxy import DelayProxy

    with DelayProxy(target, delay) as proxy:
        say(proxy.address)
        sys.stdin.read()


def _client(uri: str, total: int) -> NoReturn:
    """A client that does what it is told: a line in, a line of JSON out."""
    import remora
    from remora import samples
    from remora.bench.processes import peak_bytes
    from remora.bench.subjects import Busy

    begin = perf_counter()
    device = remora.open(uri)
    opened = perf_counter()
    kernels = device.load(samples.load("vector"))
    loaded = perf_counter()
    device.queue.dispatch(kernels["empty"], (1, 1, 1), []).wait()
    done = perf_counter()
    say(json.dumps({"connect": opened - begin, "load": loaded - opened, "dispatch": done - loaded, "peak_bytes": peak_bytes()}))
    busy = Busy(device.queues[-1], kernels["mix_u32"], device.allocate(BUSY_ELEMENTS * 4), BUSY_ROUNDS)
    for line in sys.stdin:
        match line.strip():
            case "transfer":
                buffer = device.upload(bytearray(total))
                buffer.read_into(bytearray(total))
                say(json.dumps({"peak_bytes": peak_bytes()}))
            case "go":
                busy.go()
                say("{}")
            case "stop":
                say(json.dumps({"kernels": busy.stop()}))
    device.close()
    sys.exit(0)


def main(args: list[str]) -> None:
    """Run a role: `floor DIRECTORY`, `carriers DIRECTORY BYTES BYTES`, `client URI BYTES` or `proxy ADDRESS SECONDS`.

    Ends with the process that started it.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    match args:
        case ["floor", directory]:
            _floor(directory)
        case ["carriers", directory, size, reply]:
            _carriers(directory, int(size), int(reply))
        case ["proxy", target, delay]:
            _proxy(target, float(delay))
        case ["client", uri, total]:
            _client(uri, int(total))
        case _:
            sys.exit("the benchmark starts this itself: run `remora bench`")


if __name__ == "__main__":
    main(sys.argv[1:])
