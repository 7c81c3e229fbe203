"""LangGraph's long-term memory: a `BaseStore` over a store of Limpet's.

    from limpet.integrations.langgraph import LimpetStore

    graph = builder.compile(checkpointer=…, store=LimpetStore("agents.db"))

**How it is stored.** Each namespace is a journal of its own kind, ``langgraph-store``, under its
labels joined by full stops (`names`). Why not one journal an item: a search would read each.
Why not one for all: whoever reads one user's items would read everybody's, and could not delete
them by a command. Why not a state a namespace: a save of a state names the one before it, so that
two who put different items would be in each other's way, and each would read before it writes.
Here a put is one append without a condition; the newest in the journal's order counts.

**How it is read.** Each process keeps a fold of the namespaces that it uses (`fold`). A read
asks for the journal's head, and reads what is new if its number is another (`journal`). What
is replaced, deleted or expired is dropped when there is more of it than of what is left; by a
write, in the thread of that write. There are no threads and tasks of its own.

**Vectors** are stored beside the item they belong to, in the same record, in four bytes a number.
So a second process, on any backend, finds what the first has embedded, and pays for nothing again.

**Times to live** count by the backend's clock: its times stand with what is stored, and each write
of ours tells how far this machine's clock is off.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    ensure_embeddings,
    get_text_at_path,
    tokenize_path,
)

from limpet.backends import forks
from limpet.backends.contract import from_micros
from limpet.core.codec import fresh, is_plain, plain
from limpet.core.ids import MAX_SECONDS, make_key
from limpet.errors import EmbeddingFailed, InvalidId, LimpetError, NotStorable, TooLarge
from limpet.integrations.langgraph.store.filters import fits, matches
from limpet.integrations.langgraph.store.fold import DELETED, REFRESHED, embedded, put
from limpet.integrations.langgraph.store.journal import Namespace
from limpet.integrations.langgraph.store.names import KIND, id_of, ids_begin, namespace_of
from limpet.integrations.langgraph.store.vectors import pack, scores
from limpet.store import as_async, open_async

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType

    from langchain_core.embeddings import Embeddings

    from limpet.backends.contract import Appended, Head
    from limpet.integrations.langgraph.store.fold import StoredItem
    from limpet.store import AsyncStore, Store

    Entries = list[tuple[str, Any]]

__all__ = ["LimpetStore"]

log = logging.getLogger(__name__)

#: Namespaces of which a fold is kept in memory; of others it is read again when it is needed.
MOST_FOLDS = 1000

#: The path of an item's text that is all of it.
WHOLE = "$"


class _Place(NamedTuple):
    """Where an item is."""

    namespace: tuple[str, ...]
    key: str


class LimpetStore(BaseStore):
    """LangGraph's `BaseStore` in a store of Limpet's: for ``compile(store=…)``.

    *store*: an open store, sync or async; or its URL, and then `close` closes it. *index* as for
    LangGraph's stores: ``{"dims": 1536, "embed": …, "fields": ["text"]}``; items are then found by
    meaning. *ttl*, as well: ``{"default_ttl": 60, "refresh_on_read": True,
    "sweep_interval_minutes": 10}``, in minutes.

    All methods are there for code that blocks and for code that awaits, on one object, which any
    number of threads, event loops and processes may use. A put is durable on return.

    >>> store = LimpetStore("memory:")
    >>> store.put(("users", "ann"), "food", {"likes": "figs"})
    >>> store.get(("users", "ann"), "food").value
    {'likes': 'figs'}
    """

    supports_ttl = True

    def __init__(
        self,
        store: AsyncStore | Store | str | os.PathLike[str],
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
    ) -> None:
        for name in ("default_ttl", "sweep_interval_minutes"):
            _check_minutes((ttl or {}).get(name), name)
        self.ttl_config = ttl
        self.index_config = None if index is None else index.copy()
        self.embeddings: Embeddings | None = None
        self._fields: list[tuple[str, Any]] = []
        if index is not None:
            self.embeddings = ensure_embeddings(index.get("embed"))
            self._fields = [
                (path, path if path == WHOLE else tokenize_path(path))
                for path in index.get("fields") or [WHOLE]
            ]
        self._own = open_async(store) if isinstance(store, (str, os.PathLike)) else None
        scope = (self._own or as_async(store)).scope
        self._runtime = scope.runtime
        self._scope = scope.as_sync()
        self._namespaces: OrderedDict[tuple[str, ...], Namespace] = OrderedDict()
        self._lock = threading.Lock()
        #: Microseconds that the backend's clock is ahead of ours, once a write has told.
        self._ahead: int | None = None
        self._swept = time.monotonic()
        forks.register(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._scope.backend.url!r}, tenant={self._scope.tenant!r})"

    # -- what LangGraph calls ------------------------------------------------------------------

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Run *ops*: all reads see what was there before, then all puts and deletes are stored.

        As in LangGraph's own stores, the last put of an item counts. What is put to one namespace
        is stored all or none; to several, too, on SQLite and PostgreSQL.
        """
        batch = _Batch(ops)
        if self.embeddings is not None:
            queries = [self.embeddings.embed_query(text) for text in batch.queries]
            texts = self._texts(batch)
            found = self.embeddings.embed_documents(list(texts)) if texts else []
            self._embed(batch, queries, texts, found)
        return self._run(batch)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """The same, awaited. If it is cancelled, it ends first: nothing is stored afterwards."""
        batch = _Batch(ops)
        if self.embeddings is not None:
            # One after the other: where one fails, no other is left running.
            queries = [await self.embeddings.aembed_query(text) for text in batch.queries]
            texts = self._texts(batch)
            found = await self.embeddings.aembed_documents(list(texts)) if texts else []
            self._embed(batch, queries, texts, found)
        return await self._runtime.call(self._run, batch)

    # -- what else it can do -------------------------------------------------------------------

    def sweep_ttl(self) -> int:
        """Free the room of what has expired; returns how many items that were.

        What was deleted or replaced goes as well: nothing of it is left in the store. Expired items
        are never returned, swept or not; with ``sweep_interval_minutes``, writes see to those of
        the namespaces that this process uses.
        """
        total = 0
        for path, _ in self._found((), in_order=False):
            namespace = self._namespace(path)
            if self._ahead is None:  # nothing is dropped by a clock that may be wrong
                self._refresh(namespace, [])
            total += namespace.sweep(self._now())
        return total

    async def asweep_ttl(self) -> int:
        """The same, awaited."""
        return await self._runtime.call(self.sweep_ttl)

    def close(self) -> None:
        """Close the store, if it was opened here. A second call does nothing."""
        if self._own is not None:
            self._scope.store.close()

    async def aclose(self) -> None:
        """The same, awaited."""
        if self._own is not None:
            await self._own.close()

    def __enter__(self) -> Self:
        """The store itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it, if it was opened here."""
        self.close()

    async def __aenter__(self) -> Self:
        """The store itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it, if it was opened here."""
        await self.aclose()

    # -- embedding -----------------------------------------------------------------------------

    def _texts(self, batch: _Batch) -> dict[str, list[tuple[_Place, str]]]:
        """The texts that are to be embedded, each with the items and paths that it is found at."""
        texts: dict[str, list[tuple[_Place, str]]] = {}
        for place, op in batch.puts.items():
            if op.value is None or op.index is False:
                continue
            paths = self._fields
            if op.index is not None:
                paths = [(path, tokenize_path(path)) for path in op.index]
            value = dict(op.value)
            if not is_plain(value):  # then LangGraph's function wants what will be stored
                value = plain(value, _named(place))
            for path, tokens in paths:
                found = get_text_at_path(value, tokens)
                for number, text in enumerate(found):
                    name = f"{path}.{number}" if len(found) > 1 else path
                    texts.setdefault(text, []).append((place, name))
        return texts

    def _embed(
        self,
        batch: _Batch,
        queries: Sequence[Sequence[float]],
        texts: dict[str, list[tuple[_Place, str]]],
        vectors: Sequence[Sequence[float]],
    ) -> None:
        """Give *batch* the vectors of its queries and of its items' *texts*."""
        dims = (self.index_config or {}).get("dims")
        if len(vectors) != len(texts) or any(dims and len(one) != dims for one in vectors):
            sizes = sorted({len(one) for one in vectors})
            msg = (
                f"The embedding function returned {len(vectors)} vectors of {sizes} numbers for "
                f"{len(texts)} texts, and nothing was stored. It is to return one for each, of "
                f"index['dims'] ({dims}) numbers."
            )
            raise EmbeddingFailed(msg)
        batch.query_vectors = dict(zip(batch.queries, queries, strict=True))
        for places, vector in zip(texts.values(), vectors, strict=True):
            packed = pack(vector)
            for place, path in places:
                batch.vectors.setdefault(place, {})[path] = packed

    # -- a batch -------------------------------------------------------------------------------

    def _run(self, batch: _Batch) -> list[Result]:
        now = self._now()
        results: list[Result] = []
        read: dict[tuple[str, ...], list[str]] = {}  # what is to be refreshed
        current: set[tuple[str, ...]] = set()  # namespaces that were brought up to date
        for op in batch.ops:
            if isinstance(op, GetOp):
                namespace = self._namespace(op.namespace)
                how = namespace.known_item if op.namespace in current else namespace.item
                found = how(op.key, now)
                current.add(op.namespace)
                place = _Place(op.namespace, op.key)
                results.append(None if found is None else Item(**_shown(place, found)))
                if found is not None and op.refresh_ttl and found.is_read_long_since(now):
                    read.setdefault(op.namespace, []).append(op.key)
            elif isinstance(op, SearchOp):
                hits = self._search(op, batch.query_vectors.get(op.query or ""), now)
                results.append(
                    [SearchItem(**_shown(place, one), score=score) for place, one, score in hits]
                )
                for place, one, _ in hits:
                    if op.refresh_ttl and one.is_read_long_since(now):
                        read.setdefault(place.namespace, []).append(place.key)
            elif isinstance(op, ListNamespacesOp):
                results.append(self._list(op, now))
            else:
                results.append(None)
        for path, keys in read.items() if not self._scope.backend.readonly else ():
            self._refresh(self._namespace(path), list(dict.fromkeys(keys)))
        if batch.puts:
            self._write(batch, now)
        return results

    def _write(self, batch: _Batch, now: int) -> None:
        """Store what *batch* puts and deletes; durable on return."""
        changes = self._changes(batch, now)
        try:
            # All of them first: what cannot be stored keeps the others from being stored, too.
            requests = [one.request(entries, lasting=lasts) for one, entries, lasts in changes]
        except (NotStorable, TooLarge):
            for place, op in batch.puts.items():
                _check_storable(self._namespace(place.namespace), place, op)
            raise
        backend, began = self._scope.backend, _here()
        if len(requests) > 1 and backend.transactional:
            answers = backend.append_all(requests)
        else:
            answers = list(map(backend.append, requests))
        for (one, entries, _), done in zip(changes, answers, strict=True):
            self._written(one, entries, done, began)
        minutes = (self.ttl_config or {}).get("sweep_interval_minutes")
        if minutes is not None and time.monotonic() - self._swept >= minutes * 60:
            self._swept = time.monotonic()
            with self._lock:
                used = list(self._namespaces.values())
            for one in used:
                self._tidy(one.sweep, self._now())

    def _changes(self, batch: _Batch, now: int) -> list[tuple[Namespace, Entries, bool]]:
        """The entries that *batch* adds to each namespace; see `NamespaceMeta` for the flag.

        By their ids: two writers that lock several must do it in one order.
        """
        changes: dict[tuple[str, ...], Entries] = {}
        lasting: set[tuple[str, ...]] = set()
        for place, op in batch.puts.items():
            path, key = place
            if op.value is not None:
                entries = changes.setdefault(path, [])
                entries.append(put(key, dict(op.value), None if op.ttl is None else op.ttl * 60))
                if place in batch.vectors:
                    entries.append(embedded(key, batch.vectors[place]))
                if op.ttl is None:
                    lasting.add(path)
            elif self._namespace(path).item(key, now) is not None:
                # Nothing is written where nothing is: no namespace begins with a deletion.
                changes.setdefault(path, []).append((DELETED, {"key": key}))
        paths = sorted(changes, key=id_of)
        return [(self._namespace(path), changes[path], path in lasting) for path in paths]

    def _refresh(self, namespace: Namespace, keys: list[str]) -> None:
        """Let the times to live of what was read begin again."""
        entries: Entries = [(REFRESHED, {"keys": keys})]
        began = _here()
        self._written(namespace, entries, namespace.note(entries), began)

    def _written(self, namespace: Namespace, entries: Entries, done: Appended, began: int) -> None:
        # The backend has looked at its clock between *began* and now. If both may be right, they
        # are; else ours is off by as much as there is no other way to explain it.
        self._ahead = min(max(0, done.at - _here()), done.at - began)
        self._tidy(namespace.compact_if_due, done, len(entries), self._now())

    def _tidy(self, act: Any, *args: Any) -> None:
        """Do what frees room; that it fails does not concern the write that it came with."""
        try:
            act(*args)
        except LimpetError as error:
            log.warning("A namespace of a store could not be compacted: %s", error)

    # -- searching -----------------------------------------------------------------------------

    def _search(self, op: SearchOp, vector: Any, now: int) -> list[tuple[_Place, StoredItem, Any]]:
        """What *op* finds, each with its score: None without a query, or without a vector."""
        if op.limit < 0 or op.offset < 0:
            msg = f"limit and offset count from 0; not {op.limit} and {op.offset}."
            raise ValueError(msg)
        last = op.offset + op.limit
        found: list[tuple[_Place, StoredItem]] = []
        for path, head in self._found(tuple(op.namespace_prefix)):
            if vector is None and len(found) >= last:
                break
            found += [
                (_Place(path, key), item)
                for key, item in self._namespace(path).items(now, head).items()
                if not op.filter or fits(item.value, op.filter)
            ]
        if vector is None:
            return [(*one, None) for one in found[op.offset : last]]
        best = scores(vector, [list(item.vectors.values()) for _, item in found])
        with_score = [number for number, score in enumerate(best) if score is not None]
        with_score.sort(key=lambda number: best[number] or 0.0, reverse=True)
        without = [number for number, score in enumerate(best) if score is None]
        return [(*found[n], best[n]) for n in [*with_score, *without][op.offset : last]]

    def _list(self, op: ListNamespacesOp, now: int) -> list[tuple[str, ...]]:
        if op.limit < 0 or op.offset < 0:
            msg = f"limit and offset count from 0; not {op.limit} and {op.offset}."
            raise ValueError(msg)
        conditions = op.match_conditions or ()
        prefixes = [one.path for one in conditions if one.match_type == "prefix"]
        literal = prefixes[0] if prefixes else ()
        if "*" in literal:
            literal = literal[: literal.index("*")]
        names = [
            path
            for path, head in self._found(tuple(literal), in_order=False)
            if all(matches(path, one) for one in conditions)
            and not self._namespace(path).is_empty(now, head)
        ]
        if op.max_depth is not None:
            names = list({path[: op.max_depth] for path in names})
        return sorted(names)[op.offset : op.offset + op.limit]

    def _found(
        self, prefix: tuple[str, ...], *, in_order: bool = True
    ) -> Iterator[tuple[tuple[str, ...], Head]]:
        """The namespaces that begin with *prefix* and their heads; the oldest first, *in_order*."""
        backend, tenant = self._scope.backend, self._scope.tenant
        heads: dict[str, Head] = {}
        if prefix:
            own = backend.head(make_key(tenant, KIND, id_of(prefix)))
            heads = {} if own is None else {own.key.id: own}
        for head in backend.heads(tenant, KIND, prefix=ids_begin(prefix), limit=1000):
            heads[head.key.id] = head
        order = sorted(heads.values(), key=lambda head: (head.created, head.key.id))
        for head in order if in_order else heads.values():
            path = namespace_of(head)
            if path[: len(prefix)] == prefix:
                yield path, head

    # -- what is shared ------------------------------------------------------------------------

    def _namespace(self, path: tuple[str, ...]) -> Namespace:
        with self._lock:
            found = self._namespaces.get(path)
            if found is None:
                found = self._namespaces[path] = Namespace(self._scope, path)
                if len(self._namespaces) > MOST_FOLDS:
                    self._namespaces.popitem(last=False)
            self._namespaces.move_to_end(path)
            return found

    def _now(self) -> int:
        """The present, by the backend's clock as far as it is known."""
        return _here() + (self._ahead or 0)

    # -- forks (see `limpet.backends.forks.Forked`) --------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the store is closed."""
        return self._scope.backend.closed

    def before_fork(self) -> None:
        """Nothing: the child makes its own locks and folds."""

    def after_fork_in_parent(self) -> None:
        """Nothing, as before."""

    def after_fork_in_child(self) -> None:
        """A lock may have been held by a thread that is not here."""
        self._lock = threading.Lock()
        self._namespaces = OrderedDict()


class _Batch:
    """The operations of one call, and what was embedded for them."""

    def __init__(self, ops: Iterable[Op]) -> None:
        self.ops = list(ops)
        self.puts: dict[_Place, PutOp] = {}
        self.vectors: dict[_Place, dict[str, bytes]] = {}
        self.query_vectors: dict[str, Sequence[float]] = {}
        queries = []
        for op in self.ops:
            if isinstance(op, PutOp):
                _check(op.key, op.value, _named(_Place(op.namespace, op.key)))
                _check_minutes(op.ttl, "ttl")
                self.puts[_Place(op.namespace, op.key)] = op
            elif isinstance(op, SearchOp):
                queries += [op.query] if op.query else []
            elif type(op) not in (GetOp, ListNamespacesOp):
                raise ValueError(f"Unknown operation type: {type(op)}")
        self.queries = list(dict.fromkeys(queries))


def _here() -> int:
    """The present, by this machine's clock, in microseconds."""
    return time.time_ns() // 1000


def _check(key: object, value: object, where: str) -> None:
    """Raise if they cannot be the key and the value of an item."""
    if not isinstance(key, str):
        raise InvalidId(f"A key must be text, not {type(key).__name__} ({key!r:.80}).")
    if value is not None and not isinstance(value, Mapping):
        kind = type(value).__name__
        raise NotStorable(f"{where} is a value of type {kind}. Put a mapping, as a dict.", where)


def _check_minutes(minutes: object, what: str) -> None:
    if minutes is None or (isinstance(minutes, (int, float)) and 0 < minutes * 60 <= MAX_SECONDS):
        return
    msg = f"A {what} is a number of minutes over 0, up to {MAX_SECONDS // 60:,}; not {minutes!r}."
    raise ValueError(msg)


def _shown(place: _Place, found: StoredItem) -> dict[str, Any]:
    """What LangGraph's `Item` is made of."""
    return {
        "namespace": place.namespace,
        "key": place.key,
        "value": fresh(found.value),  # the caller's own: changing it changes nothing here
        "created_at": from_micros(found.created),
        "updated_at": from_micros(found.updated),
    }


def _named(place: _Place) -> str:
    """What an error calls an item."""
    return f"{id_of(place.namespace)}/{place.key}"


def _check_storable(namespace: Namespace, place: _Place, op: PutOp) -> None:
    """Raise if the value of *op* by itself cannot be stored, and say whose it is."""
    if op.value is None:
        return
    entry = put(place.key, op.value, None)
    try:
        namespace.journal.encode([entry])
    except (NotStorable, TooLarge) as error:
        raise error.under("put['value']", _named(place)) from error
