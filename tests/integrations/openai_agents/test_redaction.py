"""Calls that wait for a person while what they were made with is not stored: never made wrongly."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from agents import Agent, Runner, function_tool

import limpet
from limpet.integrations.openai_agents import ArgumentsRedacted, AsyncRuns
from tests.support.agents_sdk import call, say, strict, texts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MAIL = "ada.lovelace@example.org"
TWO = call(("pay", "c1"), ("pay", "c2"), to=MAIL)


def desk(paid: list[str], asked: list[Any], *steps: Any) -> Agent[Any]:
    """An agent that may pay when somebody says yes."""

    @function_tool(needs_approval=True)
    def pay(to: str) -> str:
        """Pay somebody."""
        paid.append(to)
        return "paid"

    return Agent(name="desk", model=strict(*steps, asked=asked), tools=[pay])


def resumed(
    act: Callable[[limpet.AsyncStore, AsyncRuns], Awaitable[object]], *, redact: list[str]
) -> tuple[list[str], list[Any]]:
    """What was paid, and what the model was told, when *act* was done to a run that waited."""
    paid: list[str] = []
    asked: list[Any] = []

    async def run() -> None:
        async with limpet.open_async("memory:", redact=redact) as store:
            runs = AsyncRuns(store)
            result = await Runner.run(desk(paid, asked, TWO), "Pay.")
            await runs.save("payment", result)
            await act(store, runs)
            await runs.resume("payment", desk(paid, asked, say("I see.")))

    asyncio.run(run())
    return paid, texts(asked[-1])


def test_a_call_whose_arguments_were_redacted_is_never_made() -> None:
    """Nobody can say yes to it; the model is told, and may call again."""

    async def approve(_: limpet.AsyncStore, runs: AsyncRuns) -> None:
        for ask in await runs.asks("payment"):
            assert ask.redacted
            with pytest.raises(ArgumentsRedacted, match="Reject it"):
                await runs.approve("payment", ask.call_id, by="maria")
        await runs.reject("payment", "c1", message="Not again.")

    paid, told = resumed(approve, redact=["emails"])
    assert paid == []
    assert "result c1: Not again." in told
    assert any(text.startswith("result c2: [limpet: this call was not made.") for text in told)


def test_a_call_that_was_approved_before_its_arguments_were_forgotten_is_not_made() -> None:
    """To write to "[forgotten]" would be to do something that nobody has asked for."""

    async def forget(store: limpet.AsyncStore, runs: AsyncRuns) -> None:
        await runs.approve("payment", "c1")
        done = await store.forget(subject=MAIL)
        assert [one.stays for one in done.mentions] == [None]

    paid, told = resumed(forget, redact=[])
    assert paid == []
    assert sum("this call was not made" in text for text in told) == 2


def test_a_call_of_which_nothing_was_redacted_is_made() -> None:
    """Whatever else is."""

    async def approve(_: limpet.AsyncStore, runs: AsyncRuns) -> None:
        for ask in await runs.asks("payment"):
            assert not ask.redacted
            await runs.approve("payment", ask.call_id)

    assert resumed(approve, redact=["cards", "secrets"])[0] == [MAIL, MAIL]


def test_a_call_that_waits_on_stays_one_that_cannot_be_made() -> None:
    """When the run is stored again, the arguments are redacted already."""
    paid: list[str] = []
    asked: list[Any] = []

    async def run() -> list[bool]:
        async with limpet.open_async("memory:", redact=["emails"]) as store:
            runs = AsyncRuns(store)
            agent = desk(paid, asked, TWO)
            await runs.save("payment", await Runner.run(agent, "Pay."))
            async with runs.open("payment", agent) as opened:
                await opened.save(opened.state)
            return [ask.redacted for ask in await runs.asks("payment")]

    assert asyncio.run(run()) == [True, True]
