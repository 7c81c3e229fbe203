"""What comes back from a chat: replies, the calls made for them, and what they cost."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from limpet.integrations.openai.wire import calls_in
from limpet.llm.messages import results_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from limpet.core.journal import Entry
    from limpet.integrations.openai.floor import Turn

__all__ = ["Made", "Reply", "Request", "Usage", "sum_of"]


class Usage(Struct, frozen=True):
    """Tokens, as the provider counted them, over some requests."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    #: Of the input, what the provider had in its cache; of the output, what was thought.
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Input and output."""
        return self.input_tokens + self.output_tokens

    @classmethod
    def of(cls, stored: dict[str, int]) -> Usage:
        """That of one request."""
        return cls(1, **{key: stored[key] for key in cls.__struct_fields__[1:] if key in stored})


def sum_of(usages: Iterable[Usage]) -> Usage:
    """All of them together."""
    columns = zip(*(_row(usage) for usage in usages), strict=True)
    return Usage(*map(sum, columns))


def _row(usage: Usage) -> tuple[int, ...]:
    return tuple(getattr(usage, name) for name in Usage.__struct_fields__)


class Request(Struct, frozen=True):
    """What is known about one request that the model has answered."""

    at: datetime
    model: str
    response_id: str
    request_id: str | None
    finish_reason: str | None
    seconds: float
    usage: Usage

    @classmethod
    def of(cls, entry: Entry) -> Request:
        """The view of an *entry*."""
        body = entry.body
        return cls(
            at=entry.at,
            model=body["model"],
            response_id=body["response_id"],
            request_id=body.get("request_id"),
            finish_reason=body.get("finish_reason"),
            seconds=body["seconds"],
            usage=Usage.of(body["usage"]),
        )


class Made(Struct, frozen=True):
    """A tool call that was made, and what came of it, as the model was told."""

    id: str
    name: str
    arguments: str
    result: str | None

    def __repr__(self) -> str:
        return f"Made({self.id!r}, {self.name!r})"


class Reply(Struct, frozen=True, kw_only=True):
    """What the model said to the user, and what it did before.

    ``messages`` are all that came of the user's message, as they are stored, ``calls`` the tool
    calls among them; ``finish_reason`` is "stop", or why there is no more: "length",
    "content_filter". ``stored``: it was there before, and no model was asked.
    """

    text: str
    refusal: str | None
    messages: list[dict[str, Any]]
    calls: list[Made]
    usage: Usage
    finish_reason: str | None
    model: str | None
    request_id: str | None
    stored: bool

    def __repr__(self) -> str:
        said = f"{len(self.text)} characters, {len(self.calls)} calls"
        return f"Reply({said}, finish_reason={self.finish_reason!r}, stored={self.stored})"

    def __str__(self) -> str:
        return self.text

    @property
    def message(self) -> dict[str, Any]:
        """The last one."""
        return self.messages[-1]

    @classmethod
    def of(cls, turn: Turn, *, stored: bool = False) -> Reply:
        """The reply that ends *turn*."""
        last = turn.requests[-1] if turn.requests else {}
        return cls(
            text=turn.text(),
            refusal=turn.text("refusal") or None,
            messages=turn.messages,
            calls=_made(turn),
            usage=sum_of(Usage.of(request["usage"]) for request in turn.requests),
            finish_reason=last.get("finish_reason"),
            model=last.get("model"),
            request_id=last.get("request_id"),
            stored=stored,
        )


def _made(turn: Turn) -> list[Made]:
    found: list[Made] = []
    for message in turn.messages:
        found += [Made(call.id, call.name, call.arguments, None) for call in calls_in(message)]
        result = message.get("content", message.get("output"))
        for id_ in results_of(message):
            # The last one of that name: there are models that number them anew in every reply.
            at = max((n for n, made in enumerate(found) if made.id == id_), default=None)
            if at is not None:
                found[at] = replace(found[at], result=result)
    return found
