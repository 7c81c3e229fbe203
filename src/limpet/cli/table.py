"""Tables of thousands of rows: aligned, as wide as the terminal, at a tenth of what rich's take."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.style import Style

from limpet.views.text import safe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from limpet.cli.output import Screen

__all__ = ["Cell", "Column", "Table"]

#: The parts of a cell, each with its style.
Cell = tuple[tuple[str, str], ...]

GAP = "  "


class Column(NamedTuple):
    """A column: *folds* or is *cut* where a terminal has no room; neither under *least* columns.

    One that is *optional* is left out where it would not have those.
    """

    title: str
    right: bool = False
    folds: bool = False
    cut: bool = False
    least: int = 0
    optional: bool = False


class Table:
    """*rows*, each of as many cells as there are *columns*. Texts are made safe.

    A column without a text is left out.
    """

    def __init__(
        self, screen: Screen, columns: Sequence[Column], rows: Iterable[Sequence[Cell]]
    ) -> None:
        self._screen = screen
        self._columns = columns
        self._rows = [[_safe(cell) for cell in row] for row in rows]
        natural = []
        for number, column in enumerate(columns):
            widest = max((_width(row[number]) for row in self._rows), default=0)
            natural.append(widest and max(widest, cell_len(column.title)))
        self._widths = _fitted(columns, natural, screen.width)

    @property
    def fits(self) -> bool:
        """Whether it is not wider than the screen."""
        return _taken(self._widths) <= self._screen.width

    def print(self) -> None:
        """Print it, with the titles of its columns."""
        paint = _Paint(self._screen)
        titles: list[Cell] = [((column.title, "dim"),) for column in self._columns]
        rows = [titles, *self._rows]
        lines = (line for row in rows for line in _lines(self._columns, row, self._widths, paint))
        self._screen.console.file.write("".join(f"{line}\n" for line in lines))


def _safe(cell: Cell) -> Cell:
    return tuple((" ".join(safe(text).split("\n")), style) for text, style in cell if text)


def _width(cell: Cell) -> int:
    return sum(len(text) if text.isascii() else cell_len(text) for text, _ in cell)


def _fitted(columns: Sequence[Column], natural: list[int], width: int) -> list[int]:
    """How wide each column is; 0: it is left out."""
    widths = [0 if column.optional else wide for column, wide in zip(columns, natural, strict=True)]
    # Those that can, give way: the widest of them, as far as the next one.
    while (over := _taken(widths) - width) > 0:
        can = [
            number
            for number, column in enumerate(columns)
            if (column.cut or column.folds) and widths[number] > column.least
        ]
        if not can:
            break
        widest = max(can, key=lambda number: widths[number])
        others = [widths[number] for number in can if widths[number] < widths[widest]]
        room = widths[widest] - max([columns[widest].least, *others])
        widths[widest] -= max(1, min(over, room))
    for number, column in enumerate(columns):
        room = width - _taken(widths) - len(GAP)
        if column.optional and natural[number] and room >= min(column.least, natural[number]):
            widths[number] = min(natural[number], room)
    return widths


def _taken(widths: Iterable[int]) -> int:
    shown = [wide for wide in widths if wide]
    return sum(shown) + len(GAP) * (len(shown) - 1)


def _lines(
    columns: Sequence[Column], row: Sequence[Cell], widths: list[int], paint: _Paint
) -> Iterator[str]:
    cells: list[tuple[Column, int, list[Cell]]] = []
    for column, cell, width in zip(columns, row, widths, strict=True):
        if not width:
            continue
        if _width(cell) <= width:
            parts = [cell]
        elif column.cut:
            parts = [_cut(cell, width)]
        else:
            parts = list(_folded(cell, width))
        cells.append((column, width, parts))
    for number in range(max(len(parts) for _, _, parts in cells)):
        line, filling = "", ""
        for column, width, parts in cells:
            cell = parts[number] if number < len(parts) else ()
            rest = " " * (width - _width(cell))
            text = "".join(paint(text, style) for text, style in cell)
            if column.right:
                text, rest = rest + text, ""
            if cell:
                line += filling + text
                filling = rest + GAP
            else:
                filling += " " * width + GAP
        yield line


def _cut(cell: Cell, width: int) -> Cell:
    """The beginning of *cell*, which ends in an ellipsis."""
    room, found = width - 1, []
    for text, style in cell:
        if cell_len(text) > room:
            found.append((set_cell_size(text, room).rstrip() + "…", style))
            break
        found.append((text, style))
        room -= cell_len(text)
    return tuple(found)


def _folded(cell: Cell, width: int) -> Iterator[Cell]:
    """*cell* in lines of *width*: broken at a space where there is one."""
    line: list[tuple[str, str]] = []
    room = width
    for text, style in cell:
        left = text
        while cell_len(left) > room:
            piece = chop_cells(left, room)[0] if room > 1 else left[:room]
            space = piece.rfind(" ")
            if space > 0 and left[len(piece)] != " ":
                piece = left[:space]
            elif line and space <= 0 and room < width and cell_len(left) <= width:
                piece = ""  # a word that fits on the next line
            if piece.strip():
                line.append((piece, style))
            yield tuple(line)
            left, line, room = left[len(piece) :].lstrip(), [], width
        if left:
            line.append((left, style))
            room -= cell_len(left)
    if line:
        yield tuple(line)


class _Paint:
    """Puts the terminal's codes for a style round a text: each style is looked up once."""

    def __init__(self, screen: Screen) -> None:
        console = screen.console
        self._plain = console.color_system is None
        self._console = console
        self._codes: dict[str, tuple[str, str]] = {"": ("", "")}

    def __call__(self, text: str, style: str) -> str:
        if self._plain or not style:
            return text
        if style not in self._codes:
            found = Style.parse(style)
            found = found.without_color if self._console.no_color else found
            shown = found.render("\0", color_system=self._console._color_system)  # noqa: SLF001 - rich's own renders by it
            before, _, after = shown.partition("\0")
            self._codes[style] = before, after
        before, after = self._codes[style]
        return f"{before}{text}{after}"
