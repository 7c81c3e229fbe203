"""Stores: a URL in, nouns out."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, TypeVar

from msgspec import structs

from limpet.backends.contract import UNSET, Backend, Head, UnsetType, from_micros
from limpet.backends.url import DEFAULT_TENANT, connect
from limpet.conversations import conversation
from limpet.conversations.conversation import AsyncConversation, Conversation, ConversationInfo
from limpet.core.codec import Codec
from limpet.core.ids import (
    MAX_TENANT_BYTES,
    check_id,
    check_labels,
    check_prefix,
    check_seconds,
)
from limpet.core.journal import AsyncJournal, Journal
from limpet.core.leases import Keeper, holder_name
from limpet.core.runtime import (
    Face,
    HopPort,
    InlinePort,
    Port,
    Pulled,
    blocking,
    blocking_iter,
    faced,
)
from limpet.errors import LeaseHeld
from limpet.tasks import control, task
from limpet.tasks.core import RESULTS, Home, Terms
from limpet.tasks.task import AsyncTask, Task, TaskInfo

if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Callable, Mapping
    from types import TracebackType

    from limpet.conversations.found import Found
    from limpet.memory import AsyncMemory, Memory
    from limpet.states.migrations import Migrations
    from limpet.states.state import AsyncState, State, StateInfo
    from limpet.tasks.checkpoint import Checkpoint
    from limpet.tasks.remembering import Memories

__all__ = ["AsyncStore", "Store", "open", "open_async"]

H = TypeVar("H", bound="Callable[[Checkpoint], Any]")
T = TypeVar("T")


def _late(name: str) -> Any:
    """A noun that many programs do without, and need not import."""
    return import_module(f"limpet.{name}")


def _remembers(*args: Any, **kwargs: Any) -> AsyncMemory:
    return _late("memory").AsyncMemory(*args, **kwargs)  # type: ignore[no-any-return]


def _memory_face(core: AsyncMemory) -> Memory:
    return _late("memory").Memory(core)  # type: ignore[no-any-return]


def _state_face(core: AsyncState) -> State:
    return _late("states.state").State(core)  # type: ignore[no-any-return]


class AsyncStore:
    """The same as `Store`, awaited. Open it with `open_async`."""

    def __init__(
        self,
        backend: Backend,
        port: Port,
        *,
        tenant: str = DEFAULT_TENANT,
        ttl: float | None = None,
        codec: Codec | None = None,
    ) -> None:
        self.tenant = check_id(tenant, "tenant", MAX_TENANT_BYTES)
        self.backend = backend
        self._port = port
        self._ttl = None if ttl is None else check_seconds(ttl, "ttl")
        self._codec = codec or (Codec(compress_over=None) if backend.readable else Codec())
        self._keeper = Keeper(backend)
        self._home = Home(self.tenant, port, self._codec, self._ttl, self._keeper, [], _remembers)
        #: Makes a task show itself to the user's functions as the sync face has it.
        self._show: Callable[[AsyncTask], object] = lambda opened: opened

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.backend.url!r}, tenant={self.tenant!r})"

    def as_tenant(self, tenant: str) -> AsyncStore:
        """The same store as another tenant sees it: for a server that has many.

        They share one connection; closing one closes all.
        """
        twin = copy.copy(self)
        twin._serve(tenant)  # noqa: SLF001 - its own twin
        return twin

    def _serve(self, tenant: str) -> None:
        self.tenant = check_id(tenant, "tenant", MAX_TENANT_BYTES)
        self._home = structs.replace(self._home, tenant=tenant)

    def _turn(self) -> None:
        """Be for blocking code what was for async code, or the reverse."""
        blocks = isinstance(self._port, InlinePort)
        self._port = HopPort(self.backend) if blocks else InlinePort(self.backend)
        self._home = self._home.through(self._port)
        self._show = (lambda opened: opened) if blocks else Task

    async def __aenter__(self) -> Self:
        """The store itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        await self.close()

    async def close(self) -> None:
        """Finish what is under way and let go of the backend. A second call does nothing."""
        if self.backend.blocks and isinstance(self._port, HopPort):
            import asyncio  # noqa: PLC0415 - sync programs never pay for it

            await asyncio.to_thread(self._close)
        else:
            self._close()

    def _close(self) -> None:
        self._keeper.stop()
        self.backend.close()

    # -- nouns -------------------------------------------------------------------------------

    def journal(self, kind: str, id: str) -> AsyncJournal:
        """The journal *id* of some *kind*: what all nouns are made of, for making your own."""
        return self._home.journal(kind, id)

    def conversation(
        self,
        id: str,
        *,
        labels: Mapping[str, str] | None = None,
        ttl: float | UnsetType | None = UNSET,
    ) -> AsyncConversation:
        """The conversation *id*; it comes to be with its first message, with *labels* and *ttl*."""
        return AsyncConversation(
            self.journal(conversation.KIND, id),
            lambda other: self.journal(conversation.KIND, other),
            labels=UNSET if labels is None else check_labels(labels),
            ttl=ttl,
        )

    def conversations(
        self,
        *,
        prefix: str = "",
        labels: Mapping[str, str] | None = None,
        older_than: float | None = None,
        larger_than: int | None = None,
    ) -> AsyncIterator[ConversationInfo]:
        """The conversations of this tenant, by id.

        *older_than*: that were last written to more than so many seconds ago, be it a message, a
        pin, a summary, or a repair that a window recorded. *larger_than*: in bytes.
        """
        filters = {"prefix": prefix, "labels": labels}

        def fits(head: Head) -> bool:
            age = (datetime.now(UTC) - from_micros(head.updated)).total_seconds()
            return (older_than is None or age > older_than) and (
                larger_than is None or head.size > larger_than
            )

        return self._list(conversation.KIND, ConversationInfo.of, filters, fits)

    async def search_conversations(
        self,
        query: str,
        *,
        k: int = 10,
        prefix: str = "",
        labels: Mapping[str, str] | None = None,
    ) -> list[Found]:
        """The *k* messages that fit *query* best: those with all of its words, then with some.

        By a full-text index that is kept beside the store, on this machine, and is brought up to
        date by each search: it finds what was said until now, and nothing that was deleted.
        """
        from limpet.conversations.search import search  # noqa: PLC0415 - most programs never search

        place = (self._port, self.tenant, self.journal, self._codec)
        return await search(*place, query, k=k, prefix=prefix, labels=labels)

    def task(
        self,
        id: str,
        goal: str | None = None,
        *,
        agent: str | None = None,
        lease: float = 60,
        wait: float = 0,
        heartbeat: float = 60,
        labels: Mapping[str, str] | None = None,
        ttl: float | UnsetType | None = UNSET,
        deadline: float | datetime | None = None,
    ) -> AsyncTask:
        """The task *id*, to be opened with ``with``: created if it has a *goal* and is new.

        While it is open it is under a lease of *lease* seconds that renews itself, at least every
        *heartbeat* seconds, and then stores the progress that steps report. If another worker holds
        it, opening raises `TaskHeld`, after up to *wait* seconds; a worker that died is succeeded
        when its lease ends, on the same machine at once. A new task has until *deadline*: a time,
        or so many seconds from now.
        """
        terms = Terms(
            goal=goal,
            agent=agent,
            lease=lease,
            wait=wait,
            heartbeat=heartbeat,
            labels=check_labels(labels or {}),
            ttl=ttl,
            deadline=deadline,
        )
        return AsyncTask(self._home, id, terms)

    def tasks(
        self,
        *,
        status: str | None = None,
        prefix: str = "",
        labels: Mapping[str, str] | None = None,
    ) -> AsyncIterator[TaskInfo]:
        """The tasks of this tenant, by id.

        *status* is open, waiting, paused, done, failed or cancelled.
        """
        filters = {"prefix": prefix, "labels": labels, "status": status}
        return self._list(task.KIND, TaskInfo.of, filters)

    def state(
        self,
        id: str,
        *,
        version: int = 1,
        type: str | None = None,
        labels: Mapping[str, str] | None = None,
        ttl: float | UnsetType | None = UNSET,
        migrations: Migrations | None = None,
    ) -> AsyncState:
        """The state *id* of an agent, a team or any object; it comes to be with its first save.

        *version* is that of the program: older documents are migrated to it when they are loaded,
        by the functions registered with `limpet.migration` or by *migrations*. *type* is what is
        saved; a state of another type is refused. AutoGen's states say their type themselves.
        """
        state = _late("states.state")
        made: AsyncState = state.AsyncState(
            self.journal(state.KIND, id),
            lambda other: self.state(
                other, version=version, type=type, ttl=ttl, migrations=migrations
            ),
            version=version,
            type=type,
            labels=UNSET if labels is None else check_labels(labels),
            ttl=ttl,
            migrations=migrations,
        )
        return made

    def states(
        self, *, prefix: str = "", labels: Mapping[str, str] | None = None
    ) -> AsyncIterator[StateInfo]:
        """The states of this tenant, by id."""
        state = _late("states.state")
        return self._list(state.KIND, state.StateInfo.of, {"prefix": prefix, "labels": labels})

    def memory(self, namespace: str, *, embed: Any = None) -> AsyncMemory:
        """What is remembered in a *namespace* of this tenant, over all tasks.

        *embed*: a function from a list of texts to a list of vectors, or True for the local model
        of ``limpet[embeddings]``; memories are then found by what they mean as well.
        """
        found: AsyncMemory = self._home.memory(namespace, embed)
        return found

    async def submit(
        self,
        kind: str,
        id: str,
        goal: str,
        *,
        input: Any = None,
        agent: str | None = None,
        labels: Mapping[str, str] | None = None,
        ttl: float | UnsetType | None = UNSET,
        deadline: float | datetime | None = None,
    ) -> TaskInfo:
        """Create a task for a worker: ``limpet work`` runs the function registered for *kind*.

        *input* is what that function needs to know, as ``task.input``. Submitting the same task
        again changes nothing; `GoalMismatch` if the id is taken by another, or has another input.
        """
        terms = Terms(
            goal=goal, agent=agent, labels=check_labels(labels or {}), ttl=ttl, deadline=deadline
        )
        return TaskInfo.of(await control.submit(self._home, kind, id, terms, input))

    async def signal(
        self, task: str, name: str, payload: Any = None, *, id: str | None = None
    ) -> None:
        """Send *payload* to the task that waits, or will wait, for the signal *name*.

        An *id* makes a repeated signal harmless.
        """
        await control.signal(self._home, task, name, payload, id)

    async def resolve(
        self, task: str, step: str, how: str, *, result: Any = None, by: str | None = None
    ) -> None:
        """Say what became of a *step* in doubt: it is "done", with *result*; "retry"; or "skip".

        *by* is recorded with it: who said so.
        """
        await control.resolve(self._home, task, step, how, result=result, by=by)

    async def pause(self, task: str, *, because: str | None = None) -> None:
        """Let nobody work on the task until `resume`. Who does now stops before its next step."""
        await control.pause(self._home, task, because)

    async def cancel(self, task: str, *, because: str | None = None) -> None:
        """End the task without an outcome. Who works on it now stops before its next step."""
        await control.cancel(self._home, task, because)

    async def resume(self, task: str) -> None:
        """Let a task go on that was paused or cancelled, has failed, or waits: it looks again."""
        await control.resume(self._home, task)

    def on_finish(self, heir: H) -> H:
        """Hand the checkpoint of every task that finishes here to *heir*, before it may go.

        After a crash it may be handed on a second time, never not at all. Usable as a decorator.
        """
        self._home.heirs.append(heir)
        return heir

    async def run(
        self,
        id: str,
        goal: str,
        *,
        plan: object,
        execute: Callable[[Any], Any],
        finish: Callable[[dict[str, Any]], Any] | None = None,
        remember: Memories | str | bool = False,
        agent: str | None = None,
        lease: float = 60,
        wait: float = 0,
        heartbeat: float = 60,
        labels: Mapping[str, str] | None = None,
        ttl: float | UnsetType | None = UNSET,
        deadline: float | datetime | None = None,
    ) -> Any:
        """Run a whole task, or what is left of it, and return its outcome.

        *plan*: a list of steps, or a function that makes one. ``execute(step)`` does one step;
        ``finish(results)`` makes the outcome, without it the results are the outcome. *remember*
        as in `Task.finish`, the others as in `task`.
        """
        opened = self.task(
            id,
            goal,
            agent=agent,
            lease=lease,
            wait=wait,
            heartbeat=heartbeat,
            labels=labels,
            ttl=ttl,
            deadline=deadline,
        )
        self._show(opened)
        return await opened.run(plan=plan, execute=execute, finish=finish, remember=remember)

    async def sweep(self) -> int:
        """Free the room of everything that has expired; how many journals that were."""
        total = 0
        while count := await self._port.call(self.backend.sweep):
            total += count
        # What tasks have kept apart does not expire by itself, or it might do so before its task.
        async for head in self._list(RESULTS, lambda head: head, {"prefix": "", "labels": None}):
            if await self.journal(task.KIND, head.key.id).head() is None:
                total += await self._sweep_results(head.key.id)
        return total

    async def _sweep_results(self, id: str) -> int:
        """Remove what a task has left that is gone; not while somebody begins another of its id."""
        old, results = self.journal(task.KIND, id), self.journal(RESULTS, id)
        try:
            lease = await self._port.call(self.backend.acquire, old.key, holder_name(None), 30)
        except LeaseHeld:
            return 0
        try:
            return await old.head() is None and await results.delete()
        finally:
            await self._port.call(self.backend.release, old.key, lease)

    def _list(
        self,
        kind: str,
        show: Callable[[Head], T],
        filters: dict[str, Any],
        fits: Callable[[Head], bool] = lambda _head: True,
    ) -> AsyncIterator[T]:
        """What *show* makes of each journal of one *kind*, page by page as they are asked for."""
        check_prefix(filters["prefix"])
        check_labels(filters["labels"] or {})
        heads: list[Head] = []  # of the page that is being gone through, the next one last
        cursor: str | None = None
        more = True

        async def pull() -> T | None:
            nonlocal cursor, more
            while more and not heads:
                page = await self._port.call(
                    self.backend.scan, self.tenant, kind, cursor=cursor, **filters
                )
                heads[:] = filter(fits, page.heads[::-1])
                cursor, more = page.cursor, page.cursor is not None
            return show(heads.pop()) if heads else None

        return Pulled(pull)


class Store(Face[AsyncStore]):
    """Where state lives. Open it with `limpet.open`; it may be used from any thread.

    >>> import limpet
    >>> with limpet.open("memory:", tenant="acme") as store:
    ...     _ = store.conversation("alice").append({"role": "user", "content": "Hello"})
    ...     [chat.id for chat in store.conversations()]
    ['alice']
    """

    def __init__(self, core: AsyncStore) -> None:
        super().__init__(core)
        core._show = Task  # noqa: SLF001 - its own other half

    @property
    def tenant(self) -> str:
        """Whose state this is; other tenants' cannot be seen from here."""
        return self._core.tenant

    @property
    def backend(self) -> Backend:
        """What keeps the journals."""
        return self._core.backend

    def on_finish(self, heir: H) -> H:
        """Hand the checkpoint of every task that finishes here to *heir*, before it may go.

        After a crash it may be handed on a second time, never not at all. Usable as a decorator.
        """
        return self._core.on_finish(heir)

    def __enter__(self) -> Self:
        """The store itself."""
        return self

    __exit__ = blocking(AsyncStore.__aexit__)
    close = blocking(AsyncStore.close)
    sweep = blocking(AsyncStore.sweep)
    conversations = blocking_iter(AsyncStore.conversations)
    search_conversations = blocking(AsyncStore.search_conversations)
    tasks = blocking_iter(AsyncStore.tasks)
    states = blocking_iter(AsyncStore.states)

    run = blocking(AsyncStore.run)
    submit = blocking(AsyncStore.submit)
    signal = blocking(AsyncStore.signal)
    resolve = blocking(AsyncStore.resolve)
    pause = blocking(AsyncStore.pause)
    cancel = blocking(AsyncStore.cancel)
    resume = blocking(AsyncStore.resume)
    as_tenant = faced(AsyncStore.as_tenant, lambda core: Store(core))  # noqa: PLW0108 - not made yet
    journal = faced(AsyncStore.journal, Journal)
    conversation = faced(AsyncStore.conversation, Conversation)
    task = faced(AsyncStore.task, Task)
    state = faced(AsyncStore.state, _state_face)
    memory = faced(AsyncStore.memory, _memory_face)


def other_face(store: AsyncStore) -> AsyncStore:
    """The same store, with the same leases, for blocking code if *store* is for async code.

    And the reverse. It is closed with *store*.
    """
    twin = copy.copy(store)
    twin._turn()  # noqa: SLF001 - its own twin
    return twin


def awaited(store: object) -> AsyncStore:
    """The async face of *store*: itself, or the twin of a sync one over the same backend."""
    if isinstance(store, AsyncStore):
        return store
    if not isinstance(store, Store):
        msg = (
            f"This needs a store, not a {type(store).__name__}. Open one with limpet.open_async()"
            " or limpet.open()."
        )
        raise TypeError(msg)
    return other_face(store._core)  # noqa: SLF001 - its own other half


def open(
    url: str | os.PathLike[str] | None = None,
    *,
    tenant: str = DEFAULT_TENANT,
    ttl: float | None = None,
    codec: Codec | None = None,
    **options: Any,
) -> Store:
    """Open a store, and create it if need be.

    *url*: a file (``agents.db``), ``sqlite:agents.db?timeout=5`` or ``memory:``; without one,
    ``$LIMPET_URL``, else ``limpet.db`` in this directory. *tenant*: whose state; tenants cannot
    see each other. *ttl*: how many seconds after its last append a new thing expires, unless it
    says otherwise. *options*: those of the backend; for SQLite ``create``, ``readonly``,
    ``timeout`` and ``durability``.

    >>> with open("memory:") as store:
    ...     store.conversation("alice").append({"role": "user", "content": "Hello"})
    1
    """
    check_id(tenant, "tenant", MAX_TENANT_BYTES)
    backend = connect(url, **options)
    return Store(AsyncStore(backend, InlinePort(backend), tenant=tenant, ttl=ttl, codec=codec))


def open_async(
    url: str | os.PathLike[str] | None = None,
    *,
    tenant: str = DEFAULT_TENANT,
    ttl: float | None = None,
    codec: Codec | None = None,
    **options: Any,
) -> AsyncStore:
    """The same for async code: ``async with limpet.open_async("agents.db") as store: …``.

    It may be used from several event loops. Opening itself takes a few milliseconds and blocks.
    """
    check_id(tenant, "tenant", MAX_TENANT_BYTES)
    backend = connect(url, **options)
    return AsyncStore(backend, HopPort(backend), tenant=tenant, ttl=ttl, codec=codec)
