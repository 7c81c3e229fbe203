"""Kept teams of AutoGen on servers, over a long time, and with tools that have effects."""

from __future__ import annotations

import asyncio
import itertools
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from autogen_agentchat.conditions import MaxMessageTermination
from autogen_agentchat.teams import RoundRobinGroupChat

import limpet
from limpet.integrations import autogen
from limpet.llm.messages.repair import INTERRUPTED
from limpet.testing.boundaries import Boundaries
from tests.integrations.autogen.test_autogen_kills import TURNS, killed_everywhere
from tests.support.autogen_teams import agent, calling
from tests.support.places import find
from tests.support.processes import in_a_process

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: What one turn says, in characters.
SAID = 300


def words(messages: Sequence[Any], tools: Any) -> str:
    """As much text each time, and never the same."""
    number = len(messages)
    return " ".join(f"{(number * 7919 + i * 104729) % 99991:05d}" for i in range(SAID // 6))


def four(turns: int) -> RoundRobinGroupChat:
    """A team of four."""
    members: list[Any] = [agent(name, words) for name in ("anna", "ben", "cleo", "dan")]
    return RoundRobinGroupChat(members, termination_condition=MaxMessageTermination(turns + 1))


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize("place", ["postgresql", "redis"])
def test_killed_at_every_write_on_a_server(place: str, request: pytest.FixtureRequest) -> None:
    """Another machine goes on: what a team knows is not on the one that died."""
    assert killed_everywhere(find(place, request).url, "round robin") >= TURNS


# -- effects ---------------------------------------------------------------------------------------


def cashier(paid: Path) -> RoundRobinGroupChat:
    """A team in which one pays, by a tool that must not run twice."""

    async def pay(text: str) -> str:
        """Pay."""
        with paid.open("a") as file:
            file.write(f"{text}\n")
        return f"paid {text}"

    members: list[Any] = [agent("anna"), agent("ben", calling("pay"), tools=[pay])]
    return RoundRobinGroupChat(members, termination_condition=MaxMessageTermination(5))


async def _pay(url: str, id: str, paid: Path, kill_at: int | None) -> list[Any]:
    async with limpet.open_async(url) as store:
        boundaries = Boundaries(store.backend, kill_at)
        team = await autogen.keep(cashier(paid), store, id)
        if autogen.kept(team).unfinished or not await store.state(id).load(default=None):
            await team.run(task="Pay what is due.")
        document = await autogen.kept(team).state.load()
        thread = document["agent_states"]["RoundRobinGroupChatManager"]["message_thread"]
        said = [message["content"] for message in thread if message["source"] == "ben"]
        told = [text for text in said if isinstance(text, str)]
        return [told, autogen.kept(team).repairs, boundaries.passed]


@pytest.mark.slow
def test_a_payment_is_made_at_most_once_wherever_the_process_is_killed(tmp_path: Path) -> None:
    """And if nobody knows whether it was, the model and the people are told so."""
    url = f"sqlite:{tmp_path}/agents.db"

    def process(number: int, kill_at: int | None) -> tuple[int, Any]:
        paid = tmp_path / f"paid-{number}"
        return in_a_process(lambda: asyncio.run(_pay(url, f"it-{number}", paid, kill_at)))

    _, (usual, _, passed) = process(0, None)
    due = (tmp_path / "paid-0").read_text().split()
    assert len(due) == 2
    in_doubt = 0
    for number, moment in enumerate(passed, 1):
        code, _ = process(number, number)
        assert code == signal.SIGKILL, moment
        _, (told, repairs, _) = process(number, None)
        made = (tmp_path / f"paid-{number}").read_text().split()
        assert len(made) == len(set(made)), f"paid twice when killed {moment}"
        if repairs:
            in_doubt += 1
            assert INTERRUPTED in told
        else:
            assert (told, made) == (usual, due), moment
    assert in_doubt == 4  # around each payment: it had begun, and its end was not yet durable


async def _refused(number: int, it: Any) -> bool:
    """Whether write *number* was refused, and the run said so; it is then gone on with."""
    async with limpet.open_async("memory:") as store:
        kept, append, count = await autogen.keep(it, store, "it"), store.backend.append, 0

        def failing(request: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                raise limpet.StoreUnavailable("The store is away.")
            return append(request)

        store.backend.append = failing  # type: ignore[method-assign]
        with suppress(limpet.StoreUnavailable):
            await asyncio.wait_for(kept.run(task="Pay what is due."), 60)
        if refused := count >= number:
            await kept.run(task="Pay what is due." if number == 1 else None)
        return refused


@pytest.mark.parametrize("alone", [True, False], ids=["agent", "team"])
def test_what_the_store_refuses_ends_the_run_with_an_error(tmp_path: Path, *, alone: bool) -> None:
    """Also around a tool call, where AutoGen would wait for ever; and nothing is paid twice."""
    for number in itertools.count(1):
        paid = tmp_path / f"paid-{number}"
        team = cashier(paid)
        it = team._participants[1] if alone else team  # a cashier of one's own
        refused = asyncio.run(_refused(number, it))
        assert len(paid.read_text().split()) == (1 if alone else 2)
        if not refused:
            break
    assert number > 4


# -- growth ----------------------------------------------------------------------------------------


def test_a_turn_of_four_costs_what_is_new_in_it() -> None:
    """AutoGen's state has each message five times and grows; what is written of it does not."""

    async def work() -> list[Any]:
        async with limpet.open_async("memory:") as store:
            team = await autogen.keep(four(60), store, "it", component=False)
            await team.run(task="Go.")
            return await autogen.kept(team).state.history()

    history = asyncio.run(work())
    patches = [saved.bytes for saved in history if not saved.full]
    early, late = patches[4:12], patches[-10:-1]
    assert max(late) < min(early) * 1.2
    assert max(late) < 20 * SAID
    assert sum(saved.bytes for saved in history) < 3 * history[-1].total


@pytest.mark.slow
@pytest.mark.server
def test_a_team_outgrows_the_items_of_dynamodb(request: pytest.FixtureRequest) -> None:
    """An item has 400 KB at most; a long run of a team has more, and goes on."""
    url = find("dynamodb", request).url

    async def run(turns: int) -> Any:
        async with limpet.open_async(url) as store:
            team = await autogen.keep(four(turns), store, "it")
            await team.run(task="Go.")
            return (await autogen.kept(team).state.history(last=1))[
                0
            ].total, await team.save_state()

    total, state = asyncio.run(run(230))
    assert total > 400 * 1024

    async def again() -> Any:
        async with limpet.open_async(url) as store:
            team = await autogen.keep(four(1), store, "it")
            assert await team.save_state() == state
            await team.run(task="Go on.")
            return (await autogen.kept(team).state.history(last=1))[0]

    assert asyncio.run(again()).total > total
