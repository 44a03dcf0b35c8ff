"""The picture of a run: a panel of bars for each number that is compared, and curves on log axes for how cost grows.

Needs matplotlib, which the extra `bench` brings. It is imported when a picture is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from remora.bench.growth import CURVES
from remora.bench.peers.metrics import METRICS, Figures, Metric
from remora.bench.report import Curve, Report
from remora.errors import UnsupportedError, UsageError

__all__ = ["check_picture", "draw"]

SUFFIXES = (".svg", ".png", ".pdf")
#: Metrics with a panel; the sizes of transfers between and beyond are in the table.
DRAWN = ("rtt_p50", "pipelined", "end_to_end", "upload_64_mib", "download_64_mib", "noticed", "ready", "import", "memory")
COLUMNS = 3
COLOURS = {"floor": "#b8bec6", "remora": "#0b7a75", "peer": "#d9822b", "elsewhere": "#ecd3b4"}
LEGEND = {"floor": "plain sockets", "remora": "remora", "peer": "peers, same run", "elsewhere": "measured elsewhere"}
LINE_COLOURS = {"tcp": "#0b7a75", "unix": "#7a4fb5", "shm": "#c2453a"}
#: An axis that spans less has more numbers.
TWO_DECADES = 300
INCHES_WIDE, INCHES_A_BAR, INCHES_A_HEAD, INCHES_GROWTH = 15.0, 0.21, 1.0, 3.4


def check_picture(file: Path) -> None:
    """Raise UsageError for a suffix that nobody can draw, UnsupportedError where matplotlib is missing."""
    if file.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{file}: the picture's name must end in {', '.join(SUFFIXES)}")
    if find_spec("matplotlib") is None:
        raise UnsupportedError("a picture needs matplotlib: pip install 'remora[bench]'")


def draw(report: Report, file: Path) -> None:
    """Write the picture of what the run has: comparison, growth, or both. Raises as `check_picture`, and UsageError for neither."""
    check_picture(file)
    metrics = [metric for metric in METRICS if metric.key in DRAWN]
    metrics.sort(key=lambda metric: DRAWN.index(metric.key))
    painters = _bars(report.comparison, metrics) if report.comparison else []
    lines = _lines(report.growth)
    if not painters and not lines:
        raise UsageError("there is nothing to draw: a picture shows the comparison or the growth")
    _paint(report, painters, lines, file)


Painter = Callable[[Any], None]


def _bars(rows: Sequence[Figures], metrics: Sequence[Metric]) -> list[Painter]:
    return [lambda axes, metric=metric: _bar_panel(axes, rows, metric) for metric in metrics]  # type: ignore[misc]


def _lines(curves: Sequence[Curve]) -> list[Painter]:
    panels = [panel for panel in CURVES if any(curve.panel == panel for curve in curves)]
    return [
        lambda axes, panel=panel: _line_panel(axes, panel, [curve for curve in curves if curve.panel == panel])  # type: ignore[misc]
        for panel in panels
    ]


def _paint(report: Report, bars: Sequence[Painter], lines: Sequence[Painter], file: Path) -> None:
    from matplotlib.figure import Figure

    heights = [INCHES_A_HEAD + INCHES_A_BAR * len(report.comparison)] * (-(-len(bars) // COLUMNS))
    heights += [INCHES_GROWTH] * bool(lines)
    figure: Any = Figure(figsize=(INCHES_WIDE, sum(heights) + 0.9), layout="constrained")
    bands = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    for number, paint in enumerate(bars):
        band, column = divmod(number, COLUMNS)
        paint(bands[band].add_subplot(1, COLUMNS, column + 1))
    for number, paint in enumerate(lines):
        paint(bands[-1].add_subplot(1, len(lines), number + 1))
    here = report.machine
    busy = "" if here.quiet else f", BUSY: load {here.load[0]:.1f}"
    quick = ", quick run" if report.quick else ""
    what = "remora and its peers on one machine" if report.comparison else "how cost grows"
    figure.suptitle(f"{what}: {here.processor}, {here.cores} cores{busy}{quick}", fontsize=12)
    if report.comparison:
        _legend(figure, {row.kind for row in report.comparison})
    figure.savefig(file, dpi=110)


def _legend(figure: Any, kinds: set[str]) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=COLOURS[kind], label=label) for kind, label in LEGEND.items() if kind in kinds]
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches), frameon=False, fontsize=9)


def _bar_panel(axes: Any, rows: Sequence[Figures], metric: Metric) -> None:
    """Bars on a log axis, the best on top."""
    found = [row for row in rows if metric.key in row.values]
    found.sort(key=lambda row: row.values[metric.key], reverse=metric.less_is_better)
    values = [row.values[metric.key] for row in found]
    places = range(len(found))
    axes.barh(places, values, color=[COLOURS[row.kind] for row in found], height=0.72)
    axes.set_yticks(places, [row.title for row in found], fontsize=8)
    for label, row in zip(axes.get_yticklabels(), found, strict=True):
        label.set_fontweight("bold" if row.kind == "remora" else "normal")
    _log_axis(axes, values)
    for place, value in zip(places, values, strict=True):
        axes.text(value, place, f" {_number(value)}", va="center", fontsize=7.5, color="#333333")
    better = "less is better" if metric.less_is_better else "more is better"
    axes.set_title(f"{metric.title}\n{metric.unit}, {better}", fontsize=9, loc="left")
    _plain(axes)


def _log_axis(axes: Any, values: Sequence[float]) -> None:
    """From below the least bar to beyond the longest label."""
    positive = [value for value in values if value > 0]
    if positive:
        axes.set_xscale("log")
        axes.set_xlim(min(positive) / 2, max(positive) * 4)
        _plain_numbers(axes.xaxis)


def _plain_numbers(axis: Any) -> None:
    """Decades as people write them, and 2 and 5 between where there are few."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < low * TWO_DECADES else (1,), numticks=8))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _number(value)))
    axis.set_minor_formatter(NullFormatter())


def _number(value: float) -> str:
    """Three digits that count, in the way that people write numbers."""
    if value >= 1e6:
        return f"{value / 1e6:.3g} M" if value < 1e9 else f"{value / 1e6:,.0f} M"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _line_panel(axes: Any, panel: str, curves: Sequence[Curve]) -> None:
    """Log axes; a dashed line is the second of a carrier's two."""
    title, what, _ = CURVES[panel]
    for curve in curves:
        colour = LINE_COLOURS.get(curve.line.partition(" ")[0], "#555555")
        counts, costs = zip(*curve.points, strict=True)
        style = "--" if curve.line.endswith("download") else "-"
        axes.plot(counts, costs, style, color=colour, marker="o", markersize=3, linewidth=1.4, label=curve.line)
    axes.set_xscale("log")
    axes.set_yscale("log")
    low, high = (edge(cost for curve in curves for _, cost in curve.points) for edge in (min, max))
    axes.set_ylim(low / 2, max(high * 2, low * 10))
    _plain_numbers(axes.xaxis)
    _plain_numbers(axes.yaxis)
    axes.set_xlabel(what, fontsize=8)
    axes.set_title(f"{title}, us", fontsize=9, loc="left")
    axes.legend(fontsize=7, frameon=False)
    _plain(axes)


def _plain(axes: Any) -> None:
    """No box, a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.grid(visible=True, which="major", color="#e6e8eb", linewidth=0.6)
    axes.set_axisbelow(True)
