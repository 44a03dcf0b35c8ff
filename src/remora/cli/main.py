"""The command line: which command lives in which module, and what an error looks like.

A command's module has `add_arguments(parser)` and `run(args) -> exit code`; only the module of the chosen command is imported.
Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from remora.errors import Error, UsageError

__all__ = ["COMMANDS", "main"]

#: Command -> (module, what it does).
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("remora.cli.demo", "run kernels on a device in another process, and check every result"),
    "serve": ("remora.cli.serve", "offer devices of this machine to other processes and machines"),
    "devices": ("remora.cli.devices", "list the devices behind a URI"),
    "check": ("remora.cli.check", "run kernels on a device and verify exact results: exit code 0 or 1"),
    "doctor": ("remora.cli.doctor", "say what is installed here, what works, and what mends the rest"),
    "build": ("remora.cli.build", "make a bundle: one kernel source, machine code for many targets"),
    "inspect": ("remora.cli.inspect", "show what a bundle holds: targets, kernels, contracts"),
    "trace": ("remora.cli.trace", "run a program and write what it asked of devices, and what they did, to a trace"),
    "bench": ("remora.cli.bench", "measure this machine's floors, and remora beside them"),
}

INTERRUPTED = 130


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *unused: object) -> None:
        from importlib.metadata import version

        from remora.base.compiled import is_compiled

        print(f"remora {version('remora')}{', compiled' if is_compiled() else ''}")
        parser.exit()


def _parser(chosen: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("remora", description="Use an accelerator in another process or on another machine.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, (module, told) in COMMANDS.items():
        command = commands.add_parser(name, help=told, description=f"{told[0].upper()}{told[1:]}.")
        if name == chosen:
            import_module(module).add_arguments(command)
        command.add_argument("--verbose", action="store_true", help="show the traceback of an error")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Raises SystemExit for --help, --version and wrong arguments."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    parser = _parser(next((word for word in given if not word.startswith("-")), None))
    args = parser.parse_args(given)
    if args.command is None:
        parser.print_help()
        return 0
    try:
        return int(import_module(COMMANDS[args.command][0]).run(args))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError as error:
        if isinstance(error, Error):
            return _fail(error, args.verbose)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read our output left: the exit flush must not fail
        return 1
    except Error as error:
        return _fail(error, args.verbose)


def _fail(error: Error, verbose: bool) -> int:
    from remora.cli.show import print_error

    print_error(error, verbose=verbose)
    return 2 if isinstance(error, UsageError) else 1
