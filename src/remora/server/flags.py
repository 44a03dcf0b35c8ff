"""The flags that say what a session may have and how the server ends: the same for `remora serve` and `python -m remora.server`."""

from __future__ import annotations

import argparse

from remora.errors import UsageError
from remora.server.options import ServeOptions, SessionLimits
from remora.server.quotas import parse_size

__all__ = ["add_limits", "drain_timeout_of", "limits_of"]


def add_limits(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    usual = ServeOptions()
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
        help="buffers, executables and command buffers that it may have (%(default)s)",
    )
    parser.add_argument("--idle-timeout", type=float, metavar="S", help="seconds without any request that end a session (off)")
    parser.add_argument(
        "--drain-timeout",
        type=float,
        default=usual.drain_timeout,
        metavar="S",
        help="seconds that work in flight has to finish when the server stops (%(default)s)",
    )


def limits_of(args: argparse.Namespace) -> SessionLimits:
    """What the flags say. Raises UsageError for values that make no sense."""
    for flag, value in (
        ("--session-transfers", args.session_transfers),
        ("--session-executables", args.session_executables),
        ("--session-resources", args.session_resources),
    ):
        if value is not None and value < 1:
            raise UsageError(f"{flag} {value}: give a number from 1")
    if args.idle_timeout is not None and not args.idle_timeout > 0:
        raise UsageError(f"--idle-timeout {args.idle_timeout:g}: give seconds above 0, or leave it out")
    return SessionLimits(
        memory=None if args.session_memory is None else _memory(args.session_memory),
        transfers=args.session_transfers,
        executables=args.session_executables,
        resources=args.session_resources,
        idle_timeout=args.idle_timeout,
    )


def drain_timeout_of(args: argparse.Namespace) -> float:
    """Seconds. Raises UsageError for a negative number."""
    if not args.drain_timeout >= 0:
        raise UsageError(f"--drain-timeout {args.drain_timeout:g}: give seconds from 0")
    return float(args.drain_timeout)


def _memory(text: str) -> int:
    try:
        return parse_size(text)
    except UsageError as error:
        raise UsageError(f"--session-memory: {error.message}") from None
