"""Every figure beside its target, drawn by hand as SVG."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from bench._measure import TIMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench._measure import Row

WIDTH, LINE = 760, 22
LEFT, RIGHT, TOP, BOTTOM = 430, 60, 52, 12

_STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #444 }
  .title { font-size: 14px; font-weight: 600 }
  .met { fill: #0a7c86 }
  .missed { fill: #c2571a }
  .target { stroke: #444; stroke-width: 2 }
  @media (prefers-color-scheme: dark) {
    text { fill: #ccc }
    .target { stroke: #ccc }
    .met { fill: #3fc1cc }
    .missed { fill: #e8833f }
  }
"""


def as_chart(rows: Sequence[Row]) -> str:
    """A bar for each row that is a ratio with a target; all targets stand on one line."""
    held = [row for row in rows if row.unit == TIMES and row.met is not None]
    height = TOP + LINE * len(held) + BOTTOM
    target = LEFT + (WIDTH - LEFT - RIGHT) / 2
    parts = [
        f'<text class="title" x="12" y="20">Measured, to its target ({len(held)} ratios)</text>',
        f'<text x="{target:.0f}" y="{TOP - 12}" text-anchor="middle">target</text>',
        *(_bar(row, TOP + LINE * number) for number, row in enumerate(held)),
        (
            f'<line class="target" x1="{target:.0f}" x2="{target:.0f}"'
            f' y1="{TOP - 6}" y2="{height - BOTTOM}"/>'
        ),
    ]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">\n'
        f"<style>{_STYLE}</style>\n{body}\n</svg>\n"
    )


def _bar(row: Row, y: float) -> str:
    """How far it is: up to the line is as far as it may be, or has to be at least."""
    is_ceiling = row.at_most is not None
    target = row.at_most if row.at_most is not None else row.at_least or 1.0
    wide = (WIDTH - LEFT - RIGHT) / 2
    length = min(row.value / target, 1.9) * wide
    found = f"{row.value:.2f} ({'≤' if is_ceiling else '≥'} {target:.3g})"
    name = row.name if len(row.name) <= 66 else f"{row.name[:65]}…"
    return (
        f'<text x="12" y="{y + 14:.0f}">{escape(name)}</text>'
        f'<rect class="{"met" if row.met else "missed"}" x="{LEFT}" y="{y + 4:.0f}"'
        f' width="{length:.0f}" height="{LINE - 9}"/>'
        f'<text x="{LEFT + max(length, wide) + 6:.0f}" y="{y + 14:.0f}">{found}</text>'
    )
