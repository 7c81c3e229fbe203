"""What a model may ask for: the arguments of each tool, with a limit on everything.

No argument names a store, a tenant or a namespace: those are fixed by whoever starts the server,
and an unknown argument is refused. What is wrong with arguments is said in one sentence by which a
model can correct them: which argument, what is expected, and of what kind the given one was; never
its content.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct, field, inspect

__all__ = [
    "EXAMPLE",
    "Arguments",
    "Checkpoint",
    "Forget",
    "InvalidArguments",
    "Recall",
    "Related",
    "Remember",
    "ResumeContext",
    "Snapshot",
    "Status",
    "Update",
    "parse",
    "schema",
]

A = TypeVar("A", bound="Arguments")

#: Limits: characters of a text, a line and a word; how many ids, and how many memories.
TEXT, LINE, WORD, IDS, K = 8_000, 1_000, 64, 20, 20
#: Characters of an unknown argument's name that an error repeats.
NAME = 64
#: An example of a time; RFC 3339 has the seconds, too.
EXAMPLE = "2026-01-31T00:00:00Z"

Word = Annotated[str, Meta(min_length=1, max_length=WORD)]
Words = Annotated[list[Word], Meta(max_length=16)]
Id = Annotated[str, Meta(min_length=1, max_length=512)]
Count = Annotated[int, Meta(ge=1, le=K, description="How many at most.")]
Text = Annotated[
    str,
    Meta(
        pattern=r"\S",
        max_length=TEXT,
        description="One fact, decision or finding, in words that make sense on their own.",
    ),
]
TaskId = Annotated[Id, Meta(description="The task's id; `status` lists some.")]
MemoryId = Annotated[Id, Meta(description="The id of a memory, as `recall` gives it.")]


class InvalidArguments(ValueError):
    """Arguments that a tool does not take; the message says which, and what it takes."""


class Arguments(Struct, forbid_unknown_fields=True, frozen=True):
    """What a tool is called with. Each subclass is that of the tool of its name."""


class Remember(Arguments, frozen=True):
    """For `remember`."""

    text: Text
    kind: Annotated[
        Word,
        Meta(
            description="What it is: fact, decision, …; a preference or an instruction of the "
            "user's, in their words, is shown to every later task."
        ),
    ] = "fact"
    tags: Annotated[Words, Meta(description="Words to filter by later.")] = field(
        default_factory=list
    )
    source: Annotated[
        str, Meta(max_length=512, description="Where it is from: a task, a file, a person.")
    ] = ""
    context: Annotated[
        str, Meta(max_length=LINE, description="What it was about, in a line; helps to find it.")
    ] = ""
    key: Annotated[
        str, Meta(max_length=512, description="With the same key again, it is stored once.")
    ] = ""


class Recall(Arguments, frozen=True):
    """For `recall`."""

    query: Annotated[
        str,
        Meta(
            pattern=r"\S",
            max_length=LINE,
            description='What you want to know, in plain words; with a time, as "last week", if it '
            "is about one.",
        ),
    ]
    k: Count = 5
    kinds: Annotated[Words, Meta(description="Only memories of one of these kinds.")] = field(
        default_factory=list
    )
    tags: Annotated[Words, Meta(description="Only memories with all of these tags.")] = field(
        default_factory=list
    )
    since: Annotated[
        Annotated[datetime, Meta(tz=True)] | None,
        Meta(description=f"Only what was said since then; with an offset, as {EXAMPLE}."),
    ] = None
    until: Annotated[
        Annotated[datetime, Meta(tz=True)] | None,
        Meta(description="Only what was said before then; with an offset."),
    ] = None
    min_score: Annotated[float, Meta(ge=0, le=1, description="Only what scores at least this.")] = 0


class Update(Arguments, frozen=True):
    """For `update`."""

    id: MemoryId
    text: Text
    because: Annotated[str, Meta(max_length=LINE, description="Why it changed.")] = ""


class Forget(Arguments, frozen=True):
    """For `forget`."""

    ids: Annotated[
        list[Id], Meta(min_length=1, max_length=IDS, description="Ids that `recall` has given.")
    ]


class Related(Arguments, frozen=True):
    """For `related`."""

    id: MemoryId
    k: Count = 5


class Status(Arguments, frozen=True):
    """For `status`: none."""


class Snapshot(Arguments, frozen=True):
    """For `snapshot`."""

    per_kind: Annotated[int, Meta(ge=1, le=10, description="The newest so many of each kind.")] = 3


class Checkpoint(Arguments, frozen=True):
    """For `checkpoint`."""

    task: TaskId


class ResumeContext(Arguments, frozen=True):
    """For `resume_context`."""

    task: TaskId
    max_tokens: Annotated[int, Meta(ge=200, le=20_000, description="How long it may be.")] = 4_000


def schema(of: type[Arguments]) -> dict[str, Any]:
    """The JSON schema that a client is shown."""
    _, found = msgspec.json.schema_components([of], ref_template="#/$defs/{name}")
    return {key: value for key, value in found[of.__name__].items() if key != "description"}


def parse(arguments: dict[str, Any], as_: type[A]) -> A:
    """*arguments* if they are what the tool takes; else `InvalidArguments`.

    What the schema does not allow is refused, so that a client which checks by it and one which
    does not get the same answer. JSON does not tell 5.0 from 5.
    """
    arguments = {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in arguments.items()
    }
    try:
        return msgspec.convert(arguments, as_)
    except (msgspec.ValidationError, UnicodeEncodeError):
        # Not with msgspec's own message, which may quote what was given.
        raise InvalidArguments(_problem(arguments, as_)) from None


# -- what is wrong ---------------------------------------------------------------------------------


def _problem(arguments: dict[str, Any], as_: type[Struct]) -> str:
    """The first thing that is wrong with *arguments*; something is."""
    fields = {field.name: field for field in msgspec.structs.fields(as_)}
    for name in arguments:
        if name not in fields:
            shown = f"`{name}`" if name.isidentifier() and len(name) <= NAME else "of that name"
            known = f"there are: {', '.join(fields)}" if fields else "it takes none"
            return f"There is no argument {shown}; {known}."
    for name, field_ in fields.items():
        expected = _expected(inspect.type_info(field_.type))
        if name not in arguments:
            if field_.required:
                return f"`{name}` is missing: it must be {expected}."
        elif not _fits(arguments[name], field_.type):
            return f"`{name}` must be {expected}; {_given(arguments[name], field_.type)}."
    return "These arguments do not fit together."


def _fits(value: Any, as_: Any) -> bool:
    try:
        msgspec.convert(value, as_)
    except (msgspec.ValidationError, UnicodeEncodeError):
        return False
    return True


def _bare(of: inspect.Type) -> inspect.Type:
    """A type without its metadata, and without null."""
    while isinstance(of, (inspect.Metadata, inspect.UnionType)):
        of = of.type if isinstance(of, inspect.Metadata) else of.types[0]
    return of


def _expected(of: inspect.Type) -> str:
    """One of the types above, in words."""
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


def _given(value: Any, as_: Any) -> str:
    """Of what kind *value* is; of a list, which item is wrong, or how many there are."""
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
            size = "1 character" if len(value) == 1 else f"{len(value):,} characters"
            return f"text of {size}" if value.strip() else "empty text"
        case list():
            return f"a list of {len(value):,}"
    return "an object"
