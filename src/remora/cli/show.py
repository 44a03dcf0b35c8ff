"""How the commands print: one console, errors with a hint, numbers with units, facts and tables that also read well in a pipe."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from remora.errors import BrokenError, DeadlineError, Error, NotFoundError, PeerError

__all__ = ["CONSOLE", "amount", "duration", "fact", "hint_for", "print_error", "table", "waiting"]

#: Wide where no terminal says how wide it is, so that lines in a pipe stay whole.
PIPE_WIDTH = 200
CONSOLE = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
_LABEL_WIDTH = 10
_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

#: What may be wrong, by class; the first that fits. Errors that are not here say it themselves.
HINTS: tuple[tuple[type[Error], str], ...] = (
    (PeerError, "is it a remora server? If so, both sides need the same version: compare `remora --version` on both machines"),
    (BrokenError, "is a server running there? Start one on that machine with `remora serve`, and see that no firewall is between"),
    (
        DeadlineError,
        "is it a remora server, and is its machine overloaded? `remora check URI` tells; `?timeout=60` in the URI waits longer",
    ),
)


def amount(count: float, unit: str) -> str:
    """A count with a decimal prefix, such as "67.1 MB" for 67,108,864 and "B"."""
    for step, prefix in _STEPS:
        if abs(count) >= step:
            return f"{count / step:.3g} {prefix}{unit}"
    return f"{count:.3g} {unit}"


def duration(seconds: float) -> str:
    """Seconds as a person reads them: "1.23 s", "12.3 ms", "45.6 us"."""
    for step, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= step:
            return f"{seconds / step:.3g} {unit}" if seconds < 1e3 * step else f"{seconds:.0f} s"
    return f"{seconds * 1e6:.3g} us"


def fact(label: str, *values: str, style: str = "") -> None:
    """One line: a label, then what it is."""
    CONSOLE.print(Text.assemble((label.ljust(_LABEL_WIDTH), "bold"), ("  ".join(values), style)), soft_wrap=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print a table; the columns named in `right` are numbers."""
    shown = Table(box=SIMPLE_HEAD if CONSOLE.is_terminal else None, pad_edge=False, header_style="bold")
    for column in columns:
        shown.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        shown.add_row(*map(Text, row))
    CONSOLE.print(shown)


def waiting(what: str) -> AbstractContextManager[Any]:
    """A sign of life on a terminal while something is waited for; nothing in a pipe."""
    return CONSOLE.status(Text(what)) if CONSOLE.is_terminal else nullcontext()


def hint_for(error: Error) -> str:
    """What to try next, or nothing when the message says it."""
    if isinstance(error, NotFoundError) and "no driver for 'tcp'" in error.message:
        return "a device behind a server has a remote- URI: remote-tcp://host:5000"
    return next((hint for kind, hint in HINTS if isinstance(error, kind)), "")


def print_error(error: Error, *, verbose: bool) -> None:
    """`error: ...` and `hint: ...` on stderr, after the traceback if that is wanted."""
    if verbose:
        traceback.print_exception(error)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    lines = [("error", str(error), "bold red"), ("hint", hint_for(error), "bold")]
    if error.__cause__ is not None and str(error.__cause__) not in str(error):
        lines.insert(1, ("cause", str(error.__cause__), "bold"))
    for label, message, style in lines:
        if message:
            console.print(Text.assemble((f"{label}: ", style), message))
