"""Stored text made fit to be read: harmless to a terminal, short where it must be, or as JSON."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

__all__ = ["ago", "clock", "document", "json_line", "one_line", "safe", "shorten", "stamp"]

# What a terminal obeys instead of showing (C0 but for the line feed, DEL, C1), line separators, and
# the marks that make text run backwards. Stored text is other people's text.
_OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

_NAMES = {"\t": "    ", "\r": "\\r", "\x1b": "\\e"}


def safe(text: str) -> str:
    r"""*text* with everything that a terminal would obey written out; lines stay lines.

    >>> safe("red: \x1b[31m")
    'red: \\e[31m'
    """
    return _OBEYED.sub(_written_out, text.replace("\r\n", "\n"))


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    return _NAMES.get(found[0]) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")  # noqa: PLR2004 - one byte


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


def document(value: Any) -> str:
    """*value* as JSON to be read by people too."""
    return _escaped(msgspec.json.format(msgspec.json.encode(value), indent=2))


def _escaped(encoded: bytes) -> str:
    # Control characters occur in JSON only within strings, where \u may stand for them. The line
    # feeds of an indented document are the exception, and are not in _OBEYED.
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", encoded.decode())


# -- sizes and times -------------------------------------------------------------------------------


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


def stamp(at: datetime) -> str:
    """*at* in full, to the second, in UTC."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def clock(at: datetime) -> str:
    """*at* in the reader's own time: the hour if that says enough, else the date as well."""
    recent = datetime.now(UTC) - at < timedelta(hours=12)
    return f"{at.astimezone():%H:%M:%S}" if recent else f"{at.astimezone():%Y-%m-%d %H:%M}"
