"""What is wrong with arguments, in one sentence that a model can put them right by.

It says which argument, what is expected of it and of what kind the one was that came; never what
was in it.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import inspect

__all__ = ["EXAMPLE", "misfit"]

#: Of a time; RFC 3339 has the seconds, too.
EXAMPLE = "2026-01-31T00:00:00Z"
#: Characters of a name that is repeated.
NAME = 64


def misfit(arguments: dict[str, Any], as_: type[msgspec.Struct]) -> str:
    """The first thing for which *arguments* are not what *as_* takes; they are known not to be."""
    fields = {field.name: field for field in msgspec.structs.fields(as_)}
    for name in arguments:
        if name not in fields:
            return _unknown(name, list(fields))
    for name, field in fields.items():
        expected = _expected(inspect.type_info(field.type))
        if name not in arguments:
            if field.required:
                return f"`{name}` is missing: it must be {expected}."
        elif not _fits(arguments[name], field.type):
            return f"`{name}` must be {expected}; {_given(arguments[name], field.type)}."
    return "These arguments do not fit together."


def _unknown(name: str, names: list[str]) -> str:
    named = f"`{name}`" if name.isidentifier() and len(name) <= NAME else "of that name"
    there = f"there are: {', '.join(names)}" if names else "it takes none"
    return f"There is no argument {named}; {there}."


def _fits(value: Any, as_: Any) -> bool:
    try:
        msgspec.convert(value, as_, strict=False)
    except (msgspec.ValidationError, UnicodeEncodeError):
        return False
    return True


# -- what is expected ------------------------------------------------------------------------------


def _bare(of: inspect.Type) -> inspect.Type:
    """Without what is said of it, and without null."""
    while isinstance(of, (inspect.Metadata, inspect.UnionType)):
        of = of.type if isinstance(of, inspect.Metadata) else of.types[0]
    return of


def _expected(of: inspect.Type) -> str:
    """A type of `asking`, in words."""
    match _bare(of):
        case inspect.StrType() as text:
            least = text.min_length or int(text.pattern is not None)  # the one that we have is \S
            return f"text of {_range(least, text.max_length)} characters"
        case inspect.IntType() as number:
            return f"a whole number from {number.ge:,} to {number.le:,}"
        case inspect.FloatType() as number:
            return f"a number from {number.ge:g} to {number.le:g}"
        case inspect.ListType() as several:
            size = _range(several.min_length, several.max_length)
            return f"a list of {size}, each {_expected(several.item_type)}"
    return f"a time with an offset, as {EXAMPLE}"


def _range(least: int | None, most: int | None) -> str:
    return f"{least:,} to {most:,}" if least else f"up to {most:,}"


# -- what was given --------------------------------------------------------------------------------


def _given(value: Any, as_: Any) -> str:
    """Of what kind *value* is; of a list, which item does not fit, or how many there are."""
    of = _bare(inspect.type_info(as_))
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and isinstance(of, (inspect.IntType, inspect.FloatType)):
        return "another number was given"
    if isinstance(value, list) and isinstance(of, inspect.ListType):
        for at, item in enumerate(value, 1):
            if not _fits([item], as_):
                return f"item {at:,} is {_kind(item)}"
    return f"{_kind(value)} was given"


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return _text(value)
        case list():
            return f"a list of {len(value):,}"
    return "an object"


def _text(value: str) -> str:
    if not value.strip():
        return "empty text"
    return "text of 1 character" if len(value) == 1 else f"text of {len(value):,} characters"
