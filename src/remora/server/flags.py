"""The flags of a server: the same for `remora serve`, which speaks to people, and `python -m remora.server`, which does not."""

from __future__ import annotations

import argparse
import fcntl
import os
import select
import signal
from collections.abc import Callable

from remora.base.uri import parse_uri
from remora.errors import UsageError
from remora.server.grants import parse_grant
from remora.server.options import DEFAULT_BIND, ServeOptions, SessionLimits
from remora.server.quotas import parse_size, size_text
from remora.session.keepalive import HeartbeatOptions
from remora.wire.bootstrap import MAX_BULK

__all__ = ["add_flags", "ignore_input", "input_ended", "options_of"]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add all of them."""
    usual = ServeOptions()
    add = parser.add_argument
    add("--device", action="append", metavar="URI", help="a device to offer, such as cpu (default) or cpu://?threads=2")
    add(
        "--bind",
        action="append",
        metavar="ADDRESS",
        help=f"where to listen: {DEFAULT_BIND} (default), tcp://[::]:0, unix:///path, shm:///path",
    )
    add("--max-sessions", type=int, default=usual.max_sessions, metavar="N", help="clients at a time (%(default)s)")
    add("--shared", action="store_true", help="all sessions in one process: lighter, but a crash takes all of them")
    add("--window", type=int, default=usual.command_window, metavar="N", help="commands a session may have in flight (%(default)s)")
    beat = usual.heartbeat
    add("--keepalive", type=float, default=beat.interval, metavar="S", help="seconds of silence before asking (%(default)s)")
    add("--deadline", type=float, default=beat.deadline, metavar="S", help="seconds of silence that end a session (%(default)s)")
    _add_limits(parser, usual)
    add(
        "--cache",
        default=size_text(usual.cache).replace(" ", ""),
        metavar="SIZE",
        help="bytes of executables kept, so that no other session uploads them again (%(default)s)",
    )
    add("--until-eof", action="store_true", help="stop when standard input ends: with the program that started the server")


def options_of(args: argparse.Namespace, log: Callable[[str], None]) -> ServeOptions:
    """What the flags say. Raises UsageError for values that make no sense."""
    for name, value in (("--max-sessions", args.max_sessions), ("--window", args.window)):
        if value < 1:
            raise UsageError(f"{name} {value}: give a number from 1")
    bind = tuple(args.bind or (DEFAULT_BIND,))
    if any(parse_uri(address).scheme == "loopback" for address in bind):
        raise UsageError("loopback:// connects parts of one process: bind tcp://host:port or unix:///path")
    if not 0 < args.keepalive < args.deadline:
        raise UsageError(f"--keepalive {args.keepalive:g} and --deadline {args.deadline:g}: the deadline must be the longer one")
    return ServeOptions(
        devices=tuple(args.device or ("cpu",)),
        bind=bind,
        max_sessions=args.max_sessions,
        shared=args.shared,
        command_window=args.window,
        heartbeat=HeartbeatOptions(args.keepalive, args.deadline),
        log=log,
        limits=_limits_of(args),
        drain_timeout=_drain_timeout_of(args),
        cache=_size("--cache", args.cache),
    )


def input_ended() -> bool:
    """Have the kernel send SIGIO when standard input, a pipe, is closed at its other end; True when it already is.

    No thread watches the pipe, because the server forks.
    """
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(0, select.POLLIN)
    return bool(poll.poll(0))


def ignore_input() -> None:
    """The server has stopped: the end of its input, which may come while the interpreter ends, must not look like a crash."""
    signal.signal(signal.SIGIO, signal.SIG_IGN)


def _add_limits(parser: argparse.ArgumentParser, usual: ServeOptions) -> None:
    parser.add_argument(
        "--session-memory", metavar="SIZE", help="bytes of buffers that a session may have, such as 2GiB (no limit)"
    )
    parser.add_argument(
        "--session-transfers",
        type=int,
        metavar="N",
        help="uploads and downloads above 64 KiB that it may have in flight (no limit)",
    )
    parser.add_argument("--session-executables", type=int, metavar="N", help="executables that it may have loaded (no limit)")
    parser.add_argument(
        "--session-resources",
        type=int,
        default=usual.limits.resources,
        metavar="N",
        help="buffers, executables, command buffers, events and files that it may have (%(default)s)",
    )
    parser.add_argument(
        "--session-recordings",
        type=int,
        default=usual.limits.recordings,
        metavar="N",
        help="command buffers for more than one execution that it may have stored (%(default)s)",
    )
    parser.add_argument(
        "--session-recording-bytes",
        default=size_text(usual.limits.recording_bytes).replace(" ", ""),
        metavar="SIZE",
        help="bytes of them (%(default)s)",
    )
    parser.add_argument(
        "--session-bulk",
        type=int,
        default=usual.limits.bulk,
        metavar="N",
        help="connections for transfers that it may have when its client asks for more than one (%(default)s)",
    )
    for flag, what in (("--file", "read"), ("--file-rw", "read, write and make")):
        parser.add_argument(
            flag,
            action="append",
            default=[],
            metavar="NAME=PATH",
            help=f"a file, or a directory with all beneath it, that clients may {what} under NAME; may be repeated (nothing)",
        )
    parser.add_argument("--idle-timeout", type=float, metavar="S", help="seconds without any request that end a session (off)")
    parser.add_argument(
        "--drain-timeout",
        type=float,
        default=usual.drain_timeout,
        metavar="S",
        help="seconds that work in flight has to finish when the server stops (%(default)s)",
    )


def _limits_of(args: argparse.Namespace) -> SessionLimits:
    """What the flags say. Raises UsageError for values that make no sense."""
    for flag, value in (
        ("--session-transfers", args.session_transfers),
        ("--session-executables", args.session_executables),
        ("--session-resources", args.session_resources),
        ("--session-recordings", args.session_recordings),
    ):
        if value is not None and value < 1:
            raise UsageError(f"{flag} {value}: give a number from 1")
    if not 1 <= args.session_bulk <= MAX_BULK:
        raise UsageError(f"--session-bulk {args.session_bulk}: give a number from 1 to {MAX_BULK}")
    if args.idle_timeout is not None and not args.idle_timeout > 0:
        raise UsageError(f"--idle-timeout {args.idle_timeout:g}: give seconds above 0, or leave it out")
    return SessionLimits(
        memory=None if args.session_memory is None else _size("--session-memory", args.session_memory),
        transfers=args.session_transfers,
        executables=args.session_executables,
        resources=args.session_resources,
        idle_timeout=args.idle_timeout,
        bulk=args.session_bulk,
        recordings=args.session_recordings,
        recording_bytes=_size("--session-recording-bytes", args.session_recording_bytes),
        files=(
            *(parse_grant(text, writable=False) for text in args.file),
            *(parse_grant(text, writable=True) for text in args.file_rw),
        ),
    )


def _drain_timeout_of(args: argparse.Namespace) -> float:
    """Seconds. Raises UsageError for a negative number."""
    if not args.drain_timeout >= 0:
        raise UsageError(f"--drain-timeout {args.drain_timeout:g}: give seconds from 0")
    return float(args.drain_timeout)


def _size(flag: str, text: str) -> int:
    try:
        return parse_size(text)
    except UsageError as error:
        raise UsageError(f"{flag}: {error.message}") from None
