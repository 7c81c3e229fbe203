"""One agent or team that is kept: loaded, saved at every boundary, taken up where it stopped."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from limpet.core.codec import fresh
from limpet.errors import CallsInDoubt, Conflict, LimpetError, WrongState
from limpet.integrations.autogen.dump import Dump, copied
from limpet.integrations.autogen.identity import component_of, fingerprint_of
from limpet.integrations.autogen.log import Log
from limpet.integrations.autogen.mend import mend
from limpet.integrations.autogen.parts import TeamPart
from limpet.integrations.autogen.run import OURS, Run, same_task
from limpet.integrations.autogen.settle import settle
from limpet.integrations.autogen.shape import (
    MISFITS,
    check_ours,
    check_state,
    check_type,
    members_of,
    misfit,
    ours_in,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from autogen_agentchat.messages import MessageFactory

    from limpet.core.leases import LeaseLock
    from limpet.integrations.autogen.parts import Part
    from limpet.states.state import AsyncState

__all__ = ["KNOWN", "NEW", "RESUMED", "Keeping"]

FORMAT = 1

# How a run begins.
NEW = "new"
RESUMED = "resumed"  # it was broken off, and goes on
KNOWN = "known"  # it has ended, and its task came once more


class Keeping:
    """The state of *part*, in memory and in the store, and the run that is not over."""

    def __init__(
        self,
        part: Part,
        state: AsyncState,
        hold: LeaseLock | None,
        *,
        on_change: Any,
        repair: str,
        idempotent: frozenset[str],
        wait: float,
        component: bool,
        factory: MessageFactory,
        first: dict[str, Any],
    ) -> None:
        self.part = part
        self.state = state
        self.factory = factory
        self.run: Run | None = None
        #: Messages of a run that was given up, which nobody has heard; they come before the next.
        self.unheard: list[Any] = []
        #: What was found cut in half, and what stands in for it.
        self.repairs: list[dict[str, Any]] = []
        self.log = Log(self.flush, self._noted)
        self.idempotent = idempotent
        self._hold = hold
        self._wait = wait
        self._on_change = on_change
        self._repair = repair
        self._component = component_of(part.it) if component else None
        self._fingerprint: dict[str, Any] = {}
        self._busy = asyncio.Lock()
        self._writing = asyncio.Lock()
        self.trouble: Exception | None = None  # what the store has refused
        self._stale = True  # whether what is in memory is not what is in the store
        self._first = first  # as it was made
        self._dump = Dump(part.it)
        self._state: dict[str, Any] | None = None  # as AutoGen had it when the turn began
        self._beside: dict[str, Any] = {}
        self.durable = 0  # how many changes of the log there were when it was last saved
        self.turns = 0  # how many turns have ended, and are durable
        self._news = asyncio.Event()  # for those who wait until a message may be put out

    @property
    def begun(self) -> Run:
        """The run that has just begun."""
        assert self.run is not None  # noqa: S101 - or nobody would ask
        return self.run

    @property
    def is_unfinished(self) -> bool:
        """Whether a run was broken off, and can go on."""
        return self.run is not None and not self.run.done

    async def unfinished(self) -> Run | None:
        """That run."""
        if self._stale:
            async with self._busy:
                await self.load()
        return self.run if self.is_unfinished else None

    # -- one at a time -----------------------------------------------------------------------------

    @asynccontextmanager
    async def using(self) -> AsyncIterator[None]:
        """Nobody else runs it meanwhile: in this process, and with a hold in any other."""
        async with self._busy:
            if self._hold is not None:
                await self._hold.acquire(self._wait)
            try:
                if self._stale or (self._hold is not None and await self._is_behind()):
                    await self.load()
                yield
            finally:
                self.log.is_open = False
                if self._hold is not None:
                    await self._hold.release()

    async def _is_behind(self) -> bool:
        """Whether another process has saved it since."""
        return not await self.state.is_current()

    def distrust(self) -> None:
        """What is in memory is half of something: load it again before it is used again."""
        self._stale = True
        self.log.is_open = False
        self.log.doubt()

    # -- loading -----------------------------------------------------------------------------------

    async def load(self) -> None:
        """Be as the store has it; as it was made, if the store has nothing."""
        self._stale = True  # until all of it is taken
        self._fingerprint = await fingerprint_of(self.part.it)
        document = await self.state.load(
            default=None, fingerprint=self._fingerprint, on_change=self._on_change
        )
        if document is not None:
            await self._take(document)
        elif self._state is not None:  # there was one, and it is no more
            await self._take(fresh(self._first))
            self._state = None
        self._stale = False

    async def _take(self, document: Any) -> None:
        """Be as *document* says; `WrongState` if it is of another shape than what is saved here."""
        try:
            await self._taken(document)
        except LimpetError:
            raise
        except MISFITS as error:
            raise self.misfit(error) from error

    async def _taken(self, document: dict[str, Any]) -> None:
        ours = ours_in(document)
        release = ours.get("format")
        if isinstance(release, int) and release > FORMAT:
            msg = f"State {self.state.id!r} was kept by a newer release of limpet. Upgrade it."
            raise WrongState(msg)
        check_ours(ours)
        self._check(self.part, document)
        check_state(self._first, document)
        beside = ours.get("beside") or {}
        self.repairs = list(ours.get("repairs", ()))
        for where, repair in (*mend(document, self._repair), *mend(beside, self._repair)):
            self._noted(where, repair.call_id, repair.name, repair.what)
        if isinstance(self.part, TeamPart):
            await self.part.empty()
        await self._load_state(fresh(document))
        await self.part.load(fresh(beside))
        self._state, self._beside = document, beside
        saved = ours.get("run")
        self.run = None if saved is None else Run.load(saved, self._thread())
        self.log.load((saved or {}).get("log", {}))

    def misfit(self, error: Exception) -> WrongState:
        """The error for what is stored, and cannot be taken back."""
        return misfit(self.state, self.part.it, error)

    async def _load_state(self, document: dict[str, Any]) -> None:
        """AutoGen's own, past what was put in its way."""
        await type(self.part.it).load_state(self.part.it, document)

    async def loaded(self, document: Any) -> None:
        """Its user has a state of his own to load; it is durable with the next turn."""
        check_type(self._first, document, self.part.it)
        async with self.using():
            self._stale = True  # should it fail halfway
            if isinstance(self.part, TeamPart):
                await self.part.empty()
            await self._load_state(document)
            self.run = self._state = None
            self.log.clear()
            self._stale = False

    def created(self, dumped: list[dict[str, Any]]) -> list[Any]:
        """The messages that were stored so."""
        try:
            return [self.factory.create(message) for message in dumped]
        except MISFITS as error:
            raise self.misfit(error) from error

    def _check(self, part: Part, state: Any) -> None:
        """That a team's state has somebody for everybody: AutoGen would find out half-way."""
        if not isinstance(part, TeamPart):
            return
        there = members_of(state)
        wanted = [*part.parts, part.it._group_chat_manager_name]  # noqa: SLF001 - not told otherwise
        missing = [name for name in wanted if name not in there]
        if missing:
            msg = (
                f"State {self.state.id!r} is that of a team of {', '.join(there) or 'nobody'}; "
                f"this team has also {', '.join(missing)}. Give it a new version, and register a "
                f'migration that adds them: @limpet.migration("{self.state.id}", '
                f"{self.state.version}, {self.state.version + 1}). Or use another id."
            )
            raise WrongState(msg)
        for name, inner in part.parts.items():
            if isinstance(inner, TeamPart):
                self._check(inner, there[name].get("agent_state"))

    def _thread(self) -> list[dict[str, Any]]:
        """The messages of a team, as its manager has them."""
        if not isinstance(self.part, TeamPart) or self._state is None:
            return []
        manager = self._state["agent_states"][self.part.it._group_chat_manager_name]  # noqa: SLF001
        return list(manager.get("message_thread", ()))

    # -- saving ------------------------------------------------------------------------------------

    async def save(self, *, between: bool = True) -> None:
        """Make it durable: as it is *between* turns, or as it was then, and the log since."""
        async with self._writing:
            await self._save(between=between)

    async def _save(self, *, between: bool) -> None:
        if between or self._state is None:
            self._state = await self._dump()
            # Copied, because some of it is still AutoGen's to change.
            self._beside = copied(await self.part.save())
        upto, document = self.log.changes, {**self._state, OURS: self._ours()}
        try:
            await self.state.save(document, fingerprint=self._fingerprint)
        except Exception as error:
            self.trouble = error
            raise
        self.durable = max(self.durable, upto)
        self.turns += between
        self.tell()

    def _ours(self) -> dict[str, Any]:
        found: dict[str, Any] = {"format": FORMAT}
        if self._component is not None:
            found["component"] = self._component
        if self._beside:
            found["beside"] = self._beside
        if self.repairs:
            found["repairs"] = list(self.repairs)
        if self.run is not None:  # the last, so that it comes and goes without a word on the order
            found["run"] = self.run.dump(self._thread(), self.log.dump())
        return found

    def _noted(self, agent: str, call_id: str | None, tool: str | None, what: str) -> None:
        repair = {"agent": agent, "call_id": call_id, "tool": tool, "what": what}
        if repair not in self.repairs:
            self.repairs.append(repair)

    async def flush(self) -> None:
        """Make the log durable; several who ask at once share a write."""
        await self.secure(self.log.changes)

    async def secure(self, upto: int) -> None:
        """Make the log durable, if so many changes of it are not."""
        if self.durable >= upto:
            return
        await asyncio.sleep(0)
        async with self._writing:
            if self.durable < upto:
                await self._save(between=False)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a save, or for whatever else is told, that makes *condition* so."""
        while not condition():
            await self._news.wait()

    def tell(self) -> None:
        """Let those who wait look again."""
        self._news.set()
        self._news = asyncio.Event()

    def cause(self, error: BaseException) -> BaseException:
        """What a run has ended with, where AutoGen has made a text of it."""
        found = self.log.refused or self.trouble
        return found if found is not None and isinstance(error, RuntimeError) else error

    async def boundary(self) -> None:
        """A turn has ended, and nothing is under way."""
        self.log.check()
        if self.run is not None:
            self.run.started, self.run.sure = True, len(self.run.said)
        self.log.clear()
        await self.save()

    # -- runs --------------------------------------------------------------------------------------

    async def begin(self, task: list[dict[str, Any]]) -> str:
        """Begin a run with *task*, or take up the one that was broken off; which of the two.

        It is durable before anybody is asked anything. What another process has done since we last
        looked is loaded first; if it is still at it, for all we know, that is a `Conflict`.
        """
        self.trouble = self.log.refused = None
        try:
            return await self._begin(task)
        except Conflict:
            resumed = self.is_unfinished and self.begun.taken
            await self.load()
            if resumed or self.is_unfinished:
                self.distrust()
                raise
        return await self._begin(task)

    async def _begin(self, task: list[dict[str, Any]]) -> str:
        if self._is_known(task):
            return KNOWN
        before = self.run
        try:
            how = await self._noted_down(task)
        except Conflict:
            raise  # `begin` goes on from what is there
        except BaseException:  # it has not begun: the next is not to begin with this one's task
            self.run = before
            self.distrust()
            raise
        self.log.is_open = True
        return how

    async def _noted_down(self, task: list[dict[str, Any]]) -> str:
        run, how, between = self.run, NEW, False
        if run is not None and not run.done and (not task or same_task(task, run.task)):
            self._check_doubts()
            self._leave_out()
            run.taken += 1
            how = RESUMED
        else:
            between = await self._settle()
            self.run = Run([*(message.dump() for message in self.unheard), *task])
            self.log.clear()
        await self.save(between=between)
        return how

    def _is_known(self, task: list[dict[str, Any]]) -> bool:
        """Whether *task* is that of the run that has ended, by an id of its sender's own."""
        ids = Run(task).ids
        return bool(ids) and self.run is not None and self.run.done and self.run.ids == ids

    async def end(self, reason: str | None = None) -> None:
        """The run has ended."""
        self.log.check()
        self.log.is_open = False
        self.log.clear()
        run = self.run
        if run is not None and run.ids:
            run.done, run.reason, run.sure = True, reason, len(run.said)
        else:
            self.run = None
        await self.save()

    def _check_doubts(self) -> None:
        doubts = [doubt for doubt in self.log.doubts() if doubt.tool not in self.idempotent]
        if doubts and self._repair == "raise":
            calls = ", ".join(f"{doubt.tool} ({doubt.call_id})" for doubt in doubts)
            msg = (
                f"A process ended while {self.state.id!r} ran these tools, and they may have had "
                f"their effect: {calls}. Find out, and say so with resolve(call_id, result). Or "
                'keep it with repair="stub": then the model is told that nobody knows.'
            )
            raise CallsInDoubt(msg, doubts)

    def _leave_out(self) -> None:
        """By the rule "drop", calls in doubt were never made."""
        for actor in self.log if self._repair == "drop" else ():
            for doubt in actor.leave_out(self.idempotent):
                what = f"{doubt.tool!r} was interrupted, and nobody knows whether it took effect; "
                self._noted(doubt.agent, doubt.call_id, doubt.tool, f"{what}it was left out")

    async def _settle(self) -> bool:
        """Let a run that nobody goes on with end: agents get to know what their tools have done."""
        self.unheard = []
        if self.run is None or self.run.done:
            return False
        self._leave_out()
        task = self.created(self.run.task)
        self.unheard = await settle(self.part, self.run, self.log, task)
        if isinstance(self.part, TeamPart):
            await self.part.restart()
        return True

    async def clear(self) -> None:
        """It was reset: what it was asked and has said is no more."""
        self.run = None
        self.log.clear()
        await self.save()

    async def resolve(self, call_id: str, result: str) -> None:
        """Say what came of a tool call that is in doubt."""
        async with self._busy:
            if self._stale:
                await self.load()
            for actor in self.log:
                if actor.resolve(call_id, result):
                    await self.save(between=False)
                    return
        raise ValueError(f"No tool call {call_id!r} is in doubt.")
