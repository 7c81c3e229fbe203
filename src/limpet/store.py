"""Stores: a URL in, models out."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from msgspec import structs

from limpet.backends.contract import UNSET, Backend, Head, UnsetType, from_micros
from limpet.backends.url import DEFAULT_TENANT, connect
from limpet.conversations import conversation
from limpet.conversations.conversation import AsyncConversation, Conversation, ConversationInfo
from limpet.core.calls import (
    CallInDoubt,
    Resolution,
    all_in_doubt,
    kinds_in_doubt,
    resolve_call,
)
from limpet.core.ids import (
    MAX_TENANT_BYTES,
    check_id,
    check_labels,
    check_seconds,
)
from limpet.core.journal import AsyncJournal, Journal
from limpet.core.runtime import (
    AsyncEntered,
    SyncWrapper,
    core_of,
    run_to_end,
    sync,
    sync_iter,
    wrapped,
)
from limpet.core.scope import OpenStore, Scope
from limpet.errors import LeaseHeld, NotFound
from limpet.tasks import control, task
from limpet.tasks.entries import RESULTS
from limpet.tasks.record import TaskOptions
from limpet.tasks.task import AsyncTask, Task, TaskInfo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from types import TracebackType

    from limpet.conversations.search import ConversationHit
    from limpet.core.calls import Answer
    from limpet.core.checkpoint import Checkpoint
    from limpet.core.codec import Codec
    from limpet.core.redaction import Detector, Redactor
    from limpet.crypto.keys import Keys
    from limpet.erasure import Erasure
    from limpet.erasure.retention import Retained, Rule
    from limpet.memory import AsyncMemory, Memory
    from limpet.states.migrations import Migrations
    from limpet.states.state import AsyncState, State, StateInfo
    from limpet.tasks.memories import Memories

    #: A function from texts to their vectors, which may be async; True is the local model.
    Embed = Callable[[list[str]], Any] | bool | None

__all__ = ["AsyncStore", "Store", "open", "open_async"]

#: The kind of journal that rules of retention are in; see `limpet.erasure.retention`.
RETENTION = "limpet-retention"

H = TypeVar("H", bound="Callable[[Checkpoint], Any]")
T = TypeVar("T")


def _late(name: str) -> Any:
    """A model that many programs do without, and need not import."""
    return import_module(f"limpet.{name}")


def _make_memory(scope: Scope, namespace: str, embed: Any) -> AsyncMemory:
    return _late("memory").AsyncMemory(scope, namespace, embed=embed)  # type: ignore[no-any-return]


def _embedding(embed: Embed) -> Embed:
    """What *embed* stands for, before anything is opened: an extra that it needs may be missing."""
    if embed is None or embed is False:
        return None
    return _late("memory.embeddings").embedding_function(embed)  # type: ignore[no-any-return]


def _sync_memory(core: AsyncMemory) -> Memory:
    return _late("memory").Memory(core)  # type: ignore[no-any-return]


def _sync_state(core: AsyncState) -> State:
    return _late("states.state").State(core)  # type: ignore[no-any-return]


class AsyncStore(AsyncEntered):
    """The same as `Store`, awaited. Open it with `open_async`."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope  # what models are made of
        self._runtime = scope.runtime

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.backend.url!r}, tenant={self.tenant!r})"

    @property
    def tenant(self) -> str:
        """Whose state this is. Nothing of other tenants can be seen from here."""
        return self.scope.tenant

    @property
    def backend(self) -> Backend:
        """Where the journals are stored."""
        return self.scope.backend

    def as_tenant(self, tenant: str) -> AsyncStore:
        """The same store as another tenant sees it: for a server that has many.

        They share one connection; closing one closes all.
        """
        check_id(tenant, "tenant", MAX_TENANT_BYTES)
        return AsyncStore(structs.replace(self.scope, tenant=tenant))

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
        """Finish what is running and close the backend. A second call does nothing."""
        if self.backend.blocks and not self.scope.is_sync:
            import asyncio  # noqa: PLC0415 - sync programs never pay for it

            await asyncio.to_thread(self.scope.store.close)
        else:
            self.scope.store.close()

    # -- models -----------------------------------------------------------------------------

    def journal(self, kind: str, id: str) -> AsyncJournal:
        """The journal *id* of some *kind*: what all models are built on, for building your own."""
        return self.scope.journal(kind, id)

    def conversation(
        self,
        id: str,
        *,
        labels: Mapping[str, str] | None = None,
        ttl: float | UnsetType | None = UNSET,
    ) -> AsyncConversation:
        """The conversation *id*; its first message creates it, with *labels* and *ttl*."""
        return AsyncConversation(
            self.scope,
            id,
            labels=UNSET if labels is None else labels,
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

        *older_than*: only those that nobody has written to for so many seconds (a message, a pin, a
        summary, or a repair that a window recorded). *larger_than*: only those of more bytes.
        """

        def fits(head: Head) -> bool:
            age = (datetime.now(UTC) - from_micros(head.updated)).total_seconds()
            return (older_than is None or age > older_than) and (
                larger_than is None or head.size > larger_than
            )

        show = ConversationInfo.of
        return self.scope.list(conversation.KIND, show, prefix=prefix, labels=labels, fits=fits)

    async def search_conversations(
        self,
        query: str,
        *,
        k: int = 10,
        prefix: str = "",
        labels: Mapping[str, str] | None = None,
    ) -> list[ConversationHit]:
        """The *k* messages that match *query* best: those with all of its words, then with some.

        They are found by a full-text index on this machine, which each search brings up to date:
        it finds all that was stored until now, and nothing that was deleted.
        """
        from limpet.conversations.search import search  # noqa: PLC0415 - most programs never search

        return await search(self.scope, query, k=k, prefix=prefix, labels=labels)

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
        it, opening waits up to *wait* seconds and then raises `TaskHeld`. The task of a worker that
        died can be opened when its lease ends, on the same machine at once. *deadline* is a time,
        or a number of seconds from now, until which a new task must be done.
        """
        options = TaskOptions(
            goal=goal,
            agent=agent,
            lease=lease,
            wait=wait,
            heartbeat=heartbeat,
            labels=check_labels(labels or {}),
            ttl=ttl,
            deadline=deadline,
        )
        return AsyncTask(self.scope, id, options)

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
        show = TaskInfo.of
        return self.scope.list(task.KIND, show, prefix=prefix, labels=labels, status=status)

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
        """The state *id* of an agent, a team or any object; its first save creates it.

        *version* is that of the program: older documents are migrated to it when they are loaded,
        by the functions registered with `limpet.migration` or by *migrations*. *type* is what is
        saved; a state of another type is refused. AutoGen's states carry their type.
        """
        state = _late("states.state")
        made: AsyncState = state.AsyncState(
            self.scope,
            id,
            version=version,
            type=type,
            labels=UNSET if labels is None else labels,
            ttl=ttl,
            migrations=migrations,
        )
        return made

    def states(
        self, *, prefix: str = "", labels: Mapping[str, str] | None = None
    ) -> AsyncIterator[StateInfo]:
        """The states of this tenant, by id."""
        state = _late("states.state")
        return self.scope.list(state.KIND, state.StateInfo.of, prefix=prefix, labels=labels)

    def memory(self, namespace: str, *, embed: Embed = None) -> AsyncMemory:
        """The memory of one *namespace* of this tenant, shared by all tasks.

        *embed*: a function from a list of texts to a list of vectors, or True for the local model
        of ``limpet[embeddings]``; memories are then also found by meaning. Without it, it is what
        the store was opened with; with False, memories are found by words alone.
        """
        found: AsyncMemory = self.scope.memory(namespace, embed)
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
        options = TaskOptions(
            goal=goal, agent=agent, labels=check_labels(labels or {}), ttl=ttl, deadline=deadline
        )
        return TaskInfo.of(await control.submit(self.scope, kind, id, options, input))

    async def signal(
        self, task: str, name: str, payload: Any = None, *, id: str | None = None
    ) -> None:
        """Send *payload* to the task that waits, or will wait, for the signal *name*.

        Any name is taken and stored; a task that waits for another one goes on waiting. An *id*
        makes a repeated signal harmless.
        """
        await control.signal(self.scope, task, name, payload, id)

    async def in_doubt(self) -> list[CallInDoubt]:
        """The calls of this tenant that began, and of which nobody knows whether they happened.

        Of whatever kind: steps of tasks, tools of a conversation, calls of an agent. `resolve` says
        what became of one. What somebody is just doing is not in doubt.
        """
        return await all_in_doubt(self.scope)

    async def resolve(
        self,
        id: str,
        call: str,
        how: str,
        *,
        result: Any = None,
        by: str | None = None,
        kind: str = "task",
    ) -> None:
        """Answer for a *call* in doubt: it is "done", with *result*; "retry" it; or "skip" it.

        The call is a step of the task *id*; or a call of something of another *kind*, as `in_doubt`
        names it. *by* is recorded: who gave the answer.
        """
        try:
            if kind == task.KIND:
                await control.resolve(self.scope, id, call, how, result=result, by=by)
            else:
                resolution = Resolution(call, cast("Answer", how), result, by)
                await resolve_call(self.scope, kind, id, resolution)
        except NotFound as error:
            others = await kinds_in_doubt(self.scope, id, call)
            if not others:
                raise
            which = " or ".join(f"kind={other!r}" for other in others)
            names = " and ".join(f"{other}/{id}" for other in others)
            msg = f"{error} The call {call!r} of {names} is in doubt: for that, say {which}."
            raise type(error)(msg) from error

    async def pause(self, task: str, *, because: str | None = None) -> None:
        """Stop the task until `resume`. A worker that has it open stops before its next step."""
        await control.pause(self.scope, task, because)

    async def cancel(self, task: str, *, because: str | None = None) -> None:
        """End the task without an outcome, and the tasks that are steps of it.

        A worker that has it open stops before its next step.
        """
        await control.cancel(self.scope, task, because)

    async def resume(self, task: str) -> None:
        """Let a task continue that is paused, cancelled or failed; one that waits checks again."""
        await control.resume(self.scope, task)

    def on_finish(self, function: H) -> H:
        """Call *function* with the checkpoint of every task that finishes here, before it may go.

        At least once: after a crash it may be called a second time. Usable as a decorator.
        """
        self.scope.store.on_finish.append(function)
        return function

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
        return await opened.run(plan=plan, execute=execute, finish=finish, remember=remember)

    async def forget(
        self,
        *,
        conversation: str | None = None,
        task: str | None = None,
        state: str | None = None,
        thread: str | None = None,
        session: str | None = None,
        source: str | None = None,
        label: str | Mapping[str, str] | None = None,
        subject: str | None = None,
        forks: bool = True,
        dry_run: bool = False,
        by: str | None = None,
    ) -> Erasure:
        """Remove for good what one selector names, and all that was derived from it.

        *conversation*, *task*, *state* and *thread* are ids; *session* is whatever has that id;
        *label* is ``"name=value"`` or a name. Each goes with its results, the tasks that are steps
        of it, its copies (unless *forks* is off) and what was remembered of it. *source*: only what
        was remembered of that. *subject* is a name: what has it as its id or as a label goes, and
        memories about it; in all else, each text that mentions it is replaced.

        What is in use is `LeaseHeld`, and nothing goes. Cut short, it is done by the same call
        again. *dry_run* changes nothing. The receipt that can be kept is `Erasure.receipt`.
        """
        erasure = _late("erasure.forget")
        selectors = {
            "conversation": conversation,
            "task": task,
            "state": state,
            "thread": thread,
            "session": session,
            "source": source,
            "label": label,
            "subject": subject,
        }
        rule, value = erasure.rule_of(selectors)
        found: Erasure = await erasure.forget(
            self.scope, rule, value, dry_run=dry_run, forks=forks, by=by
        )
        return found

    async def sweep(self) -> int:
        """Free the room of everything that has expired; returns how many journals that were.

        What is older than the rules of `retention` allow goes too, and counts.
        """
        total = 0
        while count := await self._runtime.call(self.backend.sweep):
            total += count
        # What tasks have kept apart does not expire by itself, or it might do so before its task.
        async for head in self.scope.list(RESULTS, lambda head: head):
            if await self.journal(task.KIND, head.key.id).head() is None:
                total += await self._sweep_results(head.key.id)
        for tenant, kind in await self._runtime.call(self.backend.kinds):
            if kind == RETENTION:
                total += (await self.as_tenant(tenant).apply_retention()).count
        return total

    async def retention(self) -> list[Rule]:
        """How long things are kept: the rules of this tenant, which `set_retention` has set."""
        found: list[Rule] = await _late("erasure.retention").rules(self.scope)
        return found

    async def set_retention(self, *rules: str | Rule) -> None:
        """Let these be the rules: ``"conversation label:channel=web 90d"``, ``"task 30d"``.

        They hold for all who use this store: `sweep` and workers apply them.
        """
        retention = _late("erasure.retention")
        parsed = [retention.Rule.parse(one) if isinstance(one, str) else one for one in rules]
        await retention.set_rules(self.scope, parsed)

    async def apply_retention(self, *, dry_run: bool = False) -> Retained:
        """Remove what is older than the rules of this tenant allow, or say what that would be."""
        found: Retained = await _late("erasure.retention").apply(self.scope, dry_run=dry_run)
        return found

    async def _sweep_results(self, id: str) -> int:
        """Remove what a task has left that is gone; not while somebody begins another of its id."""
        old, results = self.journal(task.KIND, id), self.journal(RESULTS, id)
        try:
            async with self.scope.lock(task.KIND, id, 30):
                return await old.head() is None and await results.delete()
        except LeaseHeld:
            return 0


class Store(SyncWrapper[AsyncStore]):
    """Where state lives. Open it with `limpet.open`; it may be used from any thread.

    >>> import limpet
    >>> with limpet.open("memory:", tenant="acme") as store:
    ...     _ = store.conversation("alice").append({"role": "user", "content": "Hello"})
    ...     [chat.id for chat in store.conversations()]
    ['alice']
    """

    @property
    def tenant(self) -> str:
        """Whose state this is. Nothing of other tenants can be seen from here."""
        return self._core.tenant

    @property
    def backend(self) -> Backend:
        """Where the journals are stored."""
        return self._core.backend

    @property
    def scope(self) -> Scope:
        """One tenant and a runtime: what models are built on, for building your own."""
        return self._core.scope

    def on_finish(self, function: H) -> H:
        """Call *function* with the checkpoint of every task that finishes here, before it may go.

        At least once: after a crash it may be called a second time. Usable as a decorator.
        """
        return self._core.on_finish(function)

    def __enter__(self) -> Self:
        """The store itself."""
        return self

    __exit__ = sync(AsyncStore.__aexit__)
    close = sync(AsyncStore.close)
    forget = sync(AsyncStore.forget)
    retention = sync(AsyncStore.retention)
    set_retention = sync(AsyncStore.set_retention)
    apply_retention = sync(AsyncStore.apply_retention)
    sweep = sync(AsyncStore.sweep)
    conversations = sync_iter(AsyncStore.conversations)
    search_conversations = sync(AsyncStore.search_conversations)
    tasks = sync_iter(AsyncStore.tasks)
    states = sync_iter(AsyncStore.states)

    run = sync(AsyncStore.run)
    submit = sync(AsyncStore.submit)
    signal = sync(AsyncStore.signal)
    in_doubt = sync(AsyncStore.in_doubt)
    resolve = sync(AsyncStore.resolve)
    pause = sync(AsyncStore.pause)
    cancel = sync(AsyncStore.cancel)
    resume = sync(AsyncStore.resume)
    as_tenant = wrapped(AsyncStore.as_tenant, lambda core: Store(core))  # noqa: PLW0108 - not made yet
    journal = wrapped(AsyncStore.journal, Journal)
    conversation = wrapped(AsyncStore.conversation, Conversation)
    task = wrapped(AsyncStore.task, Task)
    state = wrapped(AsyncStore.state, _sync_state)
    memory = wrapped(AsyncStore.memory, _sync_memory)


def as_async(store: object) -> AsyncStore:
    """*store* for code that awaits: itself, or the same one if it was opened for blocking code."""
    if isinstance(store, AsyncStore):
        return store
    if not isinstance(store, Store):
        msg = (
            f"This needs a store, not a {type(store).__name__}. Open one with limpet.open_async()"
            " or limpet.open()."
        )
        raise TypeError(msg)
    return AsyncStore(core_of(store).scope.as_async())


def open(
    url: str | os.PathLike[str] | None = None,
    *,
    tenant: str = DEFAULT_TENANT,
    ttl: float | None = None,
    codec: Codec | None = None,
    redact: Sequence[str | Detector | Callable[[str], str]] | None = None,
    audit: bool = False,
    keys: Keys | str | os.PathLike[str] | None = None,
    embed: Embed = None,
    **options: Any,
) -> Store:
    """Open a store, and create it if it does not exist.

    *url*: a SQLite file (``agents.db``), or a URL that begins with ``sqlite:``, ``file:``,
    ``postgresql:``, ``redis:``, ``valkey:``, ``dynamodb:`` or ``memory:``; without one,
    ``$LIMPET_URL``, or else ``limpet.db`` in this directory. *tenant*: whose state; tenants cannot
    see each other. *ttl*: how many seconds after its last append something expires, unless it
    has a ttl of its own. *redact*: what is replaced before anything is stored: any of "secrets",
    "cards", "emails" and "phones", detectors of `limpet.redaction`, and functions from a text to a
    text; without it, the names in ``$LIMPET_REDACT``. *audit*: what commands, the inspector and
    MCP do is recorded from now on; see `limpet audit`. *embed*: True, or a function, so that
    memories are found by meaning in every namespace, those of tasks too; see `Store.memory`.
    *keys*: what it is encrypted with, as `Keys` or their file; without them, what ``$LIMPET_KEYS``
    names, if anything. *options*: those of the backend; for SQLite ``create``, ``readonly``,
    ``timeout`` and ``durability``.

    >>> with open("memory:") as store:
    ...     store.conversation("alice").append({"role": "user", "content": "Hello"})
    1
    """
    core = open_async(
        url,
        tenant=tenant,
        ttl=ttl,
        codec=codec,
        redact=redact,
        audit=audit,
        keys=keys,
        embed=embed,
        **options,
    )
    return Store(AsyncStore(core.scope.as_sync()))


def open_async(
    url: str | os.PathLike[str] | None = None,
    *,
    tenant: str = DEFAULT_TENANT,
    ttl: float | None = None,
    codec: Codec | None = None,
    redact: Sequence[str | Detector | Callable[[str], str]] | None = None,
    audit: bool = False,
    keys: Keys | str | os.PathLike[str] | None = None,
    embed: Embed = None,
    **options: Any,
) -> AsyncStore:
    """The same for async code: ``async with limpet.open_async("agents.db") as store: …``.

    It may be used from several event loops. Opening itself takes a few milliseconds and blocks.
    """
    from limpet.crypto.opening import opened  # noqa: PLC0415 - what imports us need not open any

    check_id(tenant, "tenant", MAX_TENANT_BYTES)
    redactor, embed = _redactor(redact), _embedding(embed)
    backend = opened(connect(url, **options), keys)
    scope = scope_over(backend, tenant, ttl, codec, embed=embed, redactor=redactor)
    if audit:
        try:
            run_to_end(_late("core.audit").begin(scope.as_sync(), via="program", who=None))
        except BaseException:
            scope.store.close()
            raise
    return AsyncStore(scope)


def _redactor(
    redact: Sequence[str | Detector | Callable[[str], str]] | None,
) -> Redactor | None:
    if redact is None:
        redact = os.environ.get("LIMPET_REDACT", "").replace(",", " ").split()
    return _late("core.redaction").redactor_of(redact) if redact else None


def scope_over(
    backend: Backend,
    tenant: str = DEFAULT_TENANT,
    ttl: float | None = None,
    codec: Codec | None = None,
    *,
    embed: Embed = None,
    redactor: Redactor | None = None,
) -> Scope:
    """A new open store over *backend*, as its *tenant* sees it, for code that awaits."""
    check_id(tenant, "tenant", MAX_TENANT_BYTES)
    if ttl is not None:
        check_seconds(ttl, "ttl")
    opened = OpenStore(
        backend,
        codec=codec,
        ttl=ttl,
        redactor=redactor,
        make_memory=_make_memory,
        embed=embed,
    )
    return Scope(opened, tenant, opened.async_runtime)
