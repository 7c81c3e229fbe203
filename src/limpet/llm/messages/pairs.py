"""Which result belongs to which call, in a history that may be damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.llm.messages.shape import BLOCK_CALLS, ITEM_CALLS, ITEM_RESULTS, is_result, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Message = Mapping[str, Any]

__all__ = ["CHAT", "SERVER", "TOOL_USE", "Call", "Pairs", "Result"]

# Families: a call is answered by a result of its own family. Items are their own: the type.
CHAT = "tool_calls"
TOOL_USE = "tool_use"
SERVER = "server_tool_use"  # and others that the provider runs and answers by itself

_CALL_OF = {
    **{f"{kind}_output": kind for kind in ITEM_CALLS},
    "tool_search_output": "tool_search_call",
    "mcp_approval_response": "mcp_approval_request",
}


class _Site:
    """A call or a result: where it is, and by what id it is known."""

    def __init__(self, index: int, block: int | None, family: str, id_: str) -> None:
        self.index = index
        self.block = block
        self.family = family
        self.id = id_

    @property
    def key(self) -> tuple[str, str]:
        return self.family, self.id

    @property
    def place(self) -> tuple[int, int]:
        """What sites are ordered by."""
        return self.index, -1 if self.block is None else self.block


class Call(_Site):
    """A tool call, with its result once that is known."""

    def __init__(self, index: int, block: int | None, family: str, id_: str, body: Message) -> None:
        super().__init__(index, block, family, id_)
        self.body = body
        self.result: Result | None = None
        self.repeats = False  # the same call as another one, which stays
        self.new_id: str | None = None

    @property
    def name(self) -> str | None:
        """What is called."""
        inner = self.body.get("function") or self.body.get("custom") or self.body
        name = inner.get("name") if hasattr(inner, "get") else None
        return name if isinstance(name, str) else None


class Result(_Site):
    """The result of a call, with its call once that is known."""

    call: Call | None = None


class Pairs:
    """The calls and the results of a history, matched as far as that is possible."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.calls: list[Call] = []
        self.results: list[Result] = []
        self._open: dict[tuple[str, str], list[Call]] = {}  # unanswered, the newest last
        self._keys: set[tuple[str, str]] = set()
        # To the newest call before it, because some models number their calls anew in each turn;
        # and only when all have had their turn, to a call behind it.
        for site in _sites(messages):
            self._meet(site)
        for result in self.results:
            if result.call is None:
                self._answer(result, first=True)
        self._find_repeats(messages)

    def _meet(self, site: Call | Result) -> None:
        if isinstance(site, Call):
            self.calls.append(site)
            self._keys.add(site.key)
            self._open.setdefault(site.key, []).append(site)
        else:
            self.results.append(site)
            self._answer(site)

    def _answer(self, result: Result, *, first: bool = False) -> None:
        """Join *result* to an unanswered call of its id: of the newest message, or the *first*."""
        waiting = self._open.get(result.key)
        if not waiting:
            return
        at = 0 if first else len(waiting) - 1
        while at and not first and waiting[at - 1].index == waiting[at].index:
            at -= 1
        _join(waiting.pop(at), result)

    def knows(self, result: Result) -> bool:
        """Whether there is a call that *result* could have answered, had another not been first."""
        return result.key in self._keys

    def _find_repeats(self, messages: Sequence[Message]) -> None:
        """Mark unanswered calls that somebody stored twice.

        Only those between which nobody else spoke: later, the same call is a new one.
        """
        spoken = _spoken(messages)
        groups: dict[tuple[object, ...], list[Call]] = {}
        for call in self.calls:
            groups.setdefault((*call.key, spoken[call.index]), []).append(call)
        for calls in groups.values():
            stays = [call for call in calls if call.result is not None]
            for call in calls if len(calls) > 1 else ():
                if call.result is None:
                    call.repeats = any(other.body == call.body for other in stays)
                    stays += [] if call.repeats else [call]


def _join(call: Call, result: Result) -> None:
    call.result, result.call = result, call


def _spoken(messages: Sequence[Message]) -> list[int]:
    """For each message, how many of a person's came before it."""
    counts: list[int] = []
    count = 0
    for message in messages:
        if message.get("role") == "user" and not any(
            isinstance(site, Result) for site in _in_message(0, message)
        ):
            count += 1
        counts.append(count)
    return counts


def _sites(messages: Sequence[Message]) -> Iterator[Call | Result]:
    for index, message in enumerate(messages):
        yield from _in_message(index, message)


def _in_message(index: int, message: Message) -> Iterator[Call | Result]:
    kind = kind_of(message)
    if kind in ITEM_CALLS:
        id_ = _text(message.get(ITEM_CALLS[kind]))
        if id_:
            yield Call(index, None, kind, id_, message)
    elif kind in ITEM_RESULTS:
        ids = [id_ for id_ in (_text(message.get(key)) for key in ITEM_RESULTS[kind]) if id_]
        if ids:
            yield Result(index, None, _CALL_OF[kind], ids[0])
    else:
        yield from _in_chat(index, message)
        yield from _in_blocks(index, message)


def _in_chat(index: int, message: Message) -> Iterator[Call | Result]:
    calls = message.get("tool_calls")
    for block, call in enumerate(calls if isinstance(calls, list) else ()):
        id_ = _text(call.get("id")) if isinstance(call, dict) else ""
        if id_:
            yield Call(index, block, CHAT, id_, call)
    if message.get("role") == "tool":
        # Without an id it answers nothing, but is a result all the same.
        yield Result(index, None, CHAT, _text(message.get("tool_call_id")))


def _in_blocks(index: int, message: Message) -> Iterator[Call | Result]:
    content = message.get("content")
    for number, block in enumerate(content if isinstance(content, list) else ()):
        if not isinstance(block, dict):
            continue
        kind = kind_of(block)
        if kind in BLOCK_CALLS:
            family = TOOL_USE if kind == TOOL_USE else SERVER
            yield Call(index, number, family, _text(block.get("id")), block)
        elif is_result(block):
            family = TOOL_USE if kind == "tool_result" else SERVER
            yield Result(index, number, family, _text(block.get("tool_use_id")))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
