"""What a model may ask for: the arguments of each tool, with a limit on everything.

No argument names a store, a tenant or a namespace: those are fixed by whoever starts the server,
and a field that is not here is refused.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from limpet.mcp.misfits import EXAMPLE, misfit

__all__ = [
    "Checkpoint",
    "Forget",
    "Misfit",
    "Recall",
    "Related",
    "Remember",
    "ResumeContext",
    "Snapshot",
    "Status",
    "Update",
    "read",
    "schema",
]

A = TypeVar("A", bound="Arguments")

#: In characters, but for the last two.
TEXT, LINE, WORD, IDS, K = 8_000, 1_000, 64, 20, 20

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


class Misfit(ValueError):
    """Arguments that a tool does not take; says which, and what it does."""


class Arguments(Struct, forbid_unknown_fields=True, frozen=True):
    """What a tool is called with."""


class Remember(Arguments, frozen=True):
    """Of `remember`."""

    text: Text
    kind: Annotated[Word, Meta(description="What it is: fact, decision, preference, …")] = "fact"
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
        str, Meta(max_length=512, description="With the same key again, it is kept once.")
    ] = ""


class Recall(Arguments, frozen=True):
    """Of `recall`."""

    query: Annotated[
        str,
        Meta(pattern=r"\S", max_length=LINE, description="What you want to know, in plain words."),
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
        Meta(description=f"Only what was remembered since then; with an offset, as {EXAMPLE}."),
    ] = None
    min_score: Annotated[
        float, Meta(ge=0, le=1, description="Only what fits at least so well.")
    ] = 0


class Update(Arguments, frozen=True):
    """Of `update`."""

    id: MemoryId
    text: Text
    because: Annotated[str, Meta(max_length=LINE, description="Why it changed.")] = ""


class Forget(Arguments, frozen=True):
    """Of `forget`."""

    ids: Annotated[
        list[Id], Meta(min_length=1, max_length=IDS, description="Ids that `recall` has given.")
    ]


class Related(Arguments, frozen=True):
    """Of `related`."""

    id: MemoryId
    k: Count = 5


class Status(Arguments, frozen=True):
    """Of `status`: nothing."""


class Snapshot(Arguments, frozen=True):
    """Of `snapshot`."""

    per_kind: Annotated[int, Meta(ge=1, le=10, description="The newest so many of each kind.")] = 3


class Checkpoint(Arguments, frozen=True):
    """Of `checkpoint`."""

    task: TaskId


class ResumeContext(Arguments, frozen=True):
    """Of `resume_context`."""

    task: TaskId
    max_tokens: Annotated[int, Meta(ge=200, le=20_000, description="How long it may be.")] = 4_000


def schema(of: type[Arguments]) -> dict[str, Any]:
    """The JSON schema that a client is shown."""
    _, found = msgspec.json.schema_components([of], ref_template="#/$defs/{name}")
    return {key: value for key, value in found[of.__name__].items() if key != "description"}


def read(arguments: dict[str, Any], as_: type[A]) -> A:
    """*arguments* if they are what the tool takes; `Misfit` says where not.

    A number may come as text: models do that.
    """
    try:
        return msgspec.convert(arguments, as_, strict=False)
    except (msgspec.ValidationError, UnicodeEncodeError):
        raise Misfit(misfit(arguments, as_)) from None  # whose words may quote what was given
