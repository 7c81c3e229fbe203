"""OpenAI's two APIs: what is sent, and what comes back, whole or in pieces, as it is stored."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct, structs

from limpet.errors import LimpetError
from limpet.llm.messages import shape_of, to_chat, to_responses
from limpet.llm.messages.check import fault_of
from limpet.llm.messages.convert import alone
from limpet.llm.tokens import Counter, counter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from limpet.integrations.openai.tools import Tool
    from limpet.llm.messages.repair import Rule
    from limpet.llm.messages.shape import Shape
    from limpet.llm.tokens import Count

    Message = dict[str, Any]

__all__ = [
    "APIS",
    "MALFORMED",
    "NO_JSON",
    "Api",
    "ModelFailed",
    "ModelReply",
    "ReplyAssembly",
    "ToolCall",
    "calls_in",
    "count_as_sent",
    "reading",
    "text_of",
    "with_whole_characters",
]

#: Why a reply of Responses is incomplete, as Chat Completions calls it.
REASONS = {"max_output_tokens": "length"}


#: What the SDK raises over half a JSON.
NO_JSON = (json.JSONDecodeError, UnicodeDecodeError)
#: What comes of reading a reply that is none.
MALFORMED = (AttributeError, LookupError, TypeError, ValueError)


class ModelFailed(LimpetError):
    """The provider answered, and not with a reply: it could not make one, or it is unreadable."""


@contextmanager
def reading(*errors: type[Exception]) -> Iterator[None]:
    """Where what the provider has sent is read: `ModelFailed` in place of those *errors*."""
    try:
        yield
    except errors as error:
        msg = (
            "What came back is no reply that the API makes "
            f"({type(error).__name__}: {error!s:.80}). Perhaps a proxy has answered, or cut it "
            "short. The question is stored; resume() asks again."
        )
        raise ModelFailed(msg) from error


class ToolCall(Struct, frozen=True):
    """A tool call of the model's; ``result`` is what the model was told of it, if it was.

    ``item``: it is an item of Responses, not a part of a message; ``custom``: of a tool that takes
    any text. Its result is stored in the same shape.
    """

    id: str
    name: str
    arguments: str
    result: str | None = None
    item: bool = False
    custom: bool = False

    def __repr__(self) -> str:
        # Not the arguments: they are somebody's data.
        return f"ToolCall({self.id!r}, {self.name!r})"

    def answer(self, output: str) -> Message:
        """The message with what came of it."""
        if not self.item:
            return {"role": "tool", "tool_call_id": self.id, "content": output}
        kind = "custom_tool_call_output" if self.custom else "function_call_output"
        return {"type": kind, "call_id": self.id, "output": output}


def calls_in(message: Mapping[str, Any]) -> list[ToolCall]:
    """The calls of functions in a stored *message*, of either API."""
    match message.get("type"):
        case "function_call":
            id_, name = message["call_id"], message["name"]
            return [ToolCall(id_, name, message["arguments"], item=True)]
        case "custom_tool_call":
            id_, name = message["call_id"], message["name"]
            return [ToolCall(id_, name, message["input"], item=True, custom=True)]
    found: list[ToolCall] = []
    for call in message.get("tool_calls") or ():
        if call.get("type") == "custom":
            custom = call["custom"]
            found.append(ToolCall(call["id"], custom["name"], custom["input"], custom=True))
        else:
            function = call["function"]
            found.append(ToolCall(call["id"], function["name"], function["arguments"]))
    return found


class ModelReply(Struct, frozen=True):
    """What the model has answered to one request, as it is stored, and what is known about it."""

    messages: list[Message]
    finish_reason: str | None
    model: str
    response_id: str
    request_id: str | None
    usage: dict[str, int]

    def calls(self) -> list[ToolCall]:
        """The tools it calls."""
        return [call for message in self.messages for call in calls_in(message)]

    def check(self) -> None:
        """`TypeError` if it has a message that its provider would not take back with the next."""
        for message in self.messages:
            role = message.get("role", "assistant")
            fault = fault_of(message) if role == "assistant" else f"has the role {role!r:.40}"
            if fault is not None:
                raise TypeError(f"its message {fault}")

    def with_own_ids(self) -> ModelReply:
        """The same with an id of its own for every call: there are models that give one to all."""
        seen: set[str] = set()
        messages = list(self.messages)
        for number, message in enumerate(messages):
            if message.get("type") in ("function_call", "custom_tool_call"):
                messages[number] = {**message, "call_id": _own_id(message["call_id"], seen)}
            elif message.get("tool_calls"):
                calls = [
                    {**call, "id": _own_id(call["id"], seen)} for call in message["tool_calls"]
                ]
                messages[number] = {**message, "tool_calls": calls}
        return structs.replace(self, messages=messages)

    def about(self, seconds: float) -> dict[str, Any]:
        """What is stored beside the messages."""
        return {
            "model": self.model,
            "response_id": self.response_id,
            "request_id": self.request_id,
            "finish_reason": self.finish_reason,
            "seconds": round(seconds, 6),
            "usage": self.usage,
        }


def _own_id(id_: str, seen: set[str]) -> str:
    """*id_*, or one made of it that is not among those *seen*, where it is from now on."""
    own, number = id_, 1
    while own in seen:
        number += 1
        own = f"{id_}_{number}"
    seen.add(own)
    return own


class ReplyAssembly(Protocol):
    """A reply that comes in pieces."""

    def take(self, event: Any) -> str:
        """Add the next piece; returns the text in it, if any."""

    def finish(self, request_id: str | None) -> ModelReply | None:
        """The whole of it; None if the end of it never came."""


class Api(Protocol):
    """One of the APIs."""

    def create(self, client: Any) -> Callable[..., Any]:
        """The client's method."""

    def convert(self, messages: list[Message], rule: Rule) -> list[Message]:
        """Stored messages, of whatever API, as this one takes them."""

    def body(self, history: list[Message], instructions: str | None) -> dict[str, Any]:
        """What the method is called with."""

    def tools(self, tools: Iterable[Tool]) -> list[dict[str, Any]]:
        """*tools* as the API is told of them."""

    def read(self, reply: Any) -> ModelReply:
        """What a whole reply says."""

    def assembly(self) -> ReplyAssembly:
        """For a reply that comes in pieces."""

    @property
    def streamed(self) -> dict[str, Any]:
        """The parameters that ask for a stream."""


# -- Chat Completions ------------------------------------------------------------------------------


class ChatCompletions:
    """Chat Completions."""

    streamed: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}  # noqa: RUF012 - never changed

    def create(self, client: Any) -> Callable[..., Any]:
        return client.chat.completions.create  # type: ignore[no-any-return]

    def convert(self, messages: list[Message], rule: Rule) -> list[Message]:
        return to_chat(messages, rule=rule).messages

    def body(self, history: list[Message], instructions: str | None) -> dict[str, Any]:
        first = [{"role": "system", "content": instructions}] if instructions else []
        return {"messages": [*first, *history]}

    def tools(self, tools: Iterable[Tool]) -> list[dict[str, Any]]:
        return [{"type": "function", "function": _description(tool)} for tool in tools]

    def read(self, reply: Any) -> ModelReply:
        _check_parsed(reply)
        choice = reply.choices[0]
        return ModelReply(
            [_without_empty(_dumped(choice.message))],
            choice.finish_reason,
            reply.model,
            reply.id,
            getattr(reply, "_request_id", None),
            _usage(reply.usage, "prompt", "completion"),
        )

    def assembly(self) -> ReplyAssembly:
        return ChatAssembly()


class ChatAssembly:
    """The chunks of a completion."""

    def __init__(self) -> None:
        self._message: Message = {"role": "assistant", "content": None}
        self._reason: str | None = None
        self._last: Any = None
        self._usage: Any = None

    def take(self, event: Any) -> str:
        self._last = event
        self._usage = event.usage or self._usage
        if not event.choices:  # the last one, which tells the usage
            return ""
        choice = event.choices[0]
        self._reason = choice.finish_reason or self._reason
        delta = _dumped(choice.delta)
        _merge(self._message, delta)
        return delta.get("content") or ""

    def finish(self, request_id: str | None) -> ModelReply | None:
        if self._reason is None:
            return None
        message = dict(self._message)
        calls = message.get("tool_calls")
        if calls:
            message["tool_calls"] = [
                {key: value for key, value in call.items() if key != "index"} for call in calls
            ]
        usage = _usage(self._usage, "prompt", "completion")
        return ModelReply(
            [_without_empty(message)],
            self._reason,
            self._last.model,
            self._last.id,
            request_id,
            usage,
        )


#: What comes whole, however often; all other text comes in pieces.
_WHOLE = ("role", "id", "type", "index", "name")


def _merge(into: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add the next piece of a message."""
    for key, value in delta.items():
        old = into.get(key)
        if isinstance(value, list) and all("index" in part for part in value):
            parts = into[key] = old or []
            for part in value:
                found = next((each for each in parts if each["index"] == part["index"]), None)
                if found is None:
                    parts.append(dict(part))
                else:
                    _merge(found, part)
        elif isinstance(value, dict) and isinstance(old, dict):
            _merge(old, value)
        elif isinstance(value, str) and isinstance(old, str) and key not in _WHOLE:
            into[key] = old + value
        elif value or not old:
            into[key] = value


def _without_empty(message: Message) -> Message:
    """A reply as it is stored: all of it, with a content, if only to say that it has none."""
    empty = ("annotations", "refusal", "tool_calls")
    found = {key: value for key, value in message.items() if value or key not in empty}
    return {"role": "assistant", "content": None, **found}


# -- Responses -------------------------------------------------------------------------------------


_NOTHING: Message = {"type": "message", "role": "assistant", "content": ""}


class Responses:
    """Responses."""

    streamed: dict[str, Any] = {"stream": True}  # noqa: RUF012 - never changed

    def create(self, client: Any) -> Callable[..., Any]:
        return client.responses.create  # type: ignore[no-any-return]

    def convert(self, messages: list[Message], rule: Rule) -> list[Message]:
        return to_responses(messages, rule=rule).messages

    def body(self, history: list[Message], instructions: str | None) -> dict[str, Any]:
        body: dict[str, Any] = {"input": history}
        return {**body, "instructions": instructions} if instructions else body

    def tools(self, tools: Iterable[Tool]) -> list[dict[str, Any]]:
        # Here the provider takes a schema for a strict one unless it is told otherwise.
        return [{"type": "function", "strict": False, **_description(tool)} for tool in tools]

    def read(self, reply: Any) -> ModelReply:
        _check_parsed(reply)
        if reply.status not in ("completed", "incomplete"):
            why = reply.error.message if reply.error else f"its status is {reply.status!r}."
            msg = (
                f"The provider could not make a reply ({reply.id}): {why} The question is stored; "
                "resume() asks again."
            )
            raise ModelFailed(msg)
        # One that says nothing is an answer, too: or it would be asked for again and again.
        items = [_dumped(item) for item in reply.output] or [_NOTHING]
        cut = reply.incomplete_details and reply.incomplete_details.reason
        called = any(map(calls_in, items))
        reason = REASONS.get(cut, cut) if cut else "tool_calls" if called else "stop"
        return ModelReply(
            items,
            reason,
            reply.model,
            reply.id,
            getattr(reply, "_request_id", None),
            _usage(reply.usage, "input", "output"),
        )

    def assembly(self) -> ReplyAssembly:
        return ResponsesAssembly(self)


class ResponsesAssembly:
    """The events of a response, the last of which has all of it."""

    def __init__(self, api: Responses) -> None:
        self._api = api
        self._reply: Any = None

    def take(self, event: Any) -> str:
        if event.type == "error":
            raise ModelFailed(f"The provider could not make a reply: {event.message}")
        if event.type in ("response.completed", "response.incomplete", "response.failed"):
            self._reply = event.response
        return event.delta if event.type == "response.output_text.delta" else ""

    def finish(self, request_id: str | None) -> ModelReply | None:
        if self._reply is None:
            return None
        return structs.replace(self._api.read(self._reply), request_id=request_id)


# -- both ------------------------------------------------------------------------------------------


def _check_parsed(reply: Any) -> None:
    if isinstance(reply, str):  # what the SDK makes of a page of HTML
        raise TypeError(f"it is text, {reply.strip()[:40]!r}")


def _dumped(model: Any) -> Message:
    """What the provider sent, without what it left open."""
    # Without pydantic's warnings: what does not fit is either taken as it is, or an error of ours.
    return model.to_dict(mode="json", exclude_none=True, warnings=False)  # type: ignore[no-any-return]


def _description(tool: Tool) -> dict[str, Any]:
    strict = {"strict": True} if tool.strict else {}
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        **strict,
    }


def count_as_sent(given: Count | str, shape: Shape) -> Count:
    """A count of messages that are stored in any shape, and sent in this one."""
    count: Callable[..., int] = counter(given) if isinstance(given, str) else given

    def counted(message: Mapping[str, Any], *most: int | None) -> int:
        if shape_of(message) in (None, shape):
            return count(message, *most)
        return sum(count(part, *most) for part in alone(message, shape))

    if not isinstance(count, Counter):
        return counted
    return _SentCounter(count, counted)


class _SentCounter(Counter):
    """A counter that counts what is sent."""

    def __init__(self, own: Counter, counted: Callable[..., int]) -> None:
        super().__init__(own.name, own.text, exact=own.exact, model=own.model)
        self.priming = own.priming
        self._counted = counted

    def __call__(self, message: Mapping[str, Any], most: int | None = None) -> int:
        return self._counted(message, most)


def _usage(usage: Any, sent: str, made: str) -> dict[str, int]:
    """The tokens of a request, whose API calls them *sent* and *made* ones."""
    if usage is None:
        return {}
    input_details = getattr(usage, f"{sent}_tokens_details")
    output_details = getattr(usage, f"{made}_tokens_details")
    return {
        "input_tokens": getattr(usage, f"{sent}_tokens") or 0,
        "output_tokens": getattr(usage, f"{made}_tokens") or 0,
        "cached_tokens": getattr(input_details, "cached_tokens", None) or 0,
        "reasoning_tokens": getattr(output_details, "reasoning_tokens", None) or 0,
    }


def text_of(message: Mapping[str, Any], key: str = "text") -> str:
    """What a stored *message* says; or, by the *key* "refusal", why it says nothing."""
    if message.get("type", "message") != "message":
        return ""
    content = message.get("content")
    if key == "refusal" and message.get("refusal"):
        return str(message["refusal"])
    if isinstance(content, str):
        return content if key == "text" else ""
    parts = content if isinstance(content, list) else []
    found = [part.get(key) for part in parts if isinstance(part, dict)]
    return "".join(text for text in found if isinstance(text, str))


def with_whole_characters(value: Any) -> Any:
    """*value* with every character of its texts whole: halves are joined, one alone is replaced.

    There are servers that cut an emoji in two. The reply is paid for; it must be storable.
    """
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value
    if isinstance(value, dict):
        return {key: with_whole_characters(item) for key, item in value.items()}
    return [with_whole_characters(item) for item in value] if isinstance(value, list) else value


APIS: dict[str, Api] = {"chat": ChatCompletions(), "responses": Responses()}
