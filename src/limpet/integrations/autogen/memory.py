"""Memory for AutoGen's agents: what fits the question is shown to the model, and stored nowhere.

AutoGen's own memories add a message to the context at every run, and there it stays: it is saved,
loaded, and paid for with every question that follows. Here the context shows one message more than
it has. The next question has another in its place, and what is forgotten is in nobody's state.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Self

from autogen_core import Component
from autogen_core.memory import (
    Memory,
    MemoryContent,
    MemoryMimeType,
    MemoryQueryResult,
    UpdateContextResult,
)
from autogen_core.models import UserMessage
from msgspec import Struct
from pydantic import BaseModel

from limpet.errors import NotStorable
from limpet.memory.rendering import messages as rendered
from limpet.store import as_async, open_async

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable
    from datetime import datetime

    from autogen_core import CancellationToken
    from autogen_core.model_context import ChatCompletionContext

    from limpet.memory import AsyncMemory, MemoryHit
    from limpet.store import AsyncStore, Store

__all__ = ["Recall", "RecallConfig"]

#: The source of the messages that show memories.
SOURCE = "memory"

#: The characters of a question that are searched by, from its end.
QUERY_CHARS = 2_000

_FIELDS = ("kind", "tags", "source", "by", "trust", "context", "valid_from", "ttl", "key")


class RecallConfig(BaseModel):
    """What a `Recall` is made of, but for its store: that is the one at ``$LIMPET_URL``."""

    namespace: str
    tenant: str
    k: int = 5
    kinds: list[str] | None = None
    tags: list[str] | None = None
    min_score: float | None = None
    max_tokens: int | None = None
    embed: bool = False


class Recall(Memory, Component[RecallConfig]):
    """A `Memory` of AutoGen's: each question of an agent brings to mind what fits it.

    *store* and *namespace*: where the memories are; *embed* as for ``store.memory``. Up to *k* are
    recalled, of *kinds*, with all of *tags*, with at least *min_score*, in up to *max_tokens*.
    """

    component_config_schema = RecallConfig
    component_provider_override = "limpet.integrations.autogen.Recall"

    def __init__(
        self,
        store: Store | AsyncStore,
        namespace: str,
        *,
        embed: Any = None,
        k: int = 5,
        kinds: Iterable[str] | None = None,
        tags: Iterable[str] | None = None,
        min_score: float | None = None,
        max_tokens: int | None = 1_000,
    ) -> None:
        core = as_async(store)
        #: The memory itself: to remember, to confirm and to forget.
        self.memory: AsyncMemory = core.memory(namespace, embed=embed)
        self._tenant = core.tenant
        self._embed = embed
        self._max_tokens = max_tokens
        self._options: dict[str, Any] = {
            "k": k,
            "kinds": None if kinds is None else list(kinds),
            "tags": None if tags is None else list(tags),
            "min_score": min_score,
        }
        self._store: AsyncStore | None = None  # a store that is ours to close

    # -- AutoGen's protocol ------------------------------------------------------------------------

    async def update_context(self, model_context: ChatCompletionContext) -> UpdateContextResult:
        """Let *model_context* show what fits the newest question, and no longer what it showed.

        What is returned, and put out as an event, are ids: events are saved with a team's messages.
        """
        view = _View.of(model_context)
        view.notes.pop(self, None)
        asked = _newest(await view.own())
        query = "\n".join(filter(None, map(_text, asked)))[-QUERY_CHARS:]
        hits = await self.memory.recall(query, **self._options) if query.strip() else []
        texts = [message["content"] for message in rendered(hits, self._max_tokens)]
        if not texts:
            return UpdateContextResult(memories=MemoryQueryResult(results=[]))
        message = UserMessage(content="\n\n".join(texts), source=SOURCE)
        view.notes[self] = Note(message, asked[0])
        found = [_content(hit, hit.id) for hit in hits]
        return UpdateContextResult(memories=MemoryQueryResult(results=found))

    async def query(
        self,
        query: str | MemoryContent,
        cancellation_token: CancellationToken | None = None,
        *,
        since: datetime | None = None,
        **kwargs: Any,
    ) -> MemoryQueryResult:
        """What fits *query*, best first; *kwargs* are those of ``memory.recall``."""
        text = query if isinstance(query, str) else _as_text(query)
        hits = await _cancellable(
            self.memory.recall(text, since=since, **{**self._options, **kwargs}), cancellation_token
        )
        return MemoryQueryResult(results=[_content(hit, hit.text) for hit in hits])

    async def add(
        self, content: MemoryContent, cancellation_token: CancellationToken | None = None
    ) -> None:
        """Remember *content*, which is text or JSON; durable on return.

        Its metadata is what ``memory.remember`` takes; what else is in it, it is found by as well.
        """
        about = dict(content.metadata or {})
        fields = {name: about.pop(name) for name in _FIELDS if name in about}
        words = [f"{name}: {value}" for name, value in about.items()]
        if words:
            fields["context"] = ", ".join([*filter(None, [fields.get("context")]), *words])
        await _cancellable(self.memory.remember(_as_text(content), **fields), cancellation_token)

    async def clear(self) -> None:
        """Forget all that is in the namespace, for good."""
        there = await self.memory.list(superseded=True)
        if there:
            await self.memory.forget(*(one.id for one in there))

    async def close(self) -> None:
        """Close the store, if it was opened here."""
        if self._store is not None:
            await self._store.close()

    # -- as a component ----------------------------------------------------------------------------

    def _to_config(self) -> RecallConfig:
        if self._embed not in (None, False, True):
            raise NotImplementedError("A function that embeds has no place in a configuration.")
        return RecallConfig(
            namespace=self.memory.namespace,
            tenant=self._tenant,
            max_tokens=self._max_tokens,
            embed=bool(self._embed),
            **self._options,
        )

    @classmethod
    def _from_config(cls, config: RecallConfig) -> Self:
        options = config.model_dump()
        store = open_async(tenant=options.pop("tenant"))
        made = cls(store, options.pop("namespace"), **options)
        made._store = store
        return made


# -- a context that shows more than it has ---------------------------------------------------------


class Note(Struct, frozen=True, eq=False):
    """A message that is shown, and the message of the context that it is shown before."""

    message: UserMessage
    before: Any


class _View:
    """What a model context shows: its messages, and the notes of each `Recall` among them."""

    def __init__(self, context: ChatCompletionContext) -> None:
        self.own = context.get_messages
        self.notes: dict[Recall, Note] = {}
        context.get_messages = self.get_messages  # type: ignore[method-assign]

    @classmethod
    def of(cls, context: ChatCompletionContext) -> _View:
        """The view of *context*, which it has from now on."""
        found = getattr(vars(context).get("get_messages"), "__self__", None)
        return found if isinstance(found, cls) else cls(context)

    async def get_messages(self) -> list[Any]:
        """The context's messages and the notes, each before its question.

        If the context does not show that any more, at the front. Never between a call and its
        result: what is before a user's message is neither.
        """
        messages = list(await self.own())
        for note in self.notes.values() if messages else ():
            places = [at for at, message in enumerate(messages) if message is note.before]
            messages.insert(places[-1] if places else 0, note.message)
        return messages


def _newest(messages: list[Any]) -> list[Any]:
    """What was said to the agent last, by one or by several."""
    end = len(messages)
    while end and messages[end - 1].type != "UserMessage":
        end -= 1
    start = end
    while start and messages[start - 1].type in ("UserMessage", "SystemMessage"):
        start -= 1
    return messages[start:end]


def _text(message: Any) -> str:
    """What a user, or another agent, has said in it."""
    if message.type == "SystemMessage":
        return ""
    parts = [message.content] if isinstance(message.content, str) else message.content
    return " ".join(part for part in parts if isinstance(part, str))


# -- contents --------------------------------------------------------------------------------------


def _content(hit: MemoryHit, text: str) -> MemoryContent:
    about = {"id": hit.id, "score": hit.score, "kind": hit.kind, "at": hit.at.isoformat()}
    about |= {"tags": list(hit.tags)} if hit.tags else {}
    about |= {"source": hit.source} if hit.source else {}
    return MemoryContent(content=text, mime_type=MemoryMimeType.TEXT, metadata=about)


def _as_text(content: MemoryContent) -> str:
    """*content* as text."""
    if isinstance(content.content, str):
        return content.content
    if isinstance(content.content, dict):
        return json.dumps(content.content, ensure_ascii=False)
    kind = type(content.content).__name__
    msg = f"Memories are text, or JSON; not {kind}. Keep it elsewhere, and remember where it is."
    raise NotStorable(msg)


async def _cancellable(work: Coroutine[Any, Any, Any], token: CancellationToken | None) -> Any:
    """What *work* returns, unless *token* is cancelled before."""
    if token is None:
        return await work
    task = asyncio.ensure_future(work)
    token.link_future(task)
    return await task
