"""The state of an agent, as its ``save_state`` gives it, without going through all of it each time.

AutoGen makes anew of every message in an agent's context what it is stored as, which takes longer
than all that is stored of a turn. Here only what is new is made. What was made of a message is used
again if the message is the same in every field; and on any doubt AutoGen is asked.
"""

from __future__ import annotations

from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_core import FunctionCall
from autogen_core.model_context import ChatCompletionContext, ChatCompletionContextState
from autogen_core.models import FunctionExecutionResult

from limpet.core.codec import fresh, plain

__all__ = ["Dump", "copied"]

#: After so many times AutoGen is asked anyway.
TRUSTED = 100

_FLAT = frozenset({str, bool, type(None)})
_ITEMS = frozenset({FunctionCall, FunctionExecutionResult})


def copied(state: dict[str, Any]) -> dict[str, Any]:
    """A copy of a *state*, of what JSON has."""
    try:
        return fresh(state)  # type: ignore[no-any-return]
    except TypeError:
        return plain(state)  # type: ignore[no-any-return]


class Dump:
    """What AutoGen's ``save_state`` of *it*, an agent or a team, returns; a copy, not to change."""

    def __init__(self, it: Any) -> None:
        self._it = it
        self._left = 0  # how often AutoGen need not be asked yet
        self._frame: dict[str, Any] = {}
        self._made: list[dict[str, Any]] = []  # of each message
        self._classes: list[type] = []
        self._fields: list[dict[str, Any]] = []  # of which it was made
        self._inner: dict[int, list[dict[str, Any]]] = {}  # and those of calls and results in it

    async def __call__(self) -> dict[str, Any]:
        """The state as it is now."""
        if self._left == 0 or not self._knows():
            return await self._ask()
        self._left -= 1
        messages = self._it._model_context._messages  # noqa: SLF001 - the context has no other way
        new = messages[len(self._made) :]
        if new:
            dumped = ChatCompletionContextState(messages=new).model_dump()
            self._learn(new, copied(dumped)["messages"])
        return {**self._frame, "llm_context": {"messages": list(self._made)}}

    async def _ask(self) -> dict[str, Any]:
        state = copied(dict(await self._it.save_state()))
        self._left, self._made, self._classes, self._fields = 0, [], [], []
        self._inner = {}
        if _is_usual(self._it):
            self._frame, self._left = {**state, "llm_context": None}, TRUSTED
            self._learn(self._it._model_context._messages, state["llm_context"]["messages"])  # noqa: SLF001
        return state

    def _learn(self, messages: list[Any], made: list[dict[str, Any]]) -> None:
        for number, message in enumerate(messages, len(self._made)):
            fields = dict(getattr(message, "__dict__", {}))
            self._fields.append(fields)
            if fields and all(value.__class__ in _FLAT for value in fields.values()):
                continue
            inner = _inner(fields.get("content"))
            if inner is None:  # a picture, for instance
                self._left = 0
            else:
                self._inner[number] = inner
        self._classes += map(type, messages)
        self._made += made

    def _knows(self) -> bool:
        """Whether all that was learnt of is there still, and the same."""
        if not _is_usual(self._it):
            return False
        messages = self._it._model_context._messages[: len(self._made)]  # noqa: SLF001 - as above
        return (
            list(map(type, messages)) == self._classes
            and list(map(vars, messages)) == self._fields
            and all(_inner(messages[at].content) == inner for at, inner in self._inner.items())
        )


def _is_usual(it: Any) -> bool:
    """Whether its state is its messages, and is made of them as AutoGen does it."""
    context = getattr(it, "_model_context", None)
    return (
        isinstance(it, AssistantAgent)
        and type(it).save_state is AssistantAgent.save_state
        and isinstance(context, ChatCompletionContext)
        and type(context).save_state is ChatCompletionContext.save_state
        and "save_state" not in (vars(it).keys() | vars(context).keys())
    )


def _inner(content: Any) -> list[dict[str, Any]] | None:
    """The fields of the calls or results that *content* is a list of; None if it is another."""
    if content.__class__ is not list or not all(item.__class__ in _ITEMS for item in content):
        return None
    return [dict(vars(item)) for item in content]
