"""A run that is being resumed: one worker at a time, and what is done is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from limpet.backends.decide import holder_for_people
from limpet.core.leases import LeaseLock
from limpet.errors import LeaseHeld, NotStorable, TaskNotOpen, Unreadable, besides
from limpet.integrations.openai_agents.past import (
    DONE,
    ENDED,
    RESUMED,
    RUNNING,
    STATE,
    WAITING,
    Past,
    RunFinished,
    RunHeld,
    RunInDoubt,
)
from limpet.integrations.openai_agents.sdk import sdk

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from agents import Agent, RunHooks, RunState
    from agents.result import RunResultBase

    from limpet.core.journal import AsyncJournal
    from limpet.store import AsyncStore

    Waiting = RunState[Any, Any] | RunResultBase

__all__ = ["AsyncRun", "Context"]


class Context:
    """How a context that is no dict becomes one and back; see ``RunState.to_json`` of the SDK."""

    def __init__(
        self,
        serializer: Callable[[Any], Any] | None,
        deserializer: Callable[[Any], Any] | None,
        *,
        strict: bool,
    ) -> None:
        self._serializer = serializer
        self._deserializer = deserializer
        self._strict = strict

    def snapshot(self, run: Waiting) -> dict[str, Any]:
        """The entry for *run*: what the SDK writes, and what can be read without it."""
        agents = sdk()
        state: Any = run if isinstance(run, agents.RunState) else run.to_state()  # type: ignore[union-attr]
        found = state.to_json(context_serializer=self._serializer, strict_context=self._strict)
        if found["current_step"] is None:
            msg = "This run has ended, and there is nothing to go on with. Keep its result."
            raise RunFinished(msg)
        asks = [
            {
                "call_id": item.call_id,
                "tool": item.qualified_name or item.name,
                "agent": getattr(item.agent, "name", None),
                "arguments": item.arguments,
            }
            for item in state.get_interruptions()
        ]
        schema = found["$schemaVersion"]
        return {"schema": schema, "sdk": agents.__version__, "asks": asks, "state": found}

    async def restore(
        self, id_: str, agent: Agent[Any], saved: dict[str, Any]
    ) -> RunState[Any, Any]:
        """The SDK's state. `Unreadable` if this SDK or this agent can do nothing with it."""
        agents, module = sdk(), sdk("agents.run_state")
        if saved["schema"] not in module.SUPPORTED_SCHEMA_VERSIONS:
            msg = (
                f"Run {id_!r} was saved by openai-agents {saved['sdk']} in its format "
                f"{saved['schema']}; {agents.__version__} reads up to "
                f"{module.CURRENT_SCHEMA_VERSION}. Resume it with the version that saved it."
            )
            raise Unreadable(msg)
        try:
            return await agents.RunState.from_json(  # type: ignore[no-any-return]
                agent,
                saved["state"],
                context_deserializer=self._deserializer,
                strict_context=self._strict,
            )
        except (agents.AgentsException, ValueError, TypeError, LookupError) as error:
            msg = (
                f"Run {id_!r} cannot be resumed with the agent {agent.name!r}: {error} "
                "It takes the agents and tools that it was started with."
            )
            raise Unreadable(msg) from error


class AsyncRun:
    """A run that is being resumed. Nobody else can resume it meanwhile.

        async with runs.open("refund-17", agent) as run:
            result = Runner.run_streamed(agent, run.state, session=session, hooks=run.hooks())
            async for event in result.stream_events():
                ...
            await run.save(result)

    ``state`` has the decisions in it. Left by an error, the run keeps how far it has come.
    """

    def __init__(
        self,
        store: AsyncStore,
        journal: AsyncJournal,
        agent: Agent[Any],
        context: Context,
        *,
        again: bool,
        lease: float,
        wait: float,
    ) -> None:
        port, keeper = store._runtime, store.scope.store.leases  # noqa: SLF001
        self._hold = LeaseLock(port, keeper, journal.key, lease)
        self._journal = journal
        self._agent = agent
        self._context = context
        self._again = again
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
        """Take the lease, read the newest snapshot, put the decisions in, and note the start."""
        try:
            await self._hold.acquire(self._wait)
            past = self._checked(await Past.read(self._journal))
            self._state = await self._restored(past)
            await self._record((RESUMED, {"calls": past.approved()}), status=RUNNING)
            self._progress = False
        except LeaseHeld as error:
            who = holder_for_people(error.holder)
            raise RunHeld(str(error), who, error.until, error.epoch) from error
        except BaseException:
            await self._hold.release()
            raise
        return self

    def _checked(self, past: Past) -> Past:
        if past.ended is not None:
            msg = f"Run {self.id!r} has ended. Its output() is kept; give a new run a new id."
            raise RunFinished(msg)
        if past.doubtful and not self._again:
            calls = ", ".join(f"{tool} ({id_})" for id_, tool in past.doubtful.items())
            msg = (
                f"A worker died while it resumed run {self.id!r}, and these calls may have "
                f"happened: {calls}. Find out; then resume it with in_doubt='retry', which makes "
                "them once more, or delete it."
            )
            raise RunInDoubt(msg, past.doubtful)
        return past

    async def _restored(self, past: Past) -> RunState[Any, Any]:
        state = await self._context.restore(self.id, self._agent, past.saved)
        for item in state.get_interruptions():
            made = past.decision(item.call_id)
            if made is None:
                continue
            if made["approved"]:
                state.approve(item, always_approve=made["always"])
            else:
                state.reject(item, always_reject=made["always"], rejection_message=made["message"])
        return state

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Keep how far it has come, if an error broke it off, and give up the lease."""
        with besides(error, f"run {self.id!r} could not be closed"):
            try:
                # Not when it was cancelled: a tool may be at work, and nobody knows how far.
                if isinstance(error, Exception) and self._status == RUNNING:
                    await self._keep_progress(WAITING)
            finally:
                self._state = None
                await self._hold.release()

    # -- what is kept ----------------------------------------------------------------------------

    async def save(self, result: Waiting) -> None:
        """Keep what came of it: a snapshot if it waits again, its output if it has ended."""
        if isinstance(result, sdk().RunState) or getattr(result, "interruptions", None):
            await self._record((STATE, self._context.snapshot(result)), status=WAITING)
            return
        output = getattr(result, "final_output", None)
        try:
            await self._record((ENDED, {"output": output}), status=DONE)
        except NotStorable:
            # It has happened, whatever it returned: to do it once more would be worse than a text.
            await self._record((ENDED, {"output": str(output)}), status=DONE)

    def hooks(self, others: RunHooks[Any] | None = None) -> RunHooks[Any]:
        """For ``Runner.run(hooks=…)``: that the approved calls are made is kept before all else.

        Without them, a worker that dies later leaves the run in doubt. *others*: hooks of your own.
        """
        run, base = self, sdk().RunHooks

        class Hooks(base):  # type: ignore[misc, valid-type]
            async def on_llm_start(self, *args: Any) -> None:
                await run._keep_progress(RUNNING)
                if others is not None:
                    await others.on_llm_start(*args)

        hooks = Hooks()
        events = [name for name in dir(base) if name.startswith("on_") and name != "on_llm_start"]
        for name in events if others is not None else ():
            setattr(hooks, name, getattr(others, name))
        return hooks

    async def _keep_progress(self, status: str) -> None:
        """Keep a snapshot of the state, once: the SDK keeps it up to date for one turn only."""
        entries = []
        if not self._progress:
            try:
                body = self._context.snapshot(self.state)
                await self._context.restore(self.id, self._agent, body)
                entries.append((STATE, body))
                self._progress = True
            except (RunFinished, Unreadable, sdk().AgentsException):
                pass  # what there was before is what there is
        if entries or status != self._status:
            await self._record(*entries, status=status)

    async def _record(self, *entries: tuple[str, Any], status: str) -> None:
        if self._hold.held is None:
            raise self._not_open()
        await self._journal.append(*entries, lease=self._hold.held.lease, status=status)
        self._status = status

    def _not_open(self) -> TaskNotOpen:
        return TaskNotOpen(
            f"Run {self.id!r} is not open: resume it within `async with runs.open(…) as run:`."
        )
