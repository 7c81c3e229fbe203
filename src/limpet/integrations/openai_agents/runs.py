"""Runs of the OpenAI Agents SDK that wait in a store until a person has decided.

A run is a journal. The SDK's own snapshot of it is an entry, each decision is one, and so is the
output. Who goes on with it holds its lease, and every entry of theirs is conditional on that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from limpet.backends.contract import UNSET, UnsetType
from limpet.core.codec import convert
from limpet.core.ids import check_labels, check_seconds, check_ttl
from limpet.core.runtime import SyncWrapper, sync, sync_iter
from limpet.errors import Conflict
from limpet.integrations.openai_agents.past import (
    DECIDED,
    KIND,
    STATE,
    WAITING,
    Ask,
    Past,
    RunInfo,
    not_found,
)
from limpet.integrations.openai_agents.run import AsyncRun, Context
from limpet.integrations.openai_agents.sdk import sdk
from limpet.store import as_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from agents import Agent, RunHooks, Session
    from agents.result import RunResult

    from limpet.core.journal import AsyncJournal
    from limpet.integrations.openai_agents.run import Waiting
    from limpet.store import AsyncStore, Store

    Asks = list[Ask]

__all__ = ["AsyncRuns", "Runs"]

IN_DOUBT = ("raise", "retry")

T = TypeVar("T")


class AsyncRuns:
    """The runs of a store, sync or async; see `Runs`.

    The options are for contexts that are no dicts, as ``RunState.to_json`` and ``from_json`` of the
    SDK have them.
    """

    def __init__(
        self,
        store: AsyncStore | Store,
        *,
        context_serializer: Callable[[Any], Any] | None = None,
        context_deserializer: Callable[[Any], Any] | None = None,
        strict_context: bool = False,
    ) -> None:
        self._store = as_async(store)
        self._context = Context(context_serializer, context_deserializer, strict=strict_context)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._store!r})"

    async def save(
        self,
        id: str,
        run: Waiting,
        *,
        labels: Mapping[str, str] | None = None,
        ttl: float | UnsetType | None = UNSET,
    ) -> Asks:
        """Keep *run*, a result with interruptions or its `RunState`, as *id*; what it waits for.

        Durable on return, and the same once more does nothing. `Conflict` if there is another run
        with that id.
        """
        labelled = UNSET if labels is None else check_labels(labels)
        entry = (STATE, self._context.snapshot(run))
        try:
            await self._journal(id).append(
                entry, id="saved", expect=0, status=WAITING, labels=labelled, ttl=check_ttl(ttl)
            )
        except Conflict as error:
            msg = (
                f"There is a run {id!r} already, and nothing was saved. Resume that one, or give "
                "this one another id."
            )
            raise Conflict(msg, error.expected, error.actual) from error
        return await self.asks(id)

    async def asks(self, id: str) -> Asks:
        """The calls that the run waits for, decided or not. Needs neither its agents nor the SDK.

        Their arguments are the model's own words: show them as such.
        """
        return (await self._past(id)).asks()

    async def approve(
        self, id: str, call_id: str, *, by: str | None = None, always: bool = False
    ) -> None:
        """Say yes to one call. *by*: who says so; *always*: to later calls of that tool, too.

        Durable on return; it counts when the run is resumed. The first decision stands: the same
        again changes nothing, another is a `Conflict`.
        """
        await self._decide(id, call_id, approved=True, by=by, always=always, message=None)

    async def reject(
        self,
        id: str,
        call_id: str,
        *,
        by: str | None = None,
        always: bool = False,
        message: str | None = None,
    ) -> None:
        """Say no to one call; otherwise as `approve`. *message* is what the model gets to read."""
        await self._decide(id, call_id, approved=False, by=by, always=always, message=message)

    async def _decide(self, id: str, call_id: str, **said: Any) -> None:
        decision = {"call_id": call_id, **said}
        while (past := await self._past(id)).wants(decision):
            try:
                # About the run as it was read: it may be going on just now.
                await self._journal(id).append((DECIDED, decision), expect=past.position)
            except Conflict:
                continue
            return

    def open(
        self,
        id: str,
        agent: Agent[Any],
        *,
        in_doubt: str = "raise",
        lease: float = 60,
        wait: float = 0,
    ) -> AsyncRun:
        """The run *id*, to be resumed within ``async with``; see `AsyncRun`.

        *agent* is the one it was started with. While it is open nobody else can open it: they get
        `RunHeld`, after up to *wait* seconds. `RunInDoubt` if a worker died while it made approved
        calls, because they may have happened; ``in_doubt="retry"`` makes them once more.
        """
        if in_doubt not in IN_DOUBT:
            msg = f"in_doubt={in_doubt!r}: it is one of {', '.join(IN_DOUBT)}."
            raise ValueError(msg)
        return AsyncRun(
            self._store,
            self._journal(id),
            agent,
            self._context,
            again=in_doubt == "retry",
            lease=check_seconds(lease, "lease"),
            wait=wait,
        )

    async def resume(
        self,
        id: str,
        agent: Agent[Any],
        *,
        session: Session | None = None,
        in_doubt: str = "raise",
        lease: float = 60,
        wait: float = 0,
        hooks: RunHooks[Any] | None = None,
        **options: Any,
    ) -> RunResult:
        """Go on with the run, as far as was decided, and keep what comes of it.

        The result may have interruptions again: then the run waits again. *options* are those of
        ``Runner.run``; for the others see `open`.
        """
        async with self.open(id, agent, in_doubt=in_doubt, lease=lease, wait=wait) as run:
            result: RunResult = await sdk().Runner.run(
                agent, run.state, session=session, hooks=run.hooks(hooks), **options
            )
            await run.save(result)
            return result

    @overload
    async def output(self, id: str, *, as_: type[T]) -> T | None: ...
    @overload
    async def output(self, id: str, *, as_: Any = None) -> Any: ...
    async def output(self, id: str, *, as_: Any = None) -> Any:
        """What the run ended with, as it is stored or as the type *as_*; None before that."""
        ended = (await self._past(id)).ended
        if ended is None or as_ is None:
            return ended and ended["output"]
        return convert(ended["output"], as_)

    def list(
        self,
        *,
        status: str | None = None,
        prefix: str = "",
        labels: Mapping[str, str] | None = None,
    ) -> AsyncIterator[RunInfo]:
        """The runs of this tenant, by id; *status* is waiting, running or done."""
        filters = {"prefix": prefix, "labels": labels, "status": status}
        return self._store._list(KIND, RunInfo.of, filters)  # noqa: SLF001 - as for nouns

    async def info(self, id: str) -> RunInfo:
        """Status, holder, size and times."""
        head = await self._journal(id).head()
        if head is None:
            raise not_found(id)
        return RunInfo.of(head)

    async def delete(self, id: str) -> bool:
        """Remove the run. False if it was not there."""
        return await self._journal(id).delete()

    def _journal(self, id: str) -> AsyncJournal:
        return self._store.journal(KIND, id)

    async def _past(self, id: str) -> Past:
        return await Past.read(self._journal(id))


class Runs(SyncWrapper[AsyncRuns]):
    """Runs of the OpenAI Agents SDK that wait until a person has decided.

    For those who decide, in code without an event loop. To resume a run takes one, as all of the
    SDK does: ``asyncio.run(AsyncRuns(store).resume(id, agent))``.

        runs = Runs(store)
        for run in runs.list(status="waiting"):
            for ask in runs.asks(run.id):
                runs.approve(run.id, ask.call_id, by="maria")
    """

    def __init__(self, store: Store) -> None:
        core = getattr(store, "_core", None)
        if core is None:
            msg = f"Runs takes a store of limpet.open(), no {type(store).__name__}; see AsyncRuns."
            raise TypeError(msg)
        super().__init__(AsyncRuns(core))

    save = sync(AsyncRuns.save)
    asks = sync(AsyncRuns.asks)
    approve = sync(AsyncRuns.approve)
    reject = sync(AsyncRuns.reject)
    output = sync(AsyncRuns.output)
    info = sync(AsyncRuns.info)
    delete = sync(AsyncRuns.delete)
    list = sync_iter(AsyncRuns.list)
