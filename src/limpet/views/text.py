"""Stored text made harmless, put on one line, cut, or written as JSON; counts and times in words.

Stored text is other people's text. What a terminal would obey, what nobody sees, and what makes
text run backwards is written out here, once for all who show it.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import msgspec

from limpet.llm.quoting import HIDDEN

__all__ = [
    "ago",
    "count",
    "duration",
    "json_document",
    "json_line",
    "one_line",
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


def duration(seconds: float) -> str:
    """How long something took, to what can be read at a glance.

    >>> [duration(one) for one in (0.0004, 0.042, 2.34, 95, 7400, 200_000)]
    ['under 1 ms', '42 ms', '2.3 s', '1 min 35 s', '2 h 3 min', '2 d 7 h']
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else "under 1 ms"  # noqa: PLR2004
    whole = int(seconds)
    for number, (length, unit) in enumerate(_UNITS[:-1]):
        if whole >= length:
            smaller, name = _UNITS[number + 1]
            rest = whole % length // smaller
            return f"{whole // length} {unit}" + (f" {rest} {name}" if rest else "")
    return f"{seconds:.1f} s"


def timestamp(at: datetime) -> str:
    """*at* in full, to the second, in UTC."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
