"""Where commands print, as wide as the terminal; unbroken and without colour in a pipe."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from limpet.views.text import ago, safe, timestamp

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import ProgressColumn

__all__ = ["Screen", "local_time", "progress_bar"]


def local_time(at: datetime) -> str:
    """*at* in the reader's own time: the hour if that says enough, else the date as well."""
    recent = datetime.now(UTC) - at < timedelta(hours=12)
    return f"{at.astimezone():%H:%M:%S}" if recent else f"{at.astimezone():%Y-%m-%d %H:%M}"


# -- where it goes ---------------------------------------------------------------------------------

#: In a pipe nothing is wrapped or cut to a width: what reads it there wants whole lines.
UNBOUNDED = 1_000_000

#: Under this many columns a table is not readable, and rows become lines.
NARROW = 72


class Screen:
    """Standard output, or standard error. Rich's markup is off: stored text is never markup."""

    def __init__(self, *, stderr: bool = False) -> None:
        self.console = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
        self.terminal = self.console.is_terminal
        if not self.terminal:
            self.console.width = UNBOUNDED

    @property
    def width(self) -> int:
        """Columns."""
        return self.console.width

    @property
    def narrow(self) -> bool:
        """Whether a table would not fit."""
        return self.width < NARROW

    def line(self, *parts: str | tuple[str, str] | Text, cut: bool = False) -> None:
        """One line of *parts*, each a text or (text, style); wrapped to the width, or *cut* to it.

        What is cut ends in "…". In a pipe neither happens. Texts are made safe.
        """
        text = Text()
        for part in parts:
            if isinstance(part, Text):
                text.append_text(part)
            else:
                words, style = (part, "") if isinstance(part, str) else part
                text.append(safe(words), style)
        if cut:
            text.truncate(self.width, overflow="ellipsis")
        self.console.print(text, soft_wrap=cut)

    def verbatim(self, text: str) -> None:
        """*text* to be copied: if it is too long, only the terminal breaks it."""
        self.console.print(Text(safe(text)), soft_wrap=True)

    def block(self, text: str, *, indent: int = 2, style: str = "", first: str = "") -> None:
        """*text*, made safe, wrapped and indented; *first* takes the place of the first indent."""
        for line in safe(text).rstrip("\n").split("\n") if text else ():
            self.hanging(Text(first.ljust(indent) + line, style), indent=indent)
            first = ""

    def hanging(self, text: Text, *, indent: int) -> None:
        """One line; where it is wrapped, it goes on under its own text."""
        head, text = text.divide([indent])
        for row in text.wrap(self.console, max(self.width - indent, 1)) or [Text()]:
            row.rstrip()
            line = Text.assemble(head, row)
            line.rstrip()
            self.console.print(line, soft_wrap=True)
            head = Text(" " * indent)

    def show(self, thing: RenderableType) -> None:
        """A table or the like; in a pipe without the spaces that fill up its last column."""
        if self.terminal:
            self.console.print(thing)
            return
        with self.console.capture() as captured:
            self.console.print(thing)
        for line in captured.get().splitlines():
            self.console.print(line.rstrip(), soft_wrap=True)

    def since(self, at: datetime) -> str:
        """When *at* was: for a person how long ago, in a pipe the time itself."""
        return ago(at) if self.terminal else timestamp(at)

    def time(self, at: datetime) -> str:
        """When *at* was: for a person by their own clock, in a pipe in full."""
        return local_time(at) if self.terminal else timestamp(at)


def progress_bar(*columns: ProgressColumn) -> Progress:
    """A bar on standard error, gone when it is done; nothing at all unless somebody is watching."""
    screen = Screen(stderr=True)
    return Progress(
        *columns, console=screen.console, disable=not screen.terminal, transient=True, expand=True
    )
