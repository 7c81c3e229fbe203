"""AutoGen's agents and teams, kept: they stop anywhere, and another process goes on.

>>> import asyncio
>>> import limpet
>>> from limpet.integrations import autogen
>>> from autogen_agentchat.agents import AssistantAgent
>>> from autogen_ext.models.replay import ReplayChatCompletionClient
>>> async def ask(question):
...     model = ReplayChatCompletionClient(["Ticket 7 is open."])  # it stands for yours
...     agent = AssistantAgent("support", model)
...     async with limpet.open_async("memory:") as store:
...         agent = await autogen.keep(agent, store, "support")
...         result = await agent.run(task=question)
...         return result.messages[-1].content
>>> asyncio.run(ask("What about ticket 7?"))
'Ticket 7 is open.'

A team is saved whole after every turn of one of its members, with what AutoGen's own ``save_state``
leaves out: how far termination conditions have counted, which groups of a graph were triggered, the
contexts of agents that forget them. A run that was broken off goes on by ``run()`` with the next
speaker. `Recall` is a memory for agents: what it recalls is shown to the model, and is in no state.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from limpet.backends.contract import UNSET
from limpet.core.ids import check_seconds
from limpet.errors import CallsInDoubt, LimpetError, MissingExtra
from limpet.integrations.autogen.run import exported
from limpet.store import as_async

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autogen_agentchat.base import ChatAgent, TaskResult, Team
    from msgspec import UnsetType

    from limpet.core.calls import Answer, Call
    from limpet.integrations.autogen.keeper import Keeper
    from limpet.integrations.autogen.memory import Recall
    from limpet.integrations.autogen.running import AgentRunner, TeamRunner
    from limpet.llm.messages.repair import Rule
    from limpet.states.migrations import Migrations
    from limpet.states.state import AsyncState, OnChange
    from limpet.store import AsyncStore, Store

    A = TypeVar("A", bound=ChatAgent | Team)

__all__ = ["AlreadyKept", "CallsInDoubt", "InDoubt", "Kept", "Recall", "export", "keep", "kept"]

#: What happens to a tool call in doubt: its model is told that nobody knows; `CallsInDoubt` until a
#: person has resolved it; it is made again; or its model is asked again, as if it had not made it.
InDoubt = Literal["skip", "ask", "retry", "drop"]

#: The attribute of an agent or a team by which `kept` finds it.
_KEPT = "_limpet_kept"


def _require(name: str) -> None:
    """`MissingExtra` if this module of AutoGen's, which is optional, is not installed."""
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("autogen"):
            raise
        raise MissingExtra.of("AutoGen", "autogen-agentchat", "autogen") from error


def __getattr__(name: str) -> Any:
    """`Recall`, which is made of a class of AutoGen's, when it is first used."""
    if name != "Recall":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _require("autogen_core")
    from limpet.integrations.autogen.memory import Recall  # noqa: PLC0415 - it needs AutoGen

    return Recall


class AlreadyKept(LimpetError, ValueError):
    """An agent or a team that is kept already, by itself or within a team."""


class Kept:
    """What there is to know of a kept agent or team; `kept` finds it."""

    def __init__(self, keeper: Keeper, runner: AgentRunner | TeamRunner) -> None:
        self._keeper = keeper
        self._runner = runner

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.state.id!r}, version={self.state.version})"

    @property
    def state(self) -> AsyncState:
        """Its state: with a history, and what `AsyncState` can do."""
        return self._keeper.state

    @property
    def unfinished(self) -> bool:
        """Whether a run was broken off; ``run()`` goes on with it."""
        return self._keeper.is_unfinished

    @property
    def repairs(self) -> list[dict[str, Any]]:
        """What was found cut in half by a crash, and what stands in for it."""
        return [dict(repair) for repair in self._keeper.repairs]

    @property
    def in_doubt(self) -> list[Call]:
        """Tool calls of an unfinished run that began, and nobody knows their outcome.

        Not those that are steps of a task: there they are in doubt.
        """
        return self._keeper.log.in_doubt()

    async def resume(self) -> TaskResult | None:
        """Go on with a run that was broken off; None if there is none."""
        return await self._keeper.member.it.run() if self.unfinished else None

    async def resolve(
        self, call_id: str, how: Answer, *, result: Any = None, by: str | None = None
    ) -> None:
        """Say what became of a tool call in doubt; the next run goes by it.

        "done": the model reads *result* as that of the call. "retry": the tool is called again.
        "skip": the model reads that it was skipped. *by* is who says so. `NotFound` if the call is
        not in doubt, `LeaseHeld` while another process is making it.
        """
        await self._keeper.resolve(call_id, how, result, by)

    async def save(self) -> None:
        """Save it as it is. Only needed when you have changed it yourself, and not by a run."""
        # Within a turn it is saved as it was when that began: the log has what was done since.
        await self._keeper.save(between=not self._keeper.log.is_open)

    async def reload(self) -> None:
        """Be as the store has it: for instance after ``state.restore(…)``."""
        if self._keeper.log.is_open:
            msg = f"{self.state.id!r} cannot be loaded while it is running: wait for its end."
            raise RuntimeError(msg)
        await self._keeper.load()

    def release(self) -> None:
        """Keep it no longer; what is stored stays."""
        self._runner.patches.release()
        self._keeper.member.release()
        for member in self._keeper.member:
            vars(member.it).pop(_KEPT, None)


async def keep(
    agent: A,
    store: Store | AsyncStore,
    id: str,
    *,
    version: int = 1,
    on_change: OnChange = "warn",
    migrations: Migrations | None = None,
    in_doubt: InDoubt = "skip",
    idempotent: Iterable[str] = (),
    repair: Rule = "stub",
    hold: bool = False,
    lease: float = 60,
    wait: float = 60,
    labels: Mapping[str, str] | None = None,
    ttl: float | UnsetType | None = UNSET,
    message_types: Iterable[type[Any]] = (),
    component: bool = True,
) -> A:
    """Let *agent*, an agent or a team, be what the store has under *id*, and save all it does.

    It is the same object, and all about it is as before; `kept` tells more of it. What it is asked
    is durable before a model is, and what it has done after every turn. *version* and *on_change*
    are those of a state: older ones go through *migrations*; if the agent that saved it had another
    prompt, other tools or another model, you get to know. `WrongState` if it is the state of
    something else.

    A tool that was running when a process ended is *in_doubt*: "skip" tells its model that nobody
    knows whether it took effect; "ask" raises `CallsInDoubt` until a person has resolved it;
    "retry" calls it again; "drop" asks the model again as if it had not called it. Tools named in
    *idempotent* are called again in any case; a `limpet.effect` follows its own policy. A tool
    whose task waits, or is halted, ends the run with that error, and is called again later.

    *repair* is what happens to a call without a result in a state that AutoGen saved by itself: one
    that says so is added ("stub"), the call is left out ("drop"), or `BrokenHistory` ("raise").

    Of two processes that use it at once, one gets a `Conflict`. With *hold*, the second waits up to
    *wait* seconds until the run of the first has ended, then it is `LeaseHeld`; the lease of
    *lease* seconds renews itself. *labels* and *ttl*: see `Store.state`. *message_types*: those of
    your own, for a single agent; a team has its own. *component*: whether ``dump_component()``,
    with all that may be a credential masked, is stored too.
    """
    _require("autogen_agentchat")
    from limpet.integrations.autogen.keeper import Keeper  # noqa: PLC0415 - it needs AutoGen
    from limpet.integrations.autogen.running import runner_for  # noqa: PLC0415 - as above

    if in_doubt not in get_args(InDoubt):
        raise ValueError(f'in_doubt is "skip", "ask", "retry" or "drop"; not {in_doubt!r}.')
    if repair not in ("stub", "drop", "raise"):
        raise ValueError(f'repair is "stub", "drop" or "raise"; not {repair!r}.')
    _check_not_kept(agent)
    keeper = await Keeper.make(
        agent,
        as_async(store),
        id,
        about={"version": version, "labels": labels, "ttl": ttl, "migrations": migrations},
        lease=check_seconds(lease, "lease") if hold else None,
        message_types=message_types,
        on_change=on_change,
        in_doubt=in_doubt,
        repair=repair,
        idempotent=frozenset(idempotent),
        wait=wait,
        component=component,
    )
    made = Kept(keeper, runner_for(keeper))
    for member in keeper.member:
        setattr(member.it, _KEPT, made)
    return agent


def _check_not_kept(agent: ChatAgent | Team) -> None:
    """`AlreadyKept` if it is: one agent with two pasts would tell each of the other."""
    from limpet.integrations.autogen.members import members_of  # noqa: PLC0415 - it needs AutoGen

    for member in members_of(agent):
        found: Kept | None = getattr(member.it, _KEPT, None)
        if found is not None:
            msg = (
                f"The {type(member.it).__name__} {member.it.name!r} is kept as "
                f"{found.state.id!r} already. Make another one; or let it go first, with "
                "kept(agent).release()."
            )
            raise AlreadyKept(msg)


def kept(agent: ChatAgent | Team) -> Kept:
    """What there is to know of an agent or a team that `keep` has returned, or of one within it."""
    found: Kept | None = getattr(agent, _KEPT, None)
    if found is None:
        msg = f"The {type(agent).__name__} {agent.name!r} is not kept: await keep(…) first."
        raise ValueError(msg)
    return found


async def export(store: Store | AsyncStore, id: str, *, at: int | None = None) -> dict[str, Any]:
    """The newest state under *id*, or that *at* a position, as AutoGen's ``load_state`` takes it.

    Of a run that is not over it is the state after the last turn that has ended.
    """
    state = as_async(store).state(id)
    position = (await state.info()).position if at is None else at
    return exported(await state.at(position, migrate=False))  # type: ignore[no-any-return]
