"""Runs of the OpenAI Agents SDK that wait in a store until a person has decided.

A run is a journal. The SDK's own snapshot of it is an entry, each decision is one, and so is the
output. Who goes on with it holds its lease, and every entry of theirs is conditional on that. That
an approved call begins is recorded before it does: see `limpet.core.calls`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, get_args, overload

import msgspec

from limpet.backends.contract import UNSET, UnsetType
from limpet.backends.decide import holder_for_people
from limpet.core.calls import BEGAN, RESOLVED, SKIPPED, Call, Resolution, resolve_call
from limpet.core.codec import convert
from limpet.core.ids import check_labels, check_seconds, check_ttl
from limpet.core.meta import Meta
from limpet.core.runtime import AsyncEntered, SyncWrapper, core_of, sync, sync_iter
from limpet.errors import (
    CallsInDoubt,
    Conflict,
    LeaseHeld,
    NotStorable,
    TaskNotOpen,
    Unreadable,
    besides,
)
from limpet.integrations.openai_agents.record import (
    DECIDED,
    DONE,
    ENDED,
    KIND,
    RUNNING,
    STATE,
    WAITING,
    Ask,
    RunFinished,
    RunHeld,
    RunInfo,
    RunRecord,
    not_found,
)
from limpet.integrations.openai_agents.sdk import Snapshots, sdk
from limpet.llm.messages.repair import INTERRUPTED, REDACTED
from limpet.store import Store, as_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from types import TracebackType

    from agents import Agent, RunHooks, RunState, Session
    from agents.result import RunResult

    from limpet.core.calls import Answer
    from limpet.core.journal import AsyncJournal
    from limpet.core.scope import Scope
    from limpet.integrations.openai_agents.sdk import Waiting
    from limpet.store import AsyncStore

    Asks = list[Ask]

__all__ = ["AsyncRun", "AsyncRuns", "Runs"]

#: Who is recorded as having skipped a call, where no person has.
BY_POLICY = "in_doubt='skip'"

#: What may happen with a call in doubt, as for a step of a task. There is nothing to verify by.
InDoubt = Literal["ask", "retry", "skip"]

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
        self._snapshots = Snapshots(
            context_serializer,
            context_deserializer,
            strict=strict_context,
            redacted=self._store.scope.redacted,
        )

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
        """Store *run*, a result with interruptions or its `RunState`, as *id*; what it waits for.

        Durable on return, and the same once more does nothing. `Conflict` if there is another run
        with that id.
        """
        labelled = UNSET if labels is None else check_labels(labels)
        entry = (STATE, self._snapshots.take(run))
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
        return (await RunRecord.read(self._journal(id))).asks()

    async def approve(
        self, id: str, call_id: str, *, by: str | None = None, always: bool = False
    ) -> None:
        """Say yes to one call. *by*: who says so; *always*: to later calls of that tool, too.

        Durable on return; it counts when the run is resumed. The first decision stands: the same
        again changes nothing, another is a `Conflict`. `ArgumentsRedacted`, if the call cannot be
        made, because the store does not have what the model called the tool with.
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

    async def _decide(self, id: str, call_id: str, **decision: Any) -> None:
        decision = {"call_id": call_id, **decision}
        while (record := await RunRecord.read(self._journal(id))).wants(decision):
            try:
                # About the run as it was read: it may be going on just now.
                await self._journal(id).append((DECIDED, decision), expect=record.position)
            except Conflict:
                continue
            return

    async def resolve(
        self, id: str, call_id: str, how: Answer, *, result: Any = None, by: str | None = None
    ) -> None:
        """Say what became of a call in doubt: it is "done", with *result*; "retry"; or "skip".

        The run goes by it when it is resumed. *by* is recorded with it: who said so.
        """
        resolution = Resolution(call_id, how, result, by)
        await resolve_call(self._store.scope, KIND, id, resolution)

    def open(
        self,
        id: str,
        agent: Agent[Any],
        *,
        in_doubt: InDoubt = "ask",
        lease: float = 60,
        wait: float = 0,
    ) -> AsyncRun:
        """The run *id*, to be resumed within ``async with``; see `AsyncRun`.

        *agent* is the one it was started with. While it is open nobody else can open it: they get
        `RunHeld`, after up to *wait* seconds. If a worker died while it made approved calls, they
        may have happened. *in_doubt* says what becomes of them: "ask" raises `CallsInDoubt`, until
        each is resolved; "retry" makes them once more; "skip" tells the model that it is not known.
        """
        if in_doubt not in get_args(InDoubt):
            msg = f"in_doubt is one of {', '.join(get_args(InDoubt))}; not {in_doubt!r}."
            raise ValueError(msg)
        return AsyncRun(
            self._store.scope,
            self._journal(id),
            agent,
            self._snapshots,
            in_doubt=in_doubt,
            lease=check_seconds(lease, "lease"),
            wait=wait,
        )

    async def resume(
        self,
        id: str,
        agent: Agent[Any],
        *,
        session: Session | None = None,
        in_doubt: InDoubt = "ask",
        lease: float = 60,
        wait: float = 0,
        hooks: RunHooks[Any] | None = None,
        **options: Any,
    ) -> RunResult:
        """Go on with the run, as far as was decided, and store what comes of it.

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
        ended = (await RunRecord.read(self._journal(id))).ended
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
        return self._store.scope.list(KIND, RunInfo.of, prefix=prefix, labels=labels, status=status)

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
        given: object = store
        if not isinstance(given, Store):
            msg = f"Runs takes a store of limpet.open(), no {type(given).__name__}; see AsyncRuns."
            raise TypeError(msg)
        super().__init__(AsyncRuns(core_of(given)))

    save = sync(AsyncRuns.save)
    asks = sync(AsyncRuns.asks)
    approve = sync(AsyncRuns.approve)
    reject = sync(AsyncRuns.reject)
    resolve = sync(AsyncRuns.resolve)
    output = sync(AsyncRuns.output)
    info = sync(AsyncRuns.info)
    delete = sync(AsyncRuns.delete)
    list = sync_iter(AsyncRuns.list)


class AsyncRun(AsyncEntered):
    """A run that is being resumed. Nobody else can resume it meanwhile.

        async with runs.open("refund-17", agent) as run:
            result = Runner.run_streamed(agent, run.state, session=session, hooks=run.hooks())
            async for event in result.stream_events():
                ...
            await run.save(result)

    ``state`` has the decisions in it. Left by an error, the run is stored as far as it has come.
    """

    def __init__(
        self,
        scope: Scope,
        journal: AsyncJournal,
        agent: Agent[Any],
        snapshots: Snapshots,
        *,
        in_doubt: InDoubt,
        lease: float,
        wait: float,
    ) -> None:
        self._lock = scope.lock(KIND, journal.key.id, lease)
        self._journal = journal
        self._redacted: set[str | None] = set()  # calls of which the arguments are not stored
        self._agent = agent
        self._snapshots = snapshots
        self._in_doubt = in_doubt
        self._wait = wait
        self._state: RunState[Any, Any] | None = None
        self._status = WAITING
        self._progress = False  # whether the approved calls are known to be made

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r})"

    @property
    def id(self) -> str:
        """What the run is known by."""
        return self._journal.key.id

    @property
    def state(self) -> RunState[Any, Any]:
        """What to give to ``Runner.run``. The SDK changes it as the run goes on."""
        if self._state is None:
            raise self._not_open()
        return self._state

    # -- opening and closing ---------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Take the lease, read the newest snapshot, put the decisions in, and record the start."""
        try:
            await self._lock.acquire(self._wait)
            while not await self._begin():
                pass  # somebody wrote in between, perhaps what became of a call
        except LeaseHeld as error:
            who = holder_for_people(error.holder)
            raise RunHeld(str(error), who, error.until, error.epoch) from error
        except BaseException:
            await self._lock.release()
            raise
        return self

    async def _begin(self) -> bool:
        """Restore the state, and record that its approved calls begin; False if it was old."""
        record = await RunRecord.read(self._journal)
        if record.ended is not None:
            msg = f"Run {self.id!r} has ended. Its output() is stored; give a new run a new id."
            raise RunFinished(msg)
        doubtful = record.calls.open
        if doubtful and self._in_doubt == "ask":
            names = ", ".join(call.title for call in doubtful.values())
            msg = (
                f"A worker died while it resumed run {self.id!r}, and these calls may have "
                f"happened: {names}. Find out, then say so: runs.resolve({self.id!r}, call_id, "
                "'done' | 'retry' | 'skip'). Or resume it with in_doubt='retry', which makes them "
                "once more, or 'skip', which tells the model that it is not known."
            )
            raise CallsInDoubt(msg, list(doubtful.values()))
        entries: list[tuple[str, Any]] = []
        for id_ in list(doubtful) if self._in_doubt == "skip" else ():
            # Recorded, or whoever goes on after an error would make the call: it was approved.
            skipped = Resolution(id_, "skip", by=BY_POLICY)
            record.resolve(skipped)
            entries.append((RESOLVED, msgspec.to_builtins(skipped)))
        state = await self._snapshots.restore(self.id, self._agent, record.saved)
        self._apply_decisions(state, record)
        calls = dict(doubtful)
        for ask in record.calls_to_make():
            id_ = ask.call_id or ""
            calls[id_] = Call(
                id_,
                name=ask.tool or "",
                agent=ask.agent or "",
                policy=self._in_doubt,
                attempt=doubtful[id_].attempt + 1 if id_ in doubtful else 1,
                epoch=self._held_lease().epoch,
            )
            entries.append((BEGAN, msgspec.to_builtins(calls[id_])))
        try:
            await self._write(*entries, status=RUNNING, calls=calls, expect=record.position)
        except Conflict:
            return False
        self._state, self._redacted, self._progress = state, record.redacted, False
        return True

    def _apply_decisions(self, state: RunState[Any, Any], record: RunRecord) -> None:
        """Tell the SDK what was decided, and what became of calls that a dead worker has made.

        It has one way to go on without making a call: a no, whose message the model reads as the
        result. That is exact for one call, also where its tool was approved for always. So it is
        told of a call, too, that nobody can say yes to, since its arguments are not stored.
        """
        redacted = record.redacted
        for item in state.get_interruptions():
            id_ = item.call_id or ""
            decision, resolution = record.decisions.get(id_), record.resolutions.get(id_)
            if id_ in redacted and (decision is None or decision["approved"]):
                state.reject(item, rejection_message=REDACTED)
            elif decision is not None and decision["approved"]:
                state.approve(item, always_approve=decision["always"])
            elif decision is not None:
                always, message = decision["always"], decision["message"]
                state.reject(item, always_reject=always, rejection_message=message)
            if resolution is not None and resolution.how == "skip":
                text = INTERRUPTED if resolution.by == BY_POLICY else SKIPPED
                state.reject(item, rejection_message=text)
            elif resolution is not None and resolution.how == "done":
                result = resolution.result
                text = result if isinstance(result, str) else msgspec.json.encode(result).decode()
                state.reject(item, rejection_message=text)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Store how far it has come, if an error broke it off, and release the lease."""
        with besides(error, f"run {self.id!r} could not be closed"):
            try:
                # Not when it was cancelled: a tool may be at work, and nobody knows how far.
                if isinstance(error, Exception) and self._status == RUNNING:
                    await self._save_progress(WAITING)
            finally:
                self._state = None
                await self._lock.release()

    # -- what is stored --------------------------------------------------------------------------

    async def save(self, result: Waiting) -> None:
        """Store what came of it: a snapshot if it waits again, its output if it has ended."""
        if isinstance(result, sdk().RunState) or getattr(result, "interruptions", None):
            body = self._snapshots.take(result, self._redacted)
            await self._write((STATE, body), status=WAITING, calls={})
            return
        output = getattr(result, "final_output", None)
        try:
            await self._write((ENDED, {"output": output}), status=DONE, calls={})
        except NotStorable:
            # It has happened, whatever it returned: to do it once more would be worse than a text.
            await self._write((ENDED, {"output": str(output)}), status=DONE, calls={})

    def hooks(self, others: RunHooks[Any] | None = None) -> RunHooks[Any]:
        """For ``Runner.run(hooks=…)``: that the approved calls are made is stored before all else.

        Without them, a worker that dies later leaves the run in doubt. *others*: hooks of your own.
        """
        save_progress, base = self._save_progress, sdk().RunHooks

        class Hooks(base):  # type: ignore[misc, valid-type]
            async def on_llm_start(self, *args: Any) -> None:
                await save_progress(RUNNING)
                if others is not None:
                    await others.on_llm_start(*args)

        hooks = Hooks()
        events = [name for name in dir(base) if name.startswith("on_") and name != "on_llm_start"]
        for name in events if others is not None else ():
            setattr(hooks, name, getattr(others, name))
        return hooks

    async def _save_progress(self, status: str) -> None:
        """Store a snapshot of the state, once: the SDK keeps it up to date for one turn only."""
        if not self._progress:
            try:
                body = self._snapshots.take(self.state, self._redacted)
                await self._snapshots.restore(self.id, self._agent, body)
            except (RunFinished, Unreadable, sdk().AgentsException):
                pass  # what there was before is what there is
            else:
                await self._write((STATE, body), status=status, calls={})
                self._progress = True
                return
        if status != self._status:
            await self._write(status=status)

    async def _write(
        self,
        *entries: tuple[str, Any],
        status: str,
        calls: dict[str, Call] | None = None,
        expect: int | None = None,
    ) -> None:
        """Make *entries* durable under the lease; *calls* are those that are open from then on."""
        lease, meta = self._held_lease(), UNSET if calls is None else Meta(calls=calls).encode()
        await self._journal.append(*entries, lease=lease, status=status, meta=meta, expect=expect)
        self._status = status

    def _held_lease(self) -> Any:
        if self._lock.held is None:
            raise self._not_open()
        return self._lock.held.lease

    def _not_open(self) -> TaskNotOpen:
        return TaskNotOpen(
            f"Run {self.id!r} is not open: resume it within `async with runs.open(…) as run:`."
        )
