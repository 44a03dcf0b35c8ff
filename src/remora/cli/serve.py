"""`remora serve`: offer devices, say how to reach them and who can, and end cleanly on a signal (H31, H40)."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from contextlib import suppress
from time import strftime
from types import FrameType

from remora.base.uri import parse_uri, split_host_port
from remora.cli.show import CONSOLE, fact, waiting
from remora.server.flags import add_flags, ignore_input, input_ended, options_of
from remora.server.process import raise_descriptor_limit
from remora.server.serve import Server

__all__ = ["add_arguments", "run"]

WILDCARDS = ("0.0.0.0", "::", "")
OWN_MACHINE = ("127.", "::1", "localhost")

FILE_TRUST = (
    "a socket in the file system: only processes of this user (and root) can connect; whoever connects can run native code as "
    "this user"
)
LOCAL_TRUST = "tcp on a loopback address: every user of this machine, and nobody else, can connect and run native code as this user"
TCP_TRUST = (
    "tcp is plaintext and unauthenticated: anyone who can reach the port can run native code on this machine. "
    "Serve trusted networks only"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `remora serve`."""
    add_flags(parser)


def log(line: str) -> None:
    """One line about a session, with the time of day. A closed stderr does not stop the server."""
    with suppress(OSError):
        print(strftime("%H:%M:%S"), line, file=sys.stderr, flush=True)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM."""
    server = Server(options_of(args, log))

    def stop(number: int, _: FrameType | None) -> None:
        with suppress(OSError):
            os.write(2, f"Received {signal.Signals(number).name}, shutting down...\n".encode())
        server.stop()

    with waiting("opening the devices"):
        if server.options.shared:
            raise_descriptor_limit()
        server.start()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGIO):
        signal.signal(number, stop)
    announce(server)
    if args.until_eof and input_ended():
        server.stop()
    server.serve()
    ignore_input()
    return 0


def client_uri(address: str) -> str:
    """What a client opens to reach a bound address."""
    uri = parse_uri(address)
    if uri.scheme == "tcp":
        host, port = split_host_port(uri.place)
        if host in WILDCARDS:
            return f"remote-tcp://<server-host>:{port}"
    return f"remote-{address}"


def trust(address: str) -> str:
    """Who can use the server through this address."""
    uri = parse_uri(address)
    if uri.scheme in {"unix", "shm"}:
        return FILE_TRUST
    return LOCAL_TRUST if split_host_port(uri.place)[0].startswith(OWN_MACHINE) else TCP_TRUST


def announce(server: Server) -> None:
    """Say that the server is ready: printed when it listens, and not before. The first lines are for programs too."""
    for address in server.addresses:
        fact("listening", address, style="green")
    for address in server.addresses:
        uri = client_uri(address)
        fact("connect", uri, *([f"(this machine is called {socket.gethostname()})"] if "<" in uri else []))
    for number, entry in enumerate(server.entries):
        fact(f"device {number}", entry.name, f"[{entry.driver}]", " ".join(f"{family}:{key}" for family, key in entry.targets))
    options = server.options
    place = "all in this process" if options.shared else "each in a process of its own"
    fact("sessions", f"up to {options.max_sessions}, {place}")
    for line in dict.fromkeys(map(trust, server.addresses)):
        fact("trust", line, style="yellow")
    fact("stop", "Ctrl+C stops it")
    CONSOLE.file.flush()
