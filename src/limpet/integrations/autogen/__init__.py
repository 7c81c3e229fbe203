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
speaker. `Recall` is a memory for agents: what it brings to mind is shown, and is in no state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from limpet.backends.contract import UNSET
from limpet.core.ids import check_seconds
from limpet.errors import CallsInDoubt, LimpetError
from limpet.integrations.autogen.log import Doubt
from limpet.integrations.autogen.run import exported
from limpet.integrations.autogen.sdk import sdk
from limpet.store import as_async

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autogen_agentchat.base import ChatAgent, TaskResult, Team
    from msgspec import UnsetType

    from limpet.integrations.autogen.keeping import Keeping
    from limpet.integrations.autogen.memory import Recall
    from limpet.llm.messages.repair import Rule
    from limpet.states.migrations import Migrations
    from limpet.states.state import AsyncState, OnChange
    from limpet.store import AsyncStore, Store

    A = TypeVar("A", bound=ChatAgent | Team)

__all__ = ["AlreadyKept", "CallsInDoubt", "Doubt", "Kept", "Recall", "export", "keep", "kept"]

#: The attribute of an agent or a team by which `kept` finds it.
_KEPT = "_limpet_kept"


def __getattr__(name: str) -> Any:
    """`Recall`, which is made of a class of AutoGen's, when somebody asks for it."""
    if name != "Recall":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    sdk("autogen_core")
    from limpet.integrations.autogen.memory import Recall  # noqa: PLC0415 - it needs AutoGen

    return Recall


class AlreadyKept(LimpetError, ValueError):
    """An agent or a team that is kept already, by itself or within a team."""


class Kept:
    """What there is to know of a kept agent or team; `kept` finds it."""

    def __init__(self, keeping: Keeping, hooks: Any) -> None:
        self._keeping = keeping
        self._hooks = hooks

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.state.id!r}, version={self.state.version})"

    @property
    def state(self) -> AsyncState:
        """Its state: with a history, and what `AsyncState` can do."""
        return self._keeping.state

    @property
    def unfinished(self) -> bool:
        """Whether a run was broken off; ``run()`` goes on with it."""
        return self._keeping.is_unfinished

    @property
    def repairs(self) -> list[dict[str, Any]]:
        """What was found cut in half by a crash, and what stands in for it."""
        return [dict(repair) for repair in self._keeping.repairs]

    @property
    def in_doubt(self) -> list[Doubt]:
        """Tool calls of an unfinished run that were begun, and nobody knows what came of them.

        Not those that are steps of a task: it has them in doubt.
        """
        return self._keeping.log.doubts()

    async def resume(self) -> TaskResult | None:
        """Go on with a run that was broken off; None if there is none."""
        return await self._keeping.part.it.run() if self.unfinished else None

    async def resolve(self, call_id: str, result: str) -> None:
        """Say what came of a tool call that is in doubt."""
        await self._keeping.resolve(call_id, result)

    async def save(self) -> None:
        """Save it as it is. Only needed when you have changed it yourself, and not by a run."""
        await self._keeping.save()

    async def reload(self) -> None:
        """Be as the store has it: for instance after ``state.restore(…)``."""
        await self._keeping.load()

    def release(self) -> None:
        """Keep it no longer; what is stored stays."""
        self._hooks.release()
        self._keeping.part.release()
        for part in self._keeping.part:
            vars(part.it).pop(_KEPT, None)


async def keep(
    agent: A,
    store: Store | AsyncStore,
    id: str,
    *,
    version: int = 1,
    on_change: OnChange = "warn",
    migrations: Migrations | None = None,
    repair: Rule = "stub",
    idempotent: Iterable[str] = (),
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

    A tool that was running when a process ended is not run again: by the rule *repair*, its model
    is told that nobody knows whether it took effect (``"stub"``), or is asked again as if it had
    not called it (``"drop"``), or `CallsInDoubt` is raised until you say so (``"raise"``). Those
    named in *idempotent* are simply run again; a `limpet.effect` follows its own policy. A tool
    whose task waits, or is halted, ends the run with that error, and is called again later.

    Of two processes that use it at once, one gets a `Conflict`. With *hold*, the second waits up to
    *wait* seconds until the run of the first has ended, then it is `LeaseHeld`; the lease of
    *lease* seconds renews itself. *labels* and *ttl*: see `Store.state`. *message_types*: those of
    your own, for a single agent; a team has its own. *component*: whether ``dump_component()`` is
    kept too.
    """
    sdk()
    from limpet.integrations.autogen.making import make  # noqa: PLC0415 - it needs AutoGen

    if repair not in ("stub", "drop", "raise"):
        raise ValueError(f'repair is "stub", "drop" or "raise"; not {repair!r}.')
    core = as_async(store)
    _check_free(agent)
    keeping, hooks = await make(
        agent,
        core,
        id,
        about={"version": version, "labels": labels, "ttl": ttl, "migrations": migrations},
        hold=check_seconds(lease, "lease") if hold else None,
        types=message_types,
        on_change=on_change,
        repair=repair,
        idempotent=frozenset(idempotent),
        wait=wait,
        component=component,
    )
    found = Kept(keeping, hooks)
    for part in keeping.part:
        setattr(part.it, _KEPT, found)
    return agent


def kept(agent: ChatAgent | Team) -> Kept:
    """What there is to know of an agent or a team that `keep` has returned, or of one within it."""
    found: Kept | None = getattr(agent, _KEPT, None)
    if found is None:
        msg = f"The {type(agent).__name__} {agent.name!r} is not kept: await keep(…) first."
        raise ValueError(msg)
    return found


def _check_free(agent: ChatAgent | Team) -> None:
    """That nobody keeps it: one agent with two pasts would tell each of the other."""
    from limpet.integrations.autogen.parts import parts_of  # noqa: PLC0415 - it needs AutoGen

    for part in parts_of(agent):
        found: Kept | None = getattr(part.it, _KEPT, None)
        if found is not None:
            msg = (
                f"The {type(part.it).__name__} {part.it.name!r} is kept as "
                f"{found.state.id!r} already. Make another one; or let it go first, with "
                "kept(agent).release()."
            )
            raise AlreadyKept(msg)


async def export(store: Store | AsyncStore, id: str, *, at: int | None = None) -> dict[str, Any]:
    """The newest state under *id*, or that *at* a position, as AutoGen's ``load_state`` takes it.

    Of a run that is not over it is the state after the last turn that has ended.
    """
    state = as_async(store).state(id)
    position = (await state.info()).position if at is None else at
    return exported(await state.at(position, migrate=False))  # type: ignore[no-any-return]
