"""`python -m remora.server`: a plain server for programs that start one. Prints `listening ADDRESS` for each address, then `ready`.

After that come the log lines. SIGTERM and SIGINT stop it; with `--until-eof` the end of its standard input does too, so that it
cannot outlive whoever started it.
"""

from __future__ import annotations

import argparse
import signal
import sys

from remora.errors import Error
from remora.server.flags import add_flags, ignore_input, input_ended, options_of
from remora.server.serve import Server

__all__ = ["main"]


def say(line: str) -> None:
    """A line of output; the log is this program's output."""
    print(line, flush=True)  # noqa: T201


def main(words: list[str] | None = None) -> int:
    """Serve until a signal; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m remora.server", description="Serve devices to remora clients.")
    add_flags(parser)
    args = parser.parse_args(words)
    try:
        server = Server(options_of(args, say))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGIO):
            signal.signal(number, lambda *_: server.stop())
        server.start()
    except Error as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    for address in server.addresses:
        say(f"listening {address}")
    say("ready")
    if args.until_eof and input_ended():
        server.stop()
    server.serve()
    ignore_input()
    return 0


if __name__ == "__main__":
    sys.exit(main())
