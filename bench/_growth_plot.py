"""A LangGraph thread that grows, with each saver: its turns and what is kept, drawn as SVG."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench._measure import Row

WIDTH, HEIGHT = 860, 330
PANEL, LEFT, TOP, BOTTOM = 250, 56, 48, 52
NAMES = 104  # room for names, behind each panel

_STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #444 }
  .title { font-size: 14px; font-weight: 600 }
  .grid { stroke: #888; stroke-opacity: 0.3 }
  .other { stroke: #888; fill: #888 }
  .limpet { stroke: #0a7c86; fill: #0a7c86 }
  path { fill: none !important; stroke-width: 2 }
  text.other, text.limpet { stroke: none; font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    text { fill: #ccc }
    .limpet { stroke: #3fc1cc; fill: #3fc1cc }
  }
"""

#: A line: its name, and its points, as length and value.
Line = tuple[str, list[tuple[float, float]]]


def as_growth(rows: Sequence[Row]) -> str:
    """Two panels, both axes logarithmic: milliseconds a turn, and bytes kept."""
    turns = _lines(rows, "_dicts_ms", 1)
    kept = _lines(rows, "_bytes", 1e-6)
    parts = [
        *_panel(0, "A turn, in ms", turns),
        *_panel(LEFT + PANEL + NAMES + 20, "Kept, in MB", kept),
    ]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n'
        f"<style>{_STYLE}</style>\n{body}\n</svg>\n"
    )


def _lines(rows: Sequence[Row], ending: str, factor: float) -> list[Line]:
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for key, value in row.figures.items():
            name = key.removesuffix(ending)
            if name not in (key, "alone"):
                point = row.figures["length"], value * factor
                lines.setdefault(name, []).append(point)
    return list(lines.items())


def _panel(left: float, title: str, lines: list[Line]) -> list[str]:
    lengths = sorted({length for _, points in lines for length, _ in points})
    values = [value for _, points in lines for _, value in points]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    start, end = left + LEFT, left + LEFT + PANEL

    def x(length: float) -> float:
        first, last = math.log10(lengths[0]), math.log10(lengths[-1])
        return start + (math.log10(length) - first) / (last - first) * PANEL

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (math.log10(value) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<text class="title" x="{start}" y="20">{title}</text>']
    for power in range(low, high + 1):
        at = y(10.0**power)
        parts += [
            f'<line class="grid" x1="{start}" x2="{end}" y1="{at:.1f}" y2="{at:.1f}"/>',
            f'<text x="{start - 8}" y="{at + 4:.1f}" text-anchor="end">{10.0**power:,g}</text>',
        ]
    parts += [_text(f"{length:,.0f}", x(length), HEIGHT - BOTTOM + 18) for length in lengths]
    parts.append(_text("turns in the thread", (start + end) / 2, HEIGHT - 12))
    lowest = math.inf
    for name, points in sorted(lines, key=lambda line: y(line[1][-1][1]), reverse=True):
        of = "limpet" if name == "Limpet" else "other"
        spots = [(x(length), y(value)) for length, value in points]
        path = "M" + "L".join(f"{one:.1f} {other:.1f}" for one, other in spots)
        parts.append(f'<path class="{of}" d="{path}"/>')
        parts += [f'<circle class="{of}" cx="{a:.1f}" cy="{b:.1f}" r="3"/>' for a, b in spots]
        lowest = min(spots[-1][1] + 4, lowest - 15)  # names do not overlap
        parts.append(
            f'<text class="{of}" x="{spots[-1][0] + 8:.1f}" y="{lowest:.1f}">{name}</text>'
        )
    return parts


def _text(text: str, x: float, y: float) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{text}</text>'
