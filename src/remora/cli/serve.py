"""`remora serve`: offer devices, say how to reach them and who can, and end cleanly on a signal (H31, H40)."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import sys
from contextlib import suppress
from time import strftime
from types import FrameType

from remora.base.uri import parse_uri, split_host_port
from remora.cli.show import CONSOLE, fact, waiting
from remora.errors import UsageError
from remora.server.flags import add_limits, drain_timeout_of, limits_of
from remora.server.options import DEFAULT_BIND, ServeOptions
from remora.server.process import raise_descriptor_limit
from remora.server.serve import Server
from remora.session.keepalive import HeartbeatOptions

__all__ = ["add_arguments", "run"]

PR_SET_PDEATHSIG = 1
WILDCARDS = ("0.0.0.0", "::", "")
OWN_MACHINE = ("127.", "::1", "localhost")

UNIX_TRUST = "unix: only processes of this user (and root) can connect; whoever connects can run native code as this user"
LOCAL_TRUST = "tcp on a loopback address: every user of this machine, and nobody else, can connect and run native code as this user"
TCP_TRUST = (
    "tcp is plaintext and unauthenticated: anyone who can reach the port can run native code on this machine. "
    "Serve trusted networks only"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `remora serve`."""
    usual = ServeOptions()
    parser.add_argument(
        "--device", action="append", metavar="URI", help="a device to offer, such as cpu (default) or cpu://?threads=2"
    )
    parser.add_argument(
        "--bind", action="append", metavar="ADDRESS", help=f"where to listen: {DEFAULT_BIND} (default), tcp://[::]:0, unix:///path"
    )
    parser.add_argument("--max-sessions", type=int, default=usual.max_sessions, metavar="N", help="clients at a time (%(default)s)")
    parser.add_argument("--shared", action="store_true", help="all sessions in one process: lighter, but a crash takes all of them")
    parser.add_argument(
        "--window",
        type=int,
        default=usual.command_window,
        metavar="N",
        help="commands that a session may have in flight (%(default)s)",
    )
    parser.add_argument(
        "--keepalive",
        type=float,
        default=usual.heartbeat.interval,
        metavar="S",
        help="seconds of silence before asking (%(default)s)",
    )
    parser.add_argument(
        "--deadline",
        type=float,
        default=usual.heartbeat.deadline,
        metavar="S",
        help="seconds of silence that end a session (%(default)s)",
    )
    add_limits(parser)
    parser.add_argument("--with-parent", action="store_true", help="stop when the process that started this one ends")


def options_of(args: argparse.Namespace) -> ServeOptions:
    """The options as the server takes them. Raises UsageError for values that make no sense."""
    for name, value in (("--max-sessions", args.max_sessions), ("--window", args.window)):
        if value < 1:
            raise UsageError(f"{name} {value}: give a number from 1")
    bind = tuple(args.bind or (DEFAULT_BIND,))
    if any(parse_uri(address).scheme == "loopback" for address in bind):
        raise UsageError("loopback:// connects parts of one process: bind tcp://host:port or unix:///path")
    heartbeat = HeartbeatOptions(args.keepalive, args.deadline)
    if not 0 < heartbeat.interval < heartbeat.deadline:
        raise UsageError(
            f"--keepalive {heartbeat.interval:g} and --deadline {heartbeat.deadline:g}: the deadline must be the longer one"
        )
    return ServeOptions(
        devices=tuple(args.device or ("cpu",)),
        bind=bind,
        max_sessions=args.max_sessions,
        shared=args.shared,
        command_window=args.window,
        heartbeat=heartbeat,
        log=log,
        limits=limits_of(args),
        drain_timeout=drain_timeout_of(args),
    )


def log(line: str) -> None:
    """One line about a session, with the time of day. A closed stderr does not stop the server."""
    with suppress(OSError):
        print(strftime("%H:%M:%S"), line, file=sys.stderr, flush=True)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM."""
    if args.with_parent:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    server = Server(options_of(args))

    def stop(number: int, _: FrameType | None) -> None:
        with suppress(OSError):
            os.write(2, f"Received {signal.Signals(number).name}, shutting down...\n".encode())
        server.stop()

    with waiting("opening the devices"):
        if server.options.shared:
            raise_descriptor_limit()
        server.start()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    announce(server)
    server.serve()
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
    if uri.scheme == "unix":
        return UNIX_TRUST
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
