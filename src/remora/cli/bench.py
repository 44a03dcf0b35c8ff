"""`remora bench`: floors, remora and its peers beside each other on this machine, as tables, JSON and a picture."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from remora.bench.bench import BenchOptions
from remora.bench.bench import run as measure
from remora.bench.peers.environments import default_folder, install, installed_peers
from remora.bench.peers.table import PEERS, Contestant, find_peers
from remora.bench.picture import check_picture, draw
from remora.bench.report import Report
from remora.errors import UsageError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    names = ", ".join(peer.name for peer in PEERS)
    add = parser.add_argument
    add("--quick", action="store_true", help="a tenth of the samples: shows that everything works, not how fast it is")
    add("--compare", action="store_true", help="only the comparison: floors, remora on each carrier and peers on the same work")
    add("--growth", action="store_true", help="only how cost grows with buffers, sessions, recorded commands and bytes")
    add("--peers", metavar="NAMES", help=f"whom to compare with: all, none, or some of {names} (those that are installed)")
    add("--json", metavar="FILE", type=Path, help="write all numbers to FILE")
    add("--plot", metavar="FILE", type=Path, help="draw the comparison and the growth: FILE.svg, .png or .pdf; needs matplotlib")
    add(
        "--install-peers",
        nargs="*",
        metavar="NAME",
        help="measure nothing: install these peers, or all, each into a Python environment of its own",
    )
    add(
        "--peers-folder", metavar="DIR", type=Path, help="where the peers' environments are (%(default)s)", default=default_folder()
    )


def run(args: argparse.Namespace) -> int:
    """Measure and print. 0 also when a target is missed: a slow machine is no error. 1 when a peer could not be installed."""
    if args.install_peers is not None:
        failed = install(args.peers_folder, find_peers(args.install_peers or ("all",)), _tell)
        return 1 if failed else 0
    for file in (args.json, args.plot):
        if file is not None and not file.parent.is_dir():
            raise UsageError(f"{file}: there is no folder {file.parent}")
    if args.plot is not None:
        check_picture(args.plot)
    options = BenchOptions(args.quick, parts=_parts(args), peers=_peers(args.peers, args.peers_folder), folder=args.peers_folder)
    report = _measure(options)
    _print(report)
    if args.json is not None:
        args.json.write_text(json.dumps(report.as_json(), indent=2) + "\n")
    if args.plot is not None:
        draw(report, args.plot)
    return 0


def _tell(line: str) -> None:
    print(line, flush=True)


def _parts(args: argparse.Namespace) -> tuple[str, ...]:
    chosen = tuple(part for part in ("compare", "growth") if getattr(args, part))
    return chosen or ("floors", "compare")


def _peers(names: str | None, folder: Path) -> tuple[Contestant, ...]:
    """Whom the option means. Raises NotFoundError that lists the names."""
    if names is None:
        return installed_peers(folder)
    chosen = tuple(name.strip() for name in names.split(",") if name.strip())
    return () if chosen == ("none",) else find_peers(chosen)


def _measure(options: BenchOptions) -> Report:
    """Run with a bar on standard error. It is drawn between measurements, never beside one."""
    from dataclasses import replace

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description:20}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, auto_refresh=False, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=1.0)

        def progress(case: str, share: float) -> None:
            bar.update(task, description=case, completed=share, refresh=True)

        return measure(replace(options, progress=progress))


def _print(report: Report) -> None:
    from remora.cli.bench_tables import comparison_notes, tables
    from remora.cli.show import CONSOLE

    for table in tables(report, CONSOLE.width):
        CONSOLE.print(table)
        CONSOLE.print()
    here = report.machine
    CONSOLE.print(
        f"{here.processor}, {here.cores} cores, {here.kernel}, {here.python}, "
        f"remora {'compiled' if here.compiled else 'not compiled'}, "
        f"load {here.load[0]:.1f} before and {here.load[1]:.1f} after, {report.seconds:.0f} s"
    )
    for note in (*report.notes, *comparison_notes(report.comparison)):
        CONSOLE.print(f"note: {note}", markup=False)
