"""OpenAI's two APIs: what is sent, and what comes back, whole or in pieces, as it is stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from limpet.errors import LimpetError
from limpet.llm.messages import shape_of, to_chat, to_responses
from limpet.llm.messages.convert import alone
from limpet.llm.tokens import Counter, counter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from limpet.integrations.openai.tools import Tool
    from limpet.llm.messages.repair import Rule
    from limpet.llm.messages.shape import Shape
    from limpet.llm.tokens import Count

    Message = dict[str, Any]

__all__ = [
    "WIRES",
    "Assembly",
    "Call",
    "ModelFailed",
    "Said",
    "Wire",
    "as_sent",
    "calls_in",
    "sound",
    "text_of",
]

#: Why a reply of Responses is incomplete, in the words of Chat Completions.
REASONS = {"max_output_tokens": "length"}


class ModelFailed(LimpetError):
    """The provider answered, and its answer is that it could not make a reply."""


class Call(Struct, frozen=True):
    """A tool call of the model's, and whether it is an item of Responses."""

    id: str
    name: str
    arguments: str
    item: bool = False
    custom: bool = False

    def __repr__(self) -> str:
        return f"Call({self.id!r}, {self.name!r})"

    def answered(self, output: str) -> Message:
        """The message that says what came of it."""
        if not self.item:
            return {"role": "tool", "tool_call_id": self.id, "content": output}
        kind = "custom_tool_call_output" if self.custom else "function_call_output"
        return {"type": kind, "call_id": self.id, "output": output}


def calls_in(message: Mapping[str, Any]) -> list[Call]:
    """The calls of functions in a stored *message*, of either API."""
    if message.get("type") == "function_call":
        return [Call(message["call_id"], message["name"], message["arguments"], item=True)]
    if message.get("type") == "custom_tool_call":
        return [Call(message["call_id"], message["name"], message["input"], True, True)]  # noqa: FBT003
    return [_called(call) for call in message.get("tool_calls") or ()]


def _called(call: Mapping[str, Any]) -> Call:
    if call.get("type") == "custom":
        return Call(call["id"], call["custom"]["name"], call["custom"]["input"], custom=True)
    return Call(call["id"], call["function"]["name"], call["function"]["arguments"])


class Said(Struct, frozen=True):
    """What the model has said, as it is stored, and what is known about it."""

    messages: list[Message]
    finish_reason: str | None
    model: str
    response_id: str
    request_id: str | None
    usage: dict[str, int]

    def calls(self) -> list[Call]:
        """The tools it calls."""
        return [call for message in self.messages for call in calls_in(message)]

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


class Assembly(Protocol):
    """A reply that comes in pieces."""

    def take(self, event: Any) -> str:
        """Add the next piece; returns the text in it, if any."""

    def said(self, request_id: str | None) -> Said | None:
        """The whole of it; None if the end of it never came."""


class Wire(Protocol):
    """One of the APIs."""

    def create(self, client: Any) -> Callable[..., Any]:
        """The client's method."""

    def shaped(self, messages: list[Message], rule: Rule) -> list[Message]:
        """Stored messages, of whatever API, as this one takes them."""

    def body(self, history: list[Message], instructions: str | None) -> dict[str, Any]:
        """What the method is called with."""

    def tools(self, tools: Iterable[Tool]) -> list[dict[str, Any]]:
        """How it is told of *tools*."""

    def said(self, reply: Any) -> Said:
        """What a whole reply says."""

    def assembly(self) -> Assembly:
        """For a reply in pieces."""

    @property
    def streamed(self) -> dict[str, Any]:
        """What asks for pieces."""


# -- Chat Completions ------------------------------------------------------------------------------


class ChatWire:
    """Chat Completions."""

    streamed: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}  # noqa: RUF012 - never changed

    def create(self, client: Any) -> Callable[..., Any]:
        return client.chat.completions.create  # type: ignore[no-any-return]

    def shaped(self, messages: list[Message], rule: Rule) -> list[Message]:
        return to_chat(messages, rule=rule).messages

    def body(self, history: list[Message], instructions: str | None) -> dict[str, Any]:
        told = [{"role": "system", "content": instructions}] if instructions else []
        return {"messages": [*told, *history]}

    def tools(self, tools: Iterable[Tool]) -> list[dict[str, Any]]:
        return [{"type": "function", "function": _told(tool)} for tool in tools]

    def said(self, reply: Any) -> Said:
        choice = reply.choices[0]
        return Said(
            [_kept(_dumped(choice.message))],
            choice.finish_reason,
            reply.model,
            reply.id,
            getattr(reply, "_request_id", None),
            _chat_usage(reply.usage),
        )

    def assembly(self) -> Assembly:
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

    def said(self, request_id: str | None) -> Said | None:
        if self._reason is None:
            return None
        message = dict(self._message)
        calls = message.get("tool_calls")
        if calls:
            message["tool_calls"] = [
                {key: value for key, value in call.items() if key != "index"} for call in calls
            ]
        usage = _chat_usage(self._usage)
        return Said(
            [_kept(message)], self._reason, self._last.model, self._last.id, request_id, usage
        )


#: What comes whole, however often; all other text comes in pieces.
_WHOLE = ("role", "id", "type", "index", "name")


def _merge(into: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add the next piece of a message."""
    for key, value in delta.items():
        old = into.get(key)
        if isinstance(value, list) and all("index" in part for part in value):
            into[key] = _merged_list(old or [], value)
        elif isinstance(value, dict) and isinstance(old, dict):
            _merge(old, value)
        elif isinstance(value, str) and isinstance(old, str) and key not in _WHOLE:
            into[key] = old + value
        elif value or not old:
            into[key] = value


def _merged_list(old: list[Any], parts: list[dict[str, Any]]) -> list[Any]:
    for part in parts:
        found = next((each for each in old if each["index"] == part["index"]), None)
        if found is None:
            old.append(dict(part))
        else:
            _merge(found, part)
    return old


def _kept(message: Message) -> Message:
    """A reply as it is stored: all of it, with a content, if only to say that it has none."""
    empty = ("annotations", "refusal", "tool_calls")
    found = {key: value for key, value in message.items() if value or key not in empty}
    return {"role": "assistant", "content": None, **found}


def _chat_usage(usage: Any) -> dict[str, int]:
    if usage is None:
        return {}
    return _counted(
        usage.prompt_tokens,
        usage.completion_tokens,
        getattr(usage.prompt_tokens_details, "cached_tokens", None),
        getattr(usage.completion_tokens_details, "reasoning_tokens", None),
    )


# -- Responses -------------------------------------------------------------------------------------


_NOTHING: Message = {"type": "message", "role": "assistant", "content": ""}


class ResponsesWire:
    """Responses."""

    streamed: dict[str, Any] = {"stream": True}  # noqa: RUF012 - never changed

    def create(self, client: Any) -> Callable[..., Any]:
        return client.responses.create  # type: ignore[no-any-return]

    def shaped(self, messages: list[Message], rule: Rule) -> list[Message]:
        return to_responses(messages, rule=rule).messages

    def body(self, history: list[Message], instructions: str | None) -> dict[str, Any]:
        told = {"instructions": instructions} if instructions else {}
        return {"input": history, **told}

    def tools(self, tools: Iterable[Tool]) -> list[dict[str, Any]]:
        # Here the provider takes a schema for a strict one unless it is told otherwise.
        return [{"type": "function", "strict": False, **_told(tool)} for tool in tools]

    def said(self, reply: Any) -> Said:
        if reply.status not in ("completed", "incomplete"):
            raise _failure(reply)
        # One that says nothing is an answer, too: or it would be asked for again and again.
        items = [_dumped(item) for item in reply.output] or [_NOTHING]
        cut = reply.incomplete_details and reply.incomplete_details.reason
        called = any(map(calls_in, items))
        reason = REASONS.get(cut, cut) if cut else "tool_calls" if called else "stop"
        return Said(
            items,
            reason,
            reply.model,
            reply.id,
            getattr(reply, "_request_id", None),
            _responses_usage(reply.usage),
        )

    def assembly(self) -> Assembly:
        return ResponsesAssembly(self)


class ResponsesAssembly:
    """The events of a response, the last of which has all of it."""

    def __init__(self, wire: ResponsesWire) -> None:
        self._wire = wire
        self._reply: Any = None

    def take(self, event: Any) -> str:
        if event.type == "error":
            raise ModelFailed(f"The provider could not make a reply: {event.message}")
        if event.type in ("response.completed", "response.incomplete", "response.failed"):
            self._reply = event.response
        return event.delta if event.type == "response.output_text.delta" else ""

    def said(self, request_id: str | None) -> Said | None:
        if self._reply is None:
            return None
        found = self._wire.said(self._reply)
        return Said(
            found.messages,
            found.finish_reason,
            found.model,
            found.response_id,
            request_id,
            found.usage,
        )


def _failure(reply: Any) -> ModelFailed:
    why = reply.error.message if reply.error else f"its status is {reply.status!r}."
    msg = (
        f"The provider could not make a reply ({reply.id}): {why} What was asked is kept; "
        "resume() asks again."
    )
    return ModelFailed(msg)


def _responses_usage(usage: Any) -> dict[str, int]:
    if usage is None:
        return {}
    return _counted(
        usage.input_tokens,
        usage.output_tokens,
        getattr(usage.input_tokens_details, "cached_tokens", None),
        getattr(usage.output_tokens_details, "reasoning_tokens", None),
    )


# -- both ------------------------------------------------------------------------------------------


def _dumped(model: Any) -> Message:
    """What the provider sent, without what it left open."""
    return model.to_dict(mode="json", exclude_none=True)  # type: ignore[no-any-return]


def _told(tool: Tool) -> dict[str, Any]:
    strict = {"strict": True} if tool.strict else {}
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        **strict,
    }


def as_sent(given: Count | str, shape: Shape) -> Count:
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


def _counted(sent: int, made: int, cached: int | None, thought: int | None) -> dict[str, int]:
    return {
        "input_tokens": sent,
        "output_tokens": made,
        "cached_tokens": cached or 0,
        "reasoning_tokens": thought or 0,
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


def sound(value: Any) -> Any:
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
        return {key: sound(item) for key, item in value.items()}
    return [sound(item) for item in value] if isinstance(value, list) else value


WIRES: dict[str, Wire] = {"chat": ChatWire(), "responses": ResponsesWire()}
