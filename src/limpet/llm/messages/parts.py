"""What a message says, whatever its shape: the form between two shapes.

Each shape has a module that reads its messages into turns of parts, and writes turns as its
messages. A part that a shape cannot say is left out there, and named by a `Note`.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

__all__ = [
    "BOOKKEEPING",
    "UNSUPPORTED",
    "Note",
    "Part",
    "Turn",
    "arguments_text",
    "data_url",
    "extra_of",
    "joined",
    "note_extra",
    "note_unsupported",
    "of_data_url",
    "read_content",
]

#: Keys that replies carry and requests do not need: what no model reads is not missed.
BOOKKEEPING = frozenset(
    {
        *("id", "type", "object", "created", "status", "model", "usage", "index", "logprobs"),
        *("stop_reason", "stop_sequence", "stop_details", "container", "context_management"),
        *("parsed", "parsed_arguments", "created_by"),
    }
)


class Note(Protocol):
    """Names what is left out: in which message, what it was, why, and the thing itself."""

    def __call__(self, index: int, kind: str, what: str, value: Any) -> None: ...


class Part(Struct):
    """A piece of a message.

    ``text``, ``refusal``: what is said. ``image``, ``file``: at *url* (which may hold the data) or
    known as *file_id*. ``audio``: *body* as OpenAI has it. ``call``, ``custom``: of the tool *name*
    under *id*, with *arguments*, or with *text* as it was written. ``result``: of the call *id*.
    ``thought`` and ``other``: *body*, which only its own shape can say.
    """

    kind: str
    text: str = ""
    id: str = ""
    name: str = ""
    url: str = ""
    file_id: str = ""
    detail: str = ""
    arguments: dict[str, Any] | None = None
    parts: list[Part] = field(default_factory=list)
    plain: bool = False  # a result whose content was text, not a list
    error: bool = False  # a result that says so
    body: Any = None
    was: str = ""  # the type of a call or result that other shapes have as a function's
    extra: dict[str, Any] = field(default_factory=dict)


class Turn(Struct):
    """What one role says at once; *index* is the message it is from."""

    role: str
    parts: list[Part]
    index: int
    plain: bool = False  # its content was text, not a list
    loose: bool = False  # an item of Responses: the next may be of the same reply
    extra: dict[str, Any] = field(default_factory=dict)
    also: tuple[int, ...] = ()  # further messages it is from

    @property
    def made_of(self) -> tuple[int, ...]:
        """The numbers of the messages it is from."""
        return (self.index, *self.also)


def extra_of(thing: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """What *thing* has beside the keys that are *known*, and that says something."""
    return {
        key: value
        for key, value in thing.items()
        if key not in known and key not in BOOKKEEPING and value not in (None, [], {}, "")
    }


def note_extra(index: int, extra: Mapping[str, Any], note: Note) -> None:
    """Name each of *extra*: keys for which there is no place."""
    for key, value in extra.items():
        note(index, key, f"{key!r} has no place in this shape", value)


#: Why a part is left out, unless there is more to say.
UNSUPPORTED = "{} cannot be written here"


def note_unsupported(index: int, part: Part, note: Note, why: str = UNSUPPORTED) -> None:
    """Name a *part* for which there is no form."""
    kind = part.was or part.kind
    note(index, kind, why.format(kind), part.body or part)


def read_content(content: Any, read: Callable[[Any], Part]) -> list[Part]:
    """The parts of a *content* that is text, or a list of pieces, each of which *read* reads."""
    if isinstance(content, str):
        return [Part("text", content)]
    return [read(piece) for piece in content] if isinstance(content, list) else []


def joined(turns: Iterable[Turn]) -> list[Turn]:
    """Turns in which the items of one reply are one: what it says, and then its calls."""
    found: list[Turn] = []
    for turn in turns:
        last = found[-1] if found else None
        of_model = last is not None and last.role == turn.role == "assistant"
        # A text before any call begins anew: it may be of another reply.
        if (
            last is not None
            and of_model
            and last.loose
            and turn.loose
            and (_has_call(turn) or _has_call(last) or _only_thinks(last) or _only_thinks(turn))
        ):
            last.parts += turn.parts
            last.also += turn.made_of
            last.plain = last.plain and not turn.plain and _has_call(turn)
            last.extra |= turn.extra
        else:
            found.append(turn)
    return found


def _has_call(turn: Turn) -> bool:
    return any(part.kind in ("call", "custom") for part in turn.parts)


def _only_thinks(turn: Turn) -> bool:
    return all(part.kind in ("thought", "other") for part in turn.parts)


def arguments_text(part: Part) -> str:
    """The arguments of a call as JSON text, or as what was written."""
    if part.arguments is None:
        return part.text
    return msgspec.json.encode(part.arguments).decode()


def data_url(media_type: str, data: str) -> str:
    """Base64 *data* as a URL."""
    return f"data:{media_type};base64,{data}"


def of_data_url(url: str) -> tuple[str, str] | None:
    """Media type and base64 data of *url*, if it holds them."""
    head, comma, data = url.partition(",")
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        return None
    return head.removeprefix("data:").removesuffix(";base64"), data


def decoded(data: str) -> str | None:
    """Base64 *data* as text, if it is that."""
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, ValueError):
        return None
