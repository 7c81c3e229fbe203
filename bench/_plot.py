"""The cost of a turn against the length of the conversation, drawn by hand as SVG."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench._measure import Row

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 56, 96, 44, 48

_STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #444 }
  .title { font-size: 14px; font-weight: 600 }
  .grid { stroke: #888; stroke-opacity: 0.3 }
  .raw { stroke: #888; fill: #888 }
  .limpet { stroke: #0a7c86; fill: #0a7c86 }
  path { fill: none !important; stroke-width: 2 }
  text.raw, text.limpet { stroke: none; font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    text { fill: #ccc }
    .limpet { stroke: #3fc1cc; fill: #3fc1cc }
  }
"""


def as_svg(rows: Sequence[Row]) -> str:
    """A line each for raw and Limpet, from the rows that tell of a length in turns."""
    points = [row.figures for row in rows if "turns" in row.figures]
    lengths = [point["turns"] for point in points]
    top = _nice(max(point[f"{way}_ms"] for point in points for way in ("raw", "limpet")))
    parts = [
        f'<text class="title" x="{LEFT}" y="20">One turn appended and durable, in ms</text>',
        *(_level(top * part / 4, top) for part in range(5)),
        *(_length(length, lengths) for length in lengths),
        _text("turns in the conversation", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8),
        *_labelled_lines(points, lengths, top),
    ]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n'
        f"<style>{_STYLE}</style>\n{body}\n</svg>\n"
    )


def _labelled_lines(
    points: Sequence[dict[str, float]], lengths: Sequence[float], top: float
) -> list[str]:
    """Both lines, and their names behind their ends, moved apart where they would overlap."""
    ends = {way: _y(points[-1][f"{way}_ms"], top) for way in ("raw", "limpet")}
    middle, half = sum(ends.values()) / 2, max(abs(ends["raw"] - ends["limpet"]) / 2, 8)
    lower = max(ends, key=lambda way: ends[way])
    parts = []
    for way in ends:
        spots = [(_x(point["turns"], lengths), _y(point[f"{way}_ms"], top)) for point in points]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
        parts.append(f'<path class="{way}" d="{path}"/>')
        parts += [f'<circle class="{way}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in spots]
        y = middle + (half if way == lower else -half) + 4
        parts.append(f'<text class="{way}" x="{WIDTH - RIGHT + 10}" y="{y:.1f}">{way}</text>')
    return parts


def _level(ms: float, top: float) -> str:
    y = _y(ms, top)
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{ms:.3g}</text>'
    )


def _length(length: float, lengths: Sequence[float]) -> str:
    return _text(f"{length:,.0f}", _x(length, lengths), HEIGHT - BOTTOM + 18)


def _text(text: str, x: float, y: float) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{text}</text>'


def _x(length: float, lengths: Sequence[float]) -> float:
    """Where a length is: each ten times as long is as far again."""
    first, last = math.log10(lengths[0]), math.log10(lengths[-1])
    return LEFT + (math.log10(length) - first) / (last - first) * (WIDTH - LEFT - RIGHT)


def _y(ms: float, top: float) -> float:
    return HEIGHT - BOTTOM - ms / top * (HEIGHT - TOP - BOTTOM)


def _nice(value: float) -> float:
    """The next round number over *value* that has a quarter which is round too."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10) if step * power > value)
