"""`python -m remora.server`: a plain server for tests and supervisors. Prints `listening ADDRESS` for each address, then `ready`.

After that come the log lines. SIGTERM and SIGINT stop it; with `--until-eof` the end of its standard input does too, so that it
cannot outlive whoever started it.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import select
import signal
import sys
from typing import Any

from remora.errors import Error
from remora.server.flags import add_limits, drain_timeout_of, limits_of
from remora.server.options import DEFAULT_BIND, ServeOptions
from remora.server.serve import Server
from remora.session.keepalive import HeartbeatOptions

__all__ = ["main"]


def parse(words: list[str] | None) -> tuple[ServeOptions, bool]:
    """The options, and whether the end of standard input ends the server."""
    default = ServeOptions()
    parser = argparse.ArgumentParser(prog="python -m remora.server", description="Serve devices to remora clients.")
    parser.add_argument("--device", action="append", help="URI of a device; may be repeated (default: cpu)")
    parser.add_argument("--bind", action="append", help=f"address to listen on; may be repeated (default: {DEFAULT_BIND})")
    parser.add_argument("--max-sessions", type=int, default=default.max_sessions)
    parser.add_argument("--shared", action="store_true", help="all sessions in this process")
    parser.add_argument("--window", type=int, default=default.command_window, help="commands a session may have in flight")
    parser.add_argument("--keepalive", type=float, default=default.heartbeat.interval, help="seconds between heartbeats")
    parser.add_argument("--deadline", type=float, default=default.heartbeat.deadline, help="seconds until a silent client is lost")
    add_limits(parser)
    parser.add_argument("--until-eof", action="store_true", help="stop when standard input ends")
    given = parser.parse_args(words)
    options = ServeOptions(
        devices=tuple(given.device or default.devices),
        bind=tuple(given.bind or default.bind),
        max_sessions=given.max_sessions,
        shared=given.shared,
        command_window=given.window,
        heartbeat=HeartbeatOptions(given.keepalive, given.deadline),
        limits=limits_of(given),
        drain_timeout=drain_timeout_of(given),
        log=lambda line: print(line, flush=True),  # noqa: T201  (the log is this program's output)
    )
    return options, given.until_eof


def main(words: list[str] | None = None) -> int:
    """Serve until a signal; returns the exit code."""
    options, until_eof = parse(words)
    server = Server(options)

    def stop(*_: Any) -> None:
        server.stop()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGIO):
        signal.signal(number, stop)
    try:
        server.start()
    except Error as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    for address in server.addresses:
        options.log(f"listening {address}")
    options.log("ready")
    if until_eof and not signal_at_eof(0):
        server.stop()
    server.serve()
    return 0


def signal_at_eof(fd: int) -> bool:
    """Have the kernel send SIGIO when the writing end of the pipe `fd` is closed; False when it is already.

    No thread watches the pipe, because the server forks.
    """
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return not poll.poll(0)


if __name__ == "__main__":
    sys.exit(main())
