"""Stores for tests of LangGraph's: Limpet's, sync and async, and one to compare it with."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from langgraph.store.base import Item
from langgraph.store.memory import InMemoryStore, _compare_values

import limpet
from limpet.integrations.langgraph.store.store import LimpetStore
from tests.support import places

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest
    from langgraph.store.base import ListNamespacesOp, Op, Result, SearchOp

__all__ = ["PLACES", "Reference", "Rig", "Way", "embed", "plain"]

#: Where stores are tested, each by sync and async methods: those of this machine, then servers.
PLACES = ["memory", *places.LOCAL, "postgresql", "redis", "dynamodb"]

LETTERS = "abcde"


def embed(texts: Iterable[str]) -> list[list[float]]:
    """How often each letter is in each of *texts*: whole numbers, so that scores are exact."""
    return [[float(text.count(letter)) for letter in LETTERS] for text in texts]


class Way:
    """A store with the manners of its sync methods: the async ones are run to their end."""

    def __init__(self, store: Any, loop: asyncio.AbstractEventLoop | None) -> None:
        self.store = store
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        loop = self._loop
        if loop is None:
            return getattr(self.store, name)
        method = getattr(self.store, f"a{name}")
        return lambda *args, **kwargs: loop.run_until_complete(method(*args, **kwargs))


class Rig:
    """A place for stores, opened once; each tenant of it is a store of its own."""

    def __init__(self, name: str, way: str, request: pytest.FixtureRequest) -> None:
        self.name = name
        self.url = "memory:" if name == "memory" else places.find(name, request).url
        if name == "sqlite":
            self.url += "?durability=normal"  # as quick as the tests, and killed by none of them
        self.loop = asyncio.new_event_loop() if way == "async" else None
        opened: Any = limpet.open(self.url) if self.loop is None else limpet.open_async(self.url)
        self.limpet = opened
        self._tenants = 0

    def store(self, **options: Any) -> Way:
        """A new, empty store."""
        self._tenants += 1
        return self.again(**options)

    def again(self, **options: Any) -> Way:
        """The same as the newest, as another process opens it: it knows nothing of it."""
        tenant = self.limpet.as_tenant(f"t{self._tenants}")
        return Way(LimpetStore(tenant, **options), self.loop)

    def close(self) -> None:
        """Close the store, and the loop."""
        closing = self.limpet.close()
        if self.loop is not None:
            self.loop.run_until_complete(closing)
            self.loop.close()


class Reference(InMemoryStore):
    """LangGraph's store in memory, without what is reported as its faults, each by its number."""

    __slots__ = ("_written",)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._written: set[tuple[str, ...]] = set()

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Whoever deletes nothing from a namespace does not make it (#8734)."""
        found = super().batch(ops)
        self._written |= {path for path, items in self._data.items() if items}
        self._leave_out_ghosts()
        return found

    def _prepare_ops(self, ops: Iterable[Op]) -> Any:
        """Nor does who reads one (#8734)."""
        prepared = super()._prepare_ops(ops)
        self._leave_out_ghosts()
        return prepared

    def _leave_out_ghosts(self) -> None:
        for path in set(self._data) - self._written:
            del self._data[path]

    def _handle_list_namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        """One from which all was deleted is not listed (#8734)."""
        everything = self._data
        self._data = {path: items for path, items in everything.items() if items}
        try:
            return super()._handle_list_namespaces(op)
        finally:
            self._data = everything

    def _filter_items(self, op: SearchOp) -> list[tuple[Item, list[list[float]]]]:
        """What cannot be compared does not fit, and is no error (#7880)."""
        found = super()._filter_items(op._replace(filter=None, offset=0, limit=1 << 40))
        return [one for one in found if _fits(one[0].value, op.filter or {})]

    def _extract_texts(self, put_ops: Any) -> Any:
        """A new value does not keep the vectors of the old one (#8214)."""
        for op in put_ops.values():
            self._vectors[op.namespace].pop(op.key, None)
        return super()._extract_texts(put_ops)

    def _insertinmem_store(self, to_embed: Any, embeddings: list[list[float]]) -> None:
        """A text that two items have is embedded once, and is no error."""
        pairs = zip(to_embed.values(), embeddings, strict=True)
        for (path, key, field), vector in ((one, v) for places_, v in pairs for one in places_):
            self._vectors[path][key][field] = vector

    def _batch_search(self, ops: Any, vectors: Any, results: list[Result]) -> None:
        """The offset counts for items without a vector, too (#8871)."""
        whole = {
            number: (op._replace(offset=0, limit=1 << 40), candidates)
            for number, (op, candidates) in ops.items()
        }
        super()._batch_search(whole, vectors, results)
        for number, (op, _) in ops.items():
            found: Any = results[number]
            results[number] = found[op.offset : op.offset + op.limit]


def _fits(value: dict[str, Any], wanted: dict[str, Any]) -> bool:
    try:
        return all(_compare_values(value.get(name), one) for name, one in wanted.items())
    except (TypeError, ValueError):
        return False


def plain(result: Any) -> Any:
    """A *result* without its times."""
    if isinstance(result, list):
        return [plain(one) for one in result]
    if isinstance(result, Item):
        score = getattr(result, "score", None)
        rounded = None if score is None else round(score, 9)
        return type(result).__name__, result.namespace, result.key, result.value, rounded
    return result
