"""Keeps one agent or team: loads it, saves it between turns, goes on where it stopped."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from autogen_core.models import (
    AssistantMessage,
    CreateResult,
    FunctionExecutionResult,
    FunctionExecutionResultMessage,
)
from autogen_core.tools import ToolResult

from limpet.core.calls import Resolution, resolve_call
from limpet.core.codec import fresh
from limpet.errors import CallsInDoubt, Conflict, LimpetError, NotFound, WrongState
from limpet.integrations.autogen import internals
from limpet.integrations.autogen.document import (
    FORMAT,
    MISMATCHES,
    check_section,
    check_state,
    check_type,
    member_states,
    repair_contexts,
    take_section,
    wrong_state,
)
from limpet.integrations.autogen.identity import component_of, fingerprint_of
from limpet.integrations.autogen.members import (
    StateDump,
    TeamMember,
    copied,
    factory_of,
    member_of,
)
from limpet.integrations.autogen.run import SECTION, Run, TurnLog, call_key, is_same_task
from limpet.llm.messages.repair import INTERRUPTED
from limpet.states.format import type_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from autogen_agentchat.messages import MessageFactory

    from limpet.core.calls import Answer
    from limpet.core.leases import LeaseLock
    from limpet.integrations.autogen.members import Member
    from limpet.integrations.autogen.run import ActorLog
    from limpet.states.state import AsyncState
    from limpet.store import AsyncStore

__all__ = ["KNOWN", "NEW", "RESUMED", "Keeper"]

# How a run begins.
NEW = "new"
RESUMED = "resumed"  # it was broken off, and goes on
KNOWN = "known"  # it has ended, and its task came once more


class Keeper:
    """The state of *member*, in memory and in the store, and the run that is not over."""

    def __init__(
        self,
        member: Member,
        state: AsyncState,
        lock: LeaseLock | None,
        *,
        first: dict[str, Any],
        factory: MessageFactory,
        on_change: Any,
        in_doubt: str,
        repair: str,
        idempotent: frozenset[str],
        wait: float,
        component: bool,
    ) -> None:
        self.member = member
        self.state = state
        self.run: Run | None = None
        #: Messages of a run that was given up, which nobody has read; they come before the next.
        self.undelivered: list[Any] = []
        #: What was found cut in half, and what stands in for it.
        self.repairs: list[dict[str, Any]] = []
        self.log = TurnLog(self.flush, self._note_repair)
        self.durable = 0  # how many changes of the log there were when it was last saved
        self.turns = 0  # how many turns have ended, and are durable
        self._first = first  # the state as it was made
        self._factory = factory
        self._on_change = on_change
        self._in_doubt = in_doubt
        self._repair = repair
        self._idempotent = idempotent
        self._lock = lock
        self._wait = wait
        self._component = component_of(member.it) if component else None
        self._fingerprint: dict[str, Any] = {}
        self._busy = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._store_error: Exception | None = None  # from a save
        self._is_stale = True  # whether what is in memory is not what is in the store
        self._dump = StateDump(member.it)
        self._own: dict[str, Any] | None = None  # AutoGen's state when the turn began
        self._extra: dict[str, Any] = {}  # and what it leaves out
        self._saved = asyncio.Event()  # for those who wait until a message may be put out

    @classmethod
    async def make(
        cls,
        agent: Any,
        store: AsyncStore,
        id_: str,
        *,
        about: dict[str, Any],
        lease: float | None,
        message_types: Iterable[type[Any]],
        **rules: Any,
    ) -> Keeper:
        """The keeper of *agent* under *id_*, loaded.

        *about* are the options of its state; with a *lease*, one process at a time runs it.
        """
        member = member_of(agent)
        await member.attach()
        first = copied(dict(await agent.save_state()))
        state = store.state(id_, type=type_of(first), **about)
        lock = None
        if lease is not None:
            lock = store.scope.lock(state.key.kind, state.key.id, lease)
        factory = factory_of(agent, message_types)
        keeper = cls(member, state, lock, first=first, factory=factory, **rules)
        await keeper.load()
        idempotent, retry = keeper._idempotent, keeper._in_doubt == "retry"
        member.record(keeper.log, idempotent, retry=retry)
        return keeper

    @property
    def current(self) -> Run:
        """The run that has begun."""
        assert self.run is not None  # noqa: S101 - called within runs only
        return self.run

    @property
    def is_unfinished(self) -> bool:
        """Whether a run was broken off, and can go on."""
        return self.run is not None and not self.run.done

    async def unfinished(self) -> Run | None:
        """That run."""
        async with self._busy:  # one that is under way is not broken off
            if self._is_stale:
                await self.load()
        return self.run if self.is_unfinished else None

    # -- one at a time -----------------------------------------------------------------------------

    @asynccontextmanager
    async def using(self) -> AsyncIterator[None]:
        """Nobody else runs it meanwhile: in this process, and with a lease in any other."""
        async with self._busy:
            if self._lock is not None:
                await self._lock.acquire(self._wait)
            try:
                held = self._lock.held if self._lock is not None else None
                self.log.epoch = 0 if held is None else held.lease.epoch
                # Without a lease the first save finds out whether another process has saved it; but
                # a person may have resolved what is in doubt.
                may_be_behind = held is not None or bool(self.log.ledger)
                if self._is_stale or (may_be_behind and not await self.state.is_current()):
                    await self.load()
                yield
            finally:
                self.log.is_open = False
                if self._lock is not None:
                    await self._lock.release()

    def break_off(self) -> None:
        """What is in memory is half of something: load it again before it is used again."""
        self._is_stale = True
        self.log.is_open = False
        self.log.break_off()

    # -- loading -----------------------------------------------------------------------------------

    async def load(self) -> None:
        """Be as the store has it; as it was made, if the store has nothing."""
        self._is_stale = True  # until all of it is loaded
        self._fingerprint = await fingerprint_of(self.member.it)
        document = await self.state.load(
            default=None, fingerprint=self._fingerprint, on_change=self._on_change
        )
        is_gone = document is None and self._own is not None
        if is_gone:
            document = fresh(self._first)
        if document is not None:
            try:
                await self._load(document)
            except LimpetError:
                raise
            except MISMATCHES as error:
                raise self.wrong_state(error) from error
        if is_gone:
            self._own = None
        self._is_stale = False

    async def _load(self, document: dict[str, Any]) -> None:
        section = take_section(document)
        release = section.get("format")
        if isinstance(release, int) and release > FORMAT:
            msg = f"State {self.state.id!r} was saved by a newer release of limpet. Upgrade it."
            raise WrongState(msg)
        check_section(section)
        self._check_members(self.member, document)
        check_state(self._first, document)
        extra = section.get("extra") or {}
        self.repairs = list(section.get("repairs", ()))
        for part in (document, extra):
            for where, repair in repair_contexts(part, self._repair):
                self._note_repair(where, repair.call_id, repair.name, repair.what)
        await self._load_own(fresh(document))
        await self.member.load(fresh(extra))
        self._own, self._extra = document, extra
        saved = section.get("run")
        self.run = None if saved is None else Run.load(saved, self._thread())
        self.log.load((saved or {}).get("log", {}))
        if self.log.ledger:
            # A person may have resolved some of these calls since they were saved.
            self.log.resolve(await self.state.other_entries())

    async def _load_own(self, document: dict[str, Any]) -> None:
        """AutoGen's ``load_state``, and not the one that was put in its place."""
        if isinstance(self.member, TeamMember):
            await self.member.clear_managers()
        await type(self.member.it).load_state(self.member.it, document)

    def wrong_state(self, error: Exception) -> WrongState:
        """The error for what is stored, and cannot be loaded."""
        return wrong_state(self.state, self.member.it, error)

    async def load_state(self, document: Any) -> None:
        """Load a state of the user's own; it is durable with the next turn."""
        check_type(self._first, document, self.member.it)
        if self.log.is_open:  # the agent itself does so; it is durable with the end of its run
            await self._load_own(document)
            return
        self._is_stale = True  # should it fail halfway
        await self._load_own(document)
        self.run = self._own = None
        self.log.clear()
        self._is_stale = False

    def created(self, dumped: list[dict[str, Any]]) -> list[Any]:
        """The messages that were stored so."""
        try:
            return [self._factory.create(message) for message in dumped]
        except MISMATCHES as error:
            raise self.wrong_state(error) from error

    def _check_members(self, member: Member, state: Any) -> None:
        """That a team's state has somebody for everybody: AutoGen would find out half-way."""
        if not isinstance(member, TeamMember):
            return
        there = member_states(state)
        wanted = [*member.members, internals.manager_name(member.it)]
        missing = [name for name in wanted if name not in there]
        if missing:
            msg = (
                f"State {self.state.id!r} is that of a team of {', '.join(there) or 'nobody'}; "
                f"this team has also {', '.join(missing)}. Give it a new version, and register a "
                f'migration that adds them: @limpet.migration("{self.state.id}", '
                f"{self.state.version}, {self.state.version + 1}). Or use another id."
            )
            raise WrongState(msg)
        for name, inner in member.members.items():
            if isinstance(inner, TeamMember):
                self._check_members(inner, there[name].get("agent_state"))

    def _thread(self) -> list[dict[str, Any]]:
        """The messages of a team, as its manager has them."""
        if not isinstance(self.member, TeamMember) or self._own is None:
            return []
        manager = self._own["agent_states"][internals.manager_name(self.member.it)]
        return list(manager.get("message_thread", ()))

    # -- saving ------------------------------------------------------------------------------------

    async def save(self, *, between: bool = True) -> None:
        """Make it durable: as it is *between* turns, or as it was then, and the log since."""
        async with self._writing:
            await self._save(between=between)

    async def _save(self, *, between: bool) -> None:
        if between or self._own is None:
            self._own = await self._dump()
            # Copied, because some of it is still AutoGen's to change.
            self._extra = copied(await self.member.save())
        section: dict[str, Any] = {"format": FORMAT}
        if self._component is not None:
            section["component"] = self._component
        if self._extra:
            section["extra"] = self._extra
        if self.repairs:
            section["repairs"] = list(self.repairs)
        if self.run is not None:  # the last, so that it comes and goes without a change of order
            section["run"] = self.run.dump(self._thread(), self.log.dump())
        changes, document = self.log.changes, {**self._own, SECTION: section}
        calls = dict(self.log.ledger.open)
        try:
            await self.state.save(document, fingerprint=self._fingerprint, calls=calls)
        except Exception as error:
            self._store_error = error
            raise
        self.durable = max(self.durable, changes)
        self.turns += between
        self.wake()

    def _note_repair(self, agent: str, call_id: str | None, tool: str | None, what: str) -> None:
        repair = {"agent": agent, "call_id": call_id, "tool": tool, "what": what}
        if repair not in self.repairs:
            self.repairs.append(repair)

    async def flush(self, upto: int | None = None) -> None:
        """Make the log durable, up to so many changes of it; several at once share a write."""
        upto = self.log.changes if upto is None else upto
        if self.durable >= upto:
            return
        await asyncio.sleep(0)
        async with self._writing:
            if self.durable < upto:
                await self._save(between=False)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a save, or for a `wake`, after which *condition* is true."""
        while not condition():
            await self._saved.wait()

    def wake(self) -> None:
        """Let those who wait look again."""
        self._saved.set()
        self._saved = asyncio.Event()

    def cause(self, error: BaseException) -> BaseException:
        """What a run has ended with, where AutoGen has made a text of it."""
        found = self.log.refused or self._store_error
        return found if found is not None and isinstance(error, RuntimeError) else error

    async def end_turn(self) -> None:
        """A turn has ended, and nothing is under way."""
        self.log.check()
        if self.run is not None:
            self.run.started, self.run.output_before = True, len(self.run.output)
        self.log.clear()
        await self.save()

    # -- runs --------------------------------------------------------------------------------------

    async def begin(
        self, task: list[dict[str, Any]], check: Callable[[], Awaitable[None]] | None = None
    ) -> str:
        """Begin a run with *task*, or resume the one that was broken off; which of the two.

        It is durable before any model is asked. What another process has done since we last looked
        is loaded first; if it is still at it, for all we know, that is a `Conflict`. What *check*
        raises of a new task leaves no trace.
        """
        self._store_error = self.log.refused = None
        try:
            return await self._begin(task, check)
        except Conflict:
            resumed = self.is_unfinished and self.current.resumed
            await self.load()
            if resumed or self.is_unfinished:
                self.break_off()
                raise
        return await self._begin(task, check)

    async def _begin(
        self, task: list[dict[str, Any]], check: Callable[[], Awaitable[None]] | None
    ) -> str:
        ids = Run(task).ids
        if ids and self.run is not None and self.run.done and self.run.ids == ids:
            return KNOWN
        before, run, how, between = self.run, self.run, NEW, False
        redacted = self.state.scope.redacted  # as the task is that was loaded
        goes_on = self.is_unfinished and (
            not task or is_same_task(redacted(task), redacted(self.current.task))
        )
        if check is not None and not goes_on:
            await check()
        try:
            if run is not None and goes_on:
                await self._check_in_doubt()
                self._drop_doubtful()
                run.resumed += 1
                run.forgotten = False
                how = RESUMED
            else:
                between = await self._give_up_run()
                self.run = Run([*(message.dump() for message in self.undelivered), *task])
                self.log.clear()
            await self.save(between=between)
        except Conflict:
            raise  # `begin` goes on from what is there
        except BaseException:  # it has not begun: the next is not to begin with this one's task
            self.run = before
            self.break_off()
            raise
        self.log.is_open = True
        return how

    async def end(self, reason: str | None = None) -> None:
        """The run has ended."""
        self.log.check()
        self.log.is_open = False
        self.log.clear()
        run = self.run
        if run is not None and run.ids:
            run.done, run.reason, run.output_before = True, reason, len(run.output)
        else:
            self.run = None
        await self.save()

    async def fail(self) -> None:
        """The agent has raised. If it knows nothing of its task, it is not told with the next.

        One that refuses a task would refuse every other with it.
        """
        if self.log.refused is not None or self._store_error is not None:
            return  # the error is not the agent's
        is_unchanged = not self.log.dump() and await self._dump() == self._own
        if is_unchanged and copied(await self.member.save()) == self._extra:
            self.current.forgotten = True
            with suppress(Exception):  # the error that there is says more
                await self.save(between=False)

    async def clear(self) -> None:
        """It was reset: what it was asked and has answered is no more."""
        self.run = None
        self.log.clear()
        await self.save()

    # -- calls in doubt ----------------------------------------------------------------------------

    async def resolve(self, call_id: str, how: Answer, result: Any, by: str | None) -> None:
        """Record what a person says of a call in doubt, and take it over."""
        if self.log.is_around():  # who waited here for the end of the run would wait for ever
            msg = f"No call {call_id!r} of {self.state.id!r} is in doubt: its run is under way."
            raise NotFound(msg)
        async with self._busy:
            if self._is_stale:
                await self.load()
            if call_id in self.log.ledger:
                await self.save(between=False)  # the head of a restored or forked state lacks it
            resolution, key = Resolution(call_id, how, result, by), self.state.key
            await resolve_call(self.state.scope, key.kind, key.id, resolution)
            await self.load()

    async def _check_in_doubt(self) -> None:
        calls = [call for call in self.log.in_doubt() if call.name not in self._idempotent]
        if calls and self._in_doubt == "ask":
            await self.save(between=False)  # so that the store lists them, as in `resolve`
            names = ", ".join(call.title for call in calls)
            msg = (
                f"A process ended while {self.state.id!r} ran these tools, and they may have had "
                f"their effect: {names}. Find out, and say so: await kept(agent).resolve(call_id, "
                '"done", result=…), or "retry", or "skip". Or keep it with in_doubt="skip": then '
                "the model is told that nobody knows."
            )
            raise CallsInDoubt(msg, calls)

    def _drop_doubtful(self) -> None:
        """By the rule "drop", calls in doubt were never made."""
        for actor in self.log if self._in_doubt == "drop" else ():
            for call in actor.drop_doubtful(self._idempotent):
                what = f"{call.name!r} was interrupted, and nobody knows whether it took effect; "
                self._note_repair(call.agent, call.id, call.name, f"{what}it was left out")

    async def _give_up_run(self) -> bool:
        """End a run that nobody goes on with: each agent is told what its tools have done.

        Messages that no agent has read are then `undelivered`. False if there is no such run.
        """
        self.undelivered = []
        if self.run is None or self.run.done:
            return False
        self._drop_doubtful()
        is_known = self.run.started or self.run.forgotten
        unread = [] if is_known else self.created(self.run.task)
        for member in self.member:
            context = internals.model_context(member.it)
            actor = self.log.actor(member.path)
            if isinstance(member, TeamMember) or context is None or not actor.replies:
                continue
            if member is self.member:
                for message in unread:
                    await context.add_message(message.to_model_message())
                unread = []
            for message in _half_turn(actor, member.it.name):
                await context.add_message(message)
        self.undelivered = unread
        if isinstance(self.member, TeamMember):
            await self.member.restart()
        return True


def _half_turn(actor: ActorLog, name: str) -> list[Any]:
    """The messages that a model context would have of a turn that is not over."""
    found: list[Any] = []
    for number, reply in enumerate(map(CreateResult.model_validate, actor.replies), 1):
        made: Counter[str] = Counter()
        answer = AssistantMessage(content=reply.content, source=name, thought=reply.thought)
        found.append(answer)
        if isinstance(reply.content, str):
            continue
        results = []
        for call in reply.content:
            known = actor.result(call_key(number, call.id, made))
            result = None if known is None else ToolResult.model_validate(known)
            results.append(
                FunctionExecutionResult(
                    content=INTERRUPTED if result is None else result.to_text(),
                    name=call.name,
                    call_id=call.id,
                    is_error=result is None or result.is_error,
                )
            )
        found.append(FunctionExecutionResultMessage(content=results))
    return found
