"""The OpenAI Agents SDK: sessions that live in a store, and runs that wait there for a person.

from agents import Agent, Runner
from limpet.integrations.openai_agents import AsyncRuns, LimpetSession

session = LimpetSession(store, "alice")
result = await Runner.run(agent, "Where is my order?", session=session)

runs = AsyncRuns(store)
if result.interruptions:
    await runs.save("refund-17", result)
...  # later, in other processes: somebody approves, a worker goes on
await runs.approve("refund-17", call_id, by="maria")
result = await runs.resume("refund-17", agent, session=session)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import dropwhile
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from limpet.backends.contract import UNSET, UnsetType
from limpet.core.ids import written_out
from limpet.core.runtime import AsyncEntered
from limpet.errors import Conflict, ConversationNotFound, StoreClosed
from limpet.integrations.openai_agents.sdk import sdk
from limpet.llm.messages.shape import ITEM_CALLS, ITEM_RESULTS
from limpet.store import AsyncStore, Store, as_async, open_async

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from agents import SessionSettings, TResponseInputItem

    from limpet.conversations.conversation import AsyncConversation
    from limpet.conversations.transcript import Item
    from limpet.llm.messages.repair import Rule

    Items = list[TResponseInputItem]

__all__ = ["LimpetSession"]

#: An item of the SDK's has one of them, and so has a message.
_NAMES = ("role", "type")

#: What an item is stored in that has neither a role nor a type: what a wrapper of the SDK's makes.
WRAPPED = "agents.item"

#: What the conversation's id begins with of a session whose own id cannot be one.
WRITTEN_OUT = "session-id:"

_OF_TOOLS = {*ITEM_CALLS, *ITEM_RESULTS}
_type_of = methodcaller("get", "type")


class LimpetSession(AsyncEntered):
    """A session of the OpenAI Agents SDK whose items are a conversation in a store.

    *store*: an open store, sync or async; or its URL, and then `close` closes it. *repair*: what
    to do with a tool call that was never answered, when all items are read, as for a conversation's
    ``messages``; None gives them as they are stored. *max_tokens*: read no more than the newest
    items that fit, tool calls with their results. *labels* and *ttl* are those of the conversation,
    whose id is the *session_id*; one that can be none is written out (see the guide).

    It may be used from several event loops and threads, and by several processes at once.
    """

    def __init__(
        self,
        store: AsyncStore | Store | str | os.PathLike[str],
        session_id: str,
        *,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        repair: Rule | None = "drop",
        max_tokens: int | None = None,
        labels: Mapping[str, str] | None = None,
        ttl: float | UnsetType | None = UNSET,
    ) -> None:
        settings = sdk("agents.memory.session_settings")
        self.session_id = session_id
        self.session_settings: SessionSettings | None = settings.coerce_session_settings(
            {} if session_settings is None else session_settings
        )
        self._rule = repair
        self._max_tokens = max_tokens
        self._own = open_async(store) if isinstance(store, (str, os.PathLike)) else None
        self._conversation = (self._own or as_async(store)).conversation(
            written_out(session_id, WRITTEN_OUT), labels=labels, ttl=ttl
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.session_id!r})"

    @property
    def conversation(self) -> AsyncConversation:
        """The conversation that the items are stored in."""
        return self._conversation

    # -- what the SDK calls ----------------------------------------------------------------------

    async def get_items(self, limit: int | None = None) -> Items:
        """All items, oldest first, repaired; or the newest *limit* of them exactly as stored.

        Without a *limit*, that of the ``session_settings`` counts. The SDK relies on the newest
        items being just those: it compares them with what it has written. What a limit cuts off
        from its other half, it leaves out of the model's input by itself.
        """
        self._check_open()
        settings = sdk("agents.memory.session_settings")
        limit = settings.resolve_session_limit(limit, self.session_settings)
        if limit is not None and limit >= 0:
            return _unwrapped(await self._conversation.messages(last=limit))
        if self._max_tokens is not None:
            window = await self._conversation.window(
                max_tokens=self._max_tokens, repair=self._rule or "drop", shape="responses"
            )
            return _unwrapped(window)
        found: list[Any] = await self._conversation.messages()
        kinds = set(map(_type_of, found))
        if not (self._rule is None or kinds.isdisjoint(_OF_TOOLS) or _is_whole(found)):
            found = await self._conversation.messages(repair=self._rule)
        return _unwrapped(found) if WRAPPED in kinds else found

    async def add_items(self, items: Items, *, id: str | None = None) -> None:
        """Add *items* at the end, all or none; durable on return.

        Two who add at the same time both keep what they said. An *id* makes a repeated call
        harmless: the same id once more adds nothing.
        """
        self._check_open()
        if items:
            # The SDK stores whatever an item is, and so do we.
            await self._conversation.append(*map(_wrapped, items), id=id, check=False)

    async def pop_item(self) -> TResponseInputItem | None:
        """Take back the newest item and return it; None if there is none."""
        self._check_open()
        found = await self._conversation.pop()
        return None if found is None else _unwrapped([found])[0]

    async def clear_session(self) -> None:
        """Remove all items."""
        self._check_open()
        await self._conversation.clear()

    async def _atomic_replace_items(self, items: Items) -> bool:
        """For the SDK's compaction: *items* in place of all the others, in one act."""
        self._check_open()
        if self._is_changed():
            return False
        await self._conversation.replace(*map(_wrapped, items), check=False)
        return True

    async def _get_compaction_snapshot(
        self,
        limit: int,
        *,
        prune_prefix: Callable[[TResponseInputItem], bool] | None = None,
        **_: Any,
    ) -> _Snapshot | None:
        """For the SDK's compaction: the newest *limit* items, and a way to replace some of them.

        The oldest of all that *prune_prefix* calls expired go by the same act. If any is expired,
        what is replaced leaves the store, where it would stay otherwise.
        """
        self._check_open()
        if self._is_changed():
            return None
        try:  # first: whatever comes after it is noticed
            position = (await self._conversation.info()).position
        except ConversationNotFound:
            position = 0
        found = await self._conversation.transcript.last(limit + 1)
        complete = len(found) <= limit
        items = found if complete else found[1:]

        def is_expired(item: Item) -> bool:
            return prune_prefix is not None and prune_prefix(_unwrapped([item[1]])[0])

        async def replace_suffix(start: int, output: Items) -> bool:
            left = await self._conversation.items() if start or not complete else items
            left = left[: len(left) - len(items) + start]
            kept = list(dropwhile(is_expired, left))
            new = [*(message for _, message in kept), *map(_wrapped, output)]
            expired = len(kept) < len(left) or any(map(is_expired, items[start:]))
            try:
                end = await self._conversation.replace(*new, expect=position, check=False)
            except Conflict:
                return False
            if expired:  # all that was replaced goes: it lies in the same records
                await self._conversation.transcript.journal.compact(end - len(new))
            return True

        messages = [message for _, message in items]
        return _Snapshot(_unwrapped(messages), complete, replace_suffix)

    def _is_changed(self) -> bool:
        """Whether a subclass has its own idea of an item. Then the SDK clears and adds instead."""
        own, ours = type(self), LimpetSession
        return own.get_items is not ours.get_items or own.add_items is not ours.add_items

    # -- what else it can do -----------------------------------------------------------------------

    async def begin(self, input: str | Items, *, id: str) -> bool:
        """Store the user's *input* under an *id* before the run; False if it is answered already.

            if await session.begin("Where is my order?", id="message-17"):
                result = await Runner.run(agent, [], session=session)

        The same after a crash goes on from what is stored: the input is not said twice, and tool
        calls whose results are there are not made again.
        """
        items: Items = sdk().ItemHelpers.input_to_new_input_list(input)
        await self.add_items(items, id=id)
        newest = await self._conversation.last() or {}
        return newest.get("role") != "assistant"

    async def close(self) -> None:
        """Close the store, if the session has opened it. A second call does nothing."""
        if self._own is not None:
            await self._own.close()

    async def __aenter__(self) -> Self:
        """The session itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        await self.close()

    def _check_open(self) -> None:
        if self._conversation.scope.backend.closed:
            msg = (
                f"The store of session {self.session_id!r} is closed. Open it again, and make "
                "another session."
            )
            raise StoreClosed(msg)


class _Snapshot(NamedTuple):
    """What the SDK's compaction expects of a session that can replace a part of its items."""

    items: Items
    complete: bool
    replace_suffix: Callable[[int, Items], Awaitable[bool]]


def _wrapped(item: Any) -> Any:
    """*item* as a conversation takes it."""
    if hasattr(item, "model_dump"):
        return item.model_dump(mode="json", exclude_unset=True)  # as the SDK does
    if not isinstance(item, Mapping) or any(isinstance(item.get(key), str) for key in _NAMES):
        return item
    return {"type": WRAPPED, "item": item}


def _unwrapped(items: list[Any]) -> Items:
    return [item.get("item", item) if item.get("type") == WRAPPED else item for item in items]


def _is_whole(items: list[Any]) -> bool:
    """Whether every call is followed by its result, at a glance: a no may be wrong."""
    waiting: set[str] = set()
    seen: set[str] = set()
    for item in items:
        kind = item.get("type")
        if kind in ITEM_CALLS:
            id_ = item.get(ITEM_CALLS[kind])
            if not isinstance(id_, str) or id_ in seen:
                return False
            seen.add(id_)
            waiting.add(id_)
        elif kind in ITEM_RESULTS:
            id_ = next((item[key] for key in ITEM_RESULTS[kind] if key in item), None)
            if not isinstance(id_, str) or id_ not in waiting:
                return False
            waiting.remove(id_)
    return not waiting
