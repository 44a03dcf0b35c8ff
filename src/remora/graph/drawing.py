"""A prepared graph as a picture: lanes as rows, regions as boxes in the order of recording, inferred edges as lines."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remora.graph.executable import Shape
    from remora.graph.plan import Region

__all__ = ["draw"]

LEFT, TOP, ROW, GAP, LINE = 110, 40, 40, 26, 18
CHARACTER = 7.2
COLORS = ("#4c78a8", "#59a14f", "#e9a23b", "#9c6bbf", "#d1605e", "#76b7b2")
ARROW = (
    '<defs><marker id="end" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0 8 4 0 8z" fill="#555"/></marker></defs>'
)
#: Nodes that one region names; of more it tells the number.
NAMED = 8


def draw(shape: Shape, lanes: Sequence[str]) -> str:
    """SVG text."""
    regions = shape.plan.regions
    used = sorted({region.lane for region in regions})
    texts = [_lines(shape, region) for region in regions]
    tops = _tops(regions, texts, used)
    places, x = [], float(LEFT)
    for region, lines in zip(regions, texts, strict=True):
        width = max(map(len, lines)) * CHARACTER + 16
        places.append((x, tops[region.lane], width, len(lines) * LINE + 10))
        x += width + GAP
    height = max(y + high for _, y, _, high in places) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{x:.0f}" height="{height:.0f}" font-family="monospace" font-size="12">',
        ARROW,
        f'<text x="8" y="22" font-weight="bold">{escape(shape.name)}</text>',
    ]
    parts += [f'<text x="8" y="{tops[lane] + LINE}" fill="#333">{escape(lanes[lane])}</text>' for lane in used]
    for number, region in enumerate(regions):
        parts += [_edge(places[other], places[number]) for other in region.after]
    for region, lines, place in zip(regions, texts, places, strict=True):
        parts += _box(place, COLORS[region.lane % len(COLORS)], lines)
    return "\n".join([*parts, "</svg>"])


def _box(place: tuple[float, int, float, int], color: str, lines: Sequence[str]) -> list[str]:
    left, top, width, high = place
    frame = f'x="{left:.0f}" y="{top}" width="{width:.0f}" height="{high}" rx="5"'
    box = f'<rect {frame} fill="{color}" fill-opacity="0.18" stroke="{color}"/>'
    texts = (f'<text x="{left + 8:.0f}" y="{top + (index + 1) * LINE}">{escape(line)}</text>' for index, line in enumerate(lines))
    return [box, *texts]


def _lines(shape: Shape, region: Region) -> list[str]:
    """One line for each node: its number and what it does, and the nodes of the region that it comes after."""
    lines = []
    for number in range(region.first, min(region.stop, region.first + NAMED)):
        inside = [str(other) for other in shape.plan.edges[number] if other >= region.first]
        lines.append(f"{number} {shape.operations[number].name}" + (f" after {' '.join(inside)}" if inside else ""))
    if region.stop - region.first > NAMED:
        lines.append(f"and {region.stop - region.first - NAMED} more")
    return lines


def _tops(regions: Sequence[Region], texts: Sequence[Sequence[str]], used: Sequence[int]) -> dict[int, int]:
    tops, y = {}, TOP
    for lane in used:
        tops[lane] = y
        y += max(len(lines) for region, lines in zip(regions, texts, strict=True) if region.lane == lane) * LINE + ROW
    return tops


def _edge(source: tuple[float, int, float, int], target: tuple[float, int, float, int]) -> str:
    x, y = source[0] + source[2], source[1] + source[3] / 2
    to_x, to_y = target[0], target[1] + target[3] / 2
    bend = max(20.0, (to_x - x) / 2)
    return (
        f'<path d="M{x:.0f} {y:.0f}C{x + bend:.0f} {y:.0f} {to_x - bend:.0f} {to_y:.0f} {to_x:.0f} {to_y:.0f}" '
        'fill="none" stroke="#555" marker-end="url(#end)"/>'
    )
