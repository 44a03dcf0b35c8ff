"""The tables of `remora bench`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from remora.bench.growth import CURVES
from remora.bench.peers.metrics import METRICS, Figures, Metric
from remora.bench.report import Curve, Report, Row

__all__ = ["comparison_notes", "figure", "tables"]

STYLES = {"floor": "dim", "remora": "bold", "peer": "", "elsewhere": "dim italic"}


#: Columns of a terminal that the whole comparison takes.
COMPARISON_WIDTH = 132


def tables(report: Report, width: int) -> Iterator[Table]:
    """What the run found, for a terminal of so many columns."""
    if report.rows:
        yield floors_table(report.rows)
    if report.comparison:
        if width >= COMPARISON_WIDTH:
            yield comparison_table(report.comparison, METRICS)
        else:
            yield comparison_table(report.comparison, [metric for metric in METRICS if not metric.size_bytes])
            yield comparison_table(report.comparison, [metric for metric in METRICS if metric.size_bytes])
    if report.growth:
        yield growth_table(report.growth)


def floors_table(rows: Sequence[Row]) -> Table:
    """A line for each row: value, floor, ratio and target."""
    table = Table(box=None, pad_edge=False)
    table.add_column("what")
    for title in ("value", "floor", "ratio", "target"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("")
    for row in rows:
        style = {True: "green", False: "red", None: ""}[row.ok]
        table.add_row(row.name, _quantity(row.value, row.unit), _quantity(row.floor, row.unit), _ratio(row), _target(row),
                      Text({True: "ok", False: "miss", None: ""}[row.ok], style=style))  # fmt: skip
    return table


def comparison_table(rows: Sequence[Figures], metrics: Sequence[Metric]) -> Table:
    """A line for everybody, a column for each metric, units beneath the heads; the best of remora and the peers is green."""
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    table.add_column("same work, same run")
    for metric in metrics:
        table.add_column(f"{metric.heading}\n{metric.unit}", justify="right", no_wrap=True)
    for row in rows:
        style = STYLES[row.kind]
        title = f"{row.title} *" if row.kind == "elsewhere" else row.title
        table.add_row(Text(title, style=style), *(_cell(row, metric, rows, style) for metric in metrics))
    return table


def _cell(row: Figures, metric: Metric, rows: Sequence[Figures], style: str) -> Text:
    value = row.values.get(metric.key)
    if value is None:
        return Text("-", style="dim")
    rivals = [other.values[metric.key] for other in rows if other.kind in ("remora", "peer") and metric.key in other.values]
    best = (min if metric.less_is_better else max)(rivals, default=None)
    return Text(figure(value), style="green" if row.kind in ("remora", "peer") and value == best else style)


def figure(value: float) -> str:
    """Three digits that count, thousands as they are."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def comparison_notes(rows: Sequence[Figures]) -> list[str]:
    """Why cells are empty, and what was measured elsewhere."""
    titles = {metric.key: metric.title for metric in METRICS}
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        empty: dict[str, list[str]] = {}
        for key, why in row.missing.items():
            empty.setdefault(why, []).append(titles[key])
        for why, what in empty.items():
            reasons.setdefault((why, "" if len(what) == len(METRICS) else f" ({'; '.join(what)})"), []).append(row.title)
    everybody = [row.title for row in rows if row.kind != "elsewhere"]
    notes = [
        f"{'everybody' if who == everybody and len(who) > 1 else '; '.join(who)}: {why}{what}"
        for (why, what), who in reasons.items()
    ]
    if any(row.kind == "elsewhere" for row in rows):
        names = " and ".join(row.title for row in rows if row.kind == "elsewhere")
        notes.append(f"* {names}: {next(row.note for row in rows if row.kind == 'elsewhere')}")
    return notes


def growth_table(curves: Sequence[Curve]) -> Table:
    """A line for each curve: the first and the last cost, and how much the last one is of the first."""
    table = Table(box=None, pad_edge=False)
    table.add_column("how cost grows")
    for title in ("from", "cost", "to", "cost", "grown"):
        table.add_column(title, justify="right", no_wrap=True)
    for curve in curves:
        title, what, _ = CURVES[curve.panel]
        (first, low), (last, high) = curve.points[0], curve.points[-1]
        table.add_row(f"{title}, {what}: {curve.line}", f"{first:,.0f}", f"{figure(low)} us", f"{last:,.0f}",
                      f"{figure(high)} us", f"{curve.growth:.2f}x")  # fmt: skip
    return table


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
