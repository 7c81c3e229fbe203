"""What differs between two versions of something, for people: where, what was there, what is."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Change", "as_lines", "line_by_line"]

#: Characters of a text that is not compared line by line.
VALUE = 200
#: Lines of text that are compared line by line, and lines of such a comparison.
COMPARED = 400
SHOWN = 20


class Change(Struct, frozen=True):
    """One difference: something in a *place*, which has a *name* there unless it is all of it.

    *before* and *after* are what it was and is, as text; None where it was not, or is not, there.
    Both are None where only a *note* says what changed: its place in an order, say.
    """

    place: str
    name: str = ""
    before: str | None = None
    after: str | None = None
    note: str = ""

    @property
    def mark(self) -> str:
        """- for what is gone, + for what is new, ~ for what is otherwise."""
        if (self.before is None) == (self.after is None):
            return "~"
        return "-" if self.after is None else "+"

    @property
    def path(self) -> str:
        """Place and name."""
        return f"{self.place}{self.name}" if self.name[:1] == "[" else ".".join(self._parts())

    def _parts(self) -> list[str]:
        return [part for part in (self.place, self.name) if part]

    @property
    def multiline(self) -> bool:
        """Whether it is of texts of several lines, which are best compared line by line."""
        texts = (self.before, self.after)
        return all(text is not None and text.count("\n") < COMPARED for text in texts) and any(
            "\n" in (text or "") for text in texts
        )


def as_lines(
    changes: Iterable[Change], *, places: int | None = None, lines: int | None = None
) -> list[str]:
    """*changes* in lines, below the place of each; of more *places* or *lines* only the number."""
    found: list[str] = []
    left = 0
    for number, (place, group) in enumerate(groupby(changes, key=lambda change: change.place)):
        if places is not None and number >= places:
            left += 1
            continue
        shown = [line for change in group for line in _lines_of(change)]
        found.append(place or "document")
        found += [f"  {line}" for line in shown[:lines]]
        if lines is not None and len(shown) > lines:
            found.append(f"  … and {len(shown) - lines:,} more")
    if left:
        found.append(f"… and {left:,} more places")
    return found


def _lines_of(change: Change) -> Iterator[str]:
    name = change.name
    if change.multiline and change.before is not None and change.after is not None:
        yield from [f"{name}:"] if name else []
        yield from line_by_line(change.before, change.after)
        return
    separator = "" if not name else " " if name[0] == "[" else ": "
    note = f" ({change.note})" if change.note else ""
    for mark, text in (("-", change.before), ("+", change.after)):
        if text is not None:
            yield f"{mark} {name}{separator}{_short(text)}{note}"
    if change.before is None and change.after is None:
        yield f"~ {name}{note}" if name else f"~ {change.note}"


def line_by_line(before: str, after: str) -> Iterator[str]:
    """A text compared with another, as programs are: with a line around each place."""
    import difflib  # noqa: PLC0415 - slow to import, rarely needed

    texts = before.splitlines(), after.splitlines()
    found = list(difflib.unified_diff(*texts, lineterm="", n=1))[2:]
    for line in found[:SHOWN]:
        marked = line.startswith("@@")
        yield line if marked else f"{line[0]} {_short(line[1:])}".rstrip()
    if len(found) > SHOWN:
        left = len(found) - SHOWN
        yield f"… and {left:,} more line" + ("" if left == 1 else "s")


def _short(text: str) -> str:
    """*text* on one line, cut where it is long; it then says how long."""
    line = text.replace("\n", " ")
    return line if len(line) <= VALUE else f"{line[:VALUE]}… ({len(text):,} characters)"
