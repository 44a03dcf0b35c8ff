"""`remora trace`: run a Python program in this process with every device it opens traced, and say where its time went.

The program has its own standard output; what this command has to say goes to standard error, when the program has ended. Its exit
code and its exceptions are the command's.
"""

from __future__ import annotations

import argparse
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.table import Table
from rich.text import Text

from remora.cli.show import PIPE_WIDTH, amount, duration
from remora.errors import NotFoundError
from remora.hal.trace import Trace, TracedDevice

__all__ = ["add_arguments", "run"]

#: Rows of the summary.
TOP = 15


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `remora trace`."""
    parser.add_argument("-o", "--output", default="trace.json", metavar="FILE", help="where the trace goes (trace.json)")
    parser.add_argument(
        "--device", action="append", default=[], metavar="URI", help="trace only devices that the program opens by this URI (all)"
    )
    parser.add_argument("script", metavar="-- SCRIPT", help="a Python program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments")


def run(args: argparse.Namespace) -> int:
    """The program's exit code; 1 when it raised."""
    if not Path(args.script).is_file():
        raise NotFoundError(f"there is no program {args.script}; give the path of a Python file, and its arguments behind it")
    trace = Trace(args.output)
    trace.follow(args.device)
    try:
        return _run(args.script, args.arguments)
    finally:
        trace.close()
        _report(trace)


def _run(script: str, arguments: Sequence[str]) -> int:
    """Run it as `python SCRIPT ...` does. SystemExit and KeyboardInterrupt go on their way."""
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except Exception as error:
        traceback.print_exception(type(error), error, _inside(error.__traceback__, script))
        return 1
    return 0


def _inside(trace: TracebackType | None, script: str) -> TracebackType | None:
    """The traceback from the program's own first frame on."""
    found = trace
    while found is not None and found.tb_frame.f_code.co_filename != script:
        found = found.tb_next
    return found


def _report(trace: Trace) -> None:
    """Where the trace is, what is missing in it, and what took the time."""
    console = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else PIPE_WIDTH)
    file = trace.file
    console.print(
        Text.assemble(
            ("trace     ", "bold"),
            f"{file.path}: {file.events:,} events, {amount(file.size, 'B')}; open it at https://ui.perfetto.dev",
        ),
        soft_wrap=True,
    )
    for device in trace.devices:
        console.print(Text.assemble(("device    ", "bold"), _about(device)), soft_wrap=True)
    if not trace.devices:
        console.print(Text.assemble(("note      ", "bold"), "the program opened no device that was to be traced"), soft_wrap=True)
    if trace.dropped:
        console.print(Text.assemble(("note      ", "bold"), f"{trace.dropped:,} spans of the program were lost"), soft_wrap=True)
    _table(console, trace)


def _about(device: TracedDevice) -> str:
    profile = device.profile
    if profile is None:
        return f"{device.uri}: not traced: {device.ended}"
    error_ns = profile.clock.error_ns
    clock = f"its clock is known to {duration(error_ns / 1e9)}" if error_ns else "on the program's own clock"
    lost = f", {profile.dropped:,} records were lost" if profile.dropped else ""
    early = f"; it ended early: {device.ended}" if device.ended else ""
    return f"{device.uri}: {profile.taken:,} records{lost}, {clock}{early}"


def _table(console: Console, trace: Trace) -> None:
    times = trace.summary()
    if not times:
        return
    whole = sum(time.total_ns for time in times if time.kind.name != "LABEL") or 1
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("operation")
    for column in ("count", "total", "mean", "longest", "share"):
        table.add_column(column, justify="right")
    for time in times[:TOP]:
        spent = [duration(value / 1e9) for value in (time.total_ns, time.total_ns / time.runs, time.longest_ns)]
        table.add_row(Text(time.title), f"{time.runs:,}", *spent, f"{time.total_ns / whole:.1%}")
    console.print(table)
    if len(times) > TOP:
        console.print(f"and {len(times) - TOP} others", style="dim")
