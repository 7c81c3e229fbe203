"""Templates: autoescaped, and all stored text made harmless by one filter, ``plain``."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from limpet.backends.facts import human_size
from limpet.views import text

if TYPE_CHECKING:
    from datetime import datetime

__all__ = ["environment", "plain"]


@cache
def environment() -> Environment:
    """Where templates come from. None of them can say ``safe``: there is no such filter."""
    made = Environment(
        loader=PackageLoader("limpet.inspector"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        plain=plain,
        brief=lambda value, most=200: plain(text.shorten(text.one_line(value), most)),
        line=text.one_line,
        document=lambda value: plain(text.json_document(value)),
        size=human_size,
        number=lambda value: f"{value:,}",
        took=text.duration,
        when=when,
        moment=moment,
    )
    del made.filters["safe"]
    made.globals.update(count=text.count)
    return made


def plain(value: Any, most: int | None = None) -> str:
    """Stored text as people may see it: nothing hidden, nothing that turns text round.

    *most*: characters; what is cut off is said, so that a template can link to the whole.
    """
    given = value if isinstance(value, str) else text.one_line(value)
    left = 0 if most is None else len(given) - most
    shown = text.safe(given[:most] if left > 0 else given)
    shown = shown.encode("utf-8", "backslashreplace").decode()  # lone surrogates
    return f"{shown}… ({left:,} more characters)" if left > 0 else shown


def when(at: datetime | None) -> Markup:
    """A time: how long ago, and in full where a pointer rests on it."""
    if at is None:
        return Markup()
    full = text.timestamp(at)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(full, full, text.ago(at))


def moment(at: datetime) -> Markup:
    """A time in full: one to come, or one that is to be exact."""
    full = text.timestamp(at)
    return Markup('<time datetime="{}">{}</time>').format(full, full)
