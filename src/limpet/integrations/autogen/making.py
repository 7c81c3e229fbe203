"""Puts together what keeps an agent or a team."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from limpet.core.leases import LeaseLock
from limpet.integrations.autogen.agents import KeptAgent, factory_of
from limpet.integrations.autogen.dump import copied
from limpet.integrations.autogen.kept import Keeping
from limpet.integrations.autogen.parts import TeamPart, part_of
from limpet.integrations.autogen.teams import KeptTeam
from limpet.states.format import type_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from limpet.integrations.autogen.hooks import Hooks
    from limpet.store import AsyncStore

__all__ = ["make"]


async def make(
    agent: Any,
    store: AsyncStore,
    id_: str,
    *,
    about: dict[str, Any],
    hold: float | None,
    types: Iterable[type[Any]],
    **rules: Any,
) -> tuple[Keeping, Hooks]:
    """What keeps *agent* under *id_*, loaded, and what was put in the way of its methods."""
    part = part_of(agent)
    await part.attach()
    first = copied(dict(await agent.save_state()))
    state = store.state(id_, type=type_of(first), **about)
    leases = store.scope.store.leases
    held = None if hold is None else LeaseLock(store.scope.runtime, leases, state.key, hold)
    factory = part.factory if isinstance(part, TeamPart) else factory_of(agent, types)
    keeping = Keeping(part, state, held, factory=factory, first=first, **rules)
    await keeping.load()
    part.record(keeping.log, keeping.idempotent)
    kept: KeptTeam | KeptAgent = (
        KeptTeam(keeping, part) if isinstance(part, TeamPart) else KeptAgent(keeping, agent)
    )
    return keeping, kept.hooks
