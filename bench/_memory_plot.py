"""Evidence recall against how many are recalled, drawn by hand as SVG."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.memory import Score

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 48, 250, 44, 48
#: Of the y axis, in percent.
LOW, HIGH = 30, 90
#: Between the names of two lines, in pixels.
APART = 16

_STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #444 }
  .title { font-size: 14px; font-weight: 600 }
  .grid { stroke: #888; stroke-opacity: 0.3 }
  .other { stroke: #888; fill: #888 }
  .limpet { stroke: #0a7c86; fill: #0a7c86 }
  path { fill: none !important; stroke-width: 2 }
  text.other, text.limpet { stroke: none }
  text.limpet { font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    text { fill: #ccc }
    .limpet { stroke: #3fc1cc; fill: #3fc1cc }
  }
"""


def as_svg(found: Sequence[Score]) -> str:
    """A line for each way; ours in colour."""
    depths = sorted(found[0].recall)
    parts = [
        f'<text class="title" x="{LEFT}" y="20">LoCoMo: evidence found, in percent</text>',
        *(_level(value) for value in range(LOW, HIGH + 1, 10)),
        *(_text(str(depth), _x(depth, depths), HEIGHT - BOTTOM + 18) for depth in depths),
        _text("memories recalled", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8),
    ]
    label = 0.0
    for one in sorted(found, key=lambda one: -one.recall[depths[-1]]):
        kind = "limpet" if one.name.startswith("Limpet") else "other"
        spots = [(_x(depth, depths), _y(one.recall[depth])) for depth in depths]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
        label = max(spots[-1][1] + 4, label + APART)
        parts.append(f'<path class="{kind}" d="{path}"/>')
        parts += [f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in spots]
        place = f'x="{WIDTH - RIGHT + 10}" y="{label:.1f}"'
        parts.append(f'<text class="{kind}" {place}>{escape(one.name)}</text>')
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n'
        f"<style>{_STYLE}</style>\n{body}\n</svg>\n"
    )


def _level(percent: float) -> str:
    y = _y(percent)
    return (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{percent:.0f}</text>'
    )


def _text(text: str, x: float, y: float) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{text}</text>'


def _x(depth: int, depths: Sequence[int]) -> float:
    """Each depth is as far from the next: it is twice as deep."""
    return LEFT + depths.index(depth) / (len(depths) - 1) * (WIDTH - LEFT - RIGHT)


def _y(percent: float) -> float:
    return HEIGHT - BOTTOM - (percent - LOW) / (HIGH - LOW) * (HEIGHT - TOP - BOTTOM)
