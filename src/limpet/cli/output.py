"""What commands print: stored text made harmless, short where it must be, or as JSON; and where.

Output is as wide as the terminal, and unbroken and without colour in a pipe.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from limpet.llm.quoting import HIDDEN

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import ProgressColumn

__all__ = [
    "Screen",
    "ago",
    "count",
    "json_document",
    "json_line",
    "local_time",
    "one_line",
    "progress_bar",
    "safe",
    "shorten",
    "timestamp",
]

# What a terminal obeys instead of printing (C0 but for the line feed, DEL, C1), and what is not
# seen or makes text run backwards. Stored text is other people's text.
_UNSAFE = f"[\x00-\x09\x0b-\x1f{HIDDEN}]"
# But behind a letter or sign that is not ASCII, joiners and selectors are how people write: in
# Persian and Hindi, and in emoji. One each, so that nothing can be written with them.
_VISIBLE = f"[^\x00-\x7f{HIDDEN}]"
_WRITING = f"(?<={_VISIBLE})[\ufe0e\ufe0f]|(?<={_VISIBLE}|\ufe0f)[\u200c\u200d]"
_CONTROL = re.compile(f"(?!{_WRITING}){_UNSAFE}")

_NAMES = {"\t": "    ", "\r": "\\r", "\x1b": "\\e"}


def safe(text: str) -> str:
    r"""*text* with all that a terminal would obey, or not show, written out; lines stay lines.

    >>> safe("red: \x1b[31m, nothing: \u200b")
    'red: \\e[31m, nothing: \\u200b'
    """

    def escape(found: re.Match[str]) -> str:
        return _NAMES.get(found[0]) or found[0].encode("unicode_escape").decode()

    return _CONTROL.sub(escape, text.replace("\r\n", "\n"))


def one_line(value: Any) -> str:
    """*value* on one line: text as it is, anything else as JSON."""
    text = value if isinstance(value, str) else json_line(value)
    return safe(" ".join(text.split()))


def shorten(text: str, most: int) -> str:
    """*text*, or its beginning if it has over *most* characters."""
    return text if len(text) <= most else text[: max(most - 1, 0)].rstrip() + "…"


# -- JSON ------------------------------------------------------------------------------------------


def json_line(value: Any) -> str:
    """*value* as one line of JSON, which no terminal obeys either."""
    return _escaped(msgspec.json.encode(value))


def json_document(value: Any) -> str:
    """*value* as JSON to be read by people too."""
    return _escaped(msgspec.json.format(msgspec.json.encode(value), indent=2))


def _escaped(encoded: bytes) -> str:
    # These characters occur in JSON only within strings, where \u may stand for them. The line
    # feeds of an indented document are the exception, and are not in _UNSAFE.
    return re.sub(_UNSAFE, lambda found: json.dumps(found[0])[1:-1], encoded.decode())


# -- counts and times ------------------------------------------------------------------------------


def count(number: int, one: str, many: str | None = None) -> str:
    """*number* of something, in words.

    >>> count(1, "entry", "entries"), count(1200, "task")
    ('1 entry', '1,200 tasks')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def ago(at: datetime, now: datetime | None = None) -> str:
    """How long ago *at* was, roughly.

    >>> ago(datetime(2026, 1, 1, 12, tzinfo=UTC), datetime(2026, 1, 1, 14, 30, tzinfo=UTC))
    '2 h ago'
    """
    seconds = int(((now or datetime.now(UTC)) - at).total_seconds())
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{seconds // length} {unit} ago"
    return "now"


def timestamp(at: datetime) -> str:
    """*at* in full, to the second, in UTC."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


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
