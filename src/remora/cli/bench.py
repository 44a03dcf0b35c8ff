"""`remora bench`: floors and remora beside each other on this machine, as a table or JSON."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from remora.bench.bench import BenchOptions
from remora.bench.bench import run as measure
from remora.bench.report import Report, Row

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("--quick", action="store_true", help="a tenth of the samples, in less than 20 seconds")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all numbers to FILE")


def run(args: argparse.Namespace) -> int:
    """Measure and print. 0 also when a target is missed: a slow machine is no error."""
    report = _measure(args.quick)
    _print(report)
    if args.json is not None:
        args.json.write_text(json.dumps(report.as_json(), indent=2) + "\n")
    return 0


def _measure(quick: bool) -> Report:
    """Run with a bar on standard error. It is drawn between measurements, never beside one."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description:20}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, auto_refresh=False, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=1.0)

        def progress(case: str, share: float) -> None:
            bar.update(task, description=case, completed=share, refresh=True)

        return measure(BenchOptions(quick, progress))


def _print(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 132)
    table = Table(box=None, pad_edge=False)
    table.add_column("what")
    for title in ("value", "floor", "ratio", "target"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("")
    for row in report.rows:
        style = {True: "green", False: "red", None: ""}[row.ok]
        table.add_row(row.name, _quantity(row.value, row.unit), _quantity(row.floor, row.unit), _ratio(row), _target(row),
                      Text({True: "ok", False: "miss", None: ""}[row.ok], style=style))  # fmt: skip
    console.print(table)
    here = report.machine
    console.print(
        f"\n{here.processor}, {here.cores} cores, {here.kernel}, {here.python}, "
        f"load {here.load[0]:.1f} before and {here.load[1]:.1f} after, {report.seconds:.0f} s",
        highlight=False,
    )
    for note in report.notes:
        console.print(f"note: {note}", highlight=False)


def _quantity(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:.{0 if not unit or value >= 1000 else 1 if value >= 10 else 2}f} {unit}"


def _ratio(row: Row) -> str:
    return "" if row.ratio is None else f"{row.ratio:.2f}x"


def _target(row: Row) -> str:
    target = row.target
    if target is None:
        return ""
    sign = "<=" if target.at_most else ">="
    return f"{sign} {target.limit:g}x" if target.of == "ratio" else f"{sign} {target.limit:g} {row.unit}"
